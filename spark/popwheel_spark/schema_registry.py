"""Client of a schema registry with Confluent's API: schemas by id and subject, fetched once, on the driver."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from popwheel_spark.errors import OptionError, RefusedError, UnreachableError

_TIMEOUT_S: Final = 10.0
_ANSWER_BYTES_MAX: Final = 4 * 2**20
_UNKNOWN: Final = 404


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of a registry.

    Args:
        id: its id in bodies.
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: the schema itself.
    """

    id: int
    kind: str
    text: str


class SchemaRegistry:
    """Client of a registry.

    Args:
        url: where it is, `http://HOST:PORT`.
        headers: of each request, such as `{"authorization": "Basic ..."}`.
        schemas_max: limit of the schemas that are fetched.

    Raises:
        OptionError: this is no address.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, schemas_max: int = 100) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError("url", f"{url!r} is no address of a registry; write http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json", **(headers or {})}
        self._schemas_max = schemas_max
        self._schemas: dict[int, RegisteredSchema] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """Return the schema with an id.

        Raises:
            RefusedError: there is none, it refers to others, or as many were fetched as may be.
            UnreachableError: the registry does not answer.
        """
        if number not in self._schemas:
            self._check_room()
            answer = self._get(
                f"schemas/ids/{number}", f"no schema has the id {number}; was the body written elsewhere?"
            )
            self._cache_schema(number, answer)
        return self._schemas[number]

    def versions(self, subject: str) -> list[RegisteredSchema]:
        """Return the versions of a subject, such as `orders-value`, the oldest first.

        Raises:
            as of `schema`.
        """
        path = f"subjects/{quote(subject, safe='')}/versions"
        numbers = self._get(path, f"there is no subject {subject}")
        if len(numbers) > self._schemas_max:
            raise RefusedError(
                f"{subject} has {len(numbers)} versions, {self._schemas_max} are fetched at the most: raise schemas_max"
            )
        found = []
        for number in sorted(numbers):
            answer = self._get(f"{path}/{number}", f"there is no version {number} of {subject}")
            if answer["id"] not in self._schemas:
                self._check_room()
                self._cache_schema(answer["id"], answer)
            found.append(self._schemas[answer["id"]])
        return found

    def _check_room(self) -> None:
        if len(self._schemas) >= self._schemas_max:
            raise RefusedError(f"{self._schemas_max} schemas were fetched already: raise schemas_max")

    def _cache_schema(self, number: int, answer: Mapping[str, Any]) -> None:
        if answer.get("references"):
            raise RefusedError(
                f"the schema {number} refers to others, which Spark's functions do not take: write it out"
            )
        self._schemas[number] = RegisteredSchema(number, answer.get("schemaType", "AVRO"), answer["schema"])

    def _get(self, path: str, unknown: str) -> Any:
        """Return the answer of a page, from JSON.

        Args:
            path: of it.
            unknown: what it means if there is none.
        """
        request = urllib.request.Request(f"{self._url}/{path}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return json.loads(answer.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(_ANSWER_BYTES_MAX).decode(errors="replace")
            why = unknown if error.code == _UNKNOWN else f"it answered {error.code}"
            raise RefusedError(f"the schema registry {self._url}: {why} ({said.strip()})") from None
        except OSError as error:
            raise UnreachableError(f"the schema registry {self._url} does not answer: {error}") from None
        except ValueError as error:
            raise RefusedError(f"the schema registry {self._url}: {path} is not JSON: {error}") from None
