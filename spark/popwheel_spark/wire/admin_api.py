"""Client of the controller's admin API for Spark: lists, page by page."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError, RefusedError, UnreachableError

_PAGE = 1_000
_TIMEOUT_S = 30.0


class AdminApi:
    """Client of a controller.

    Args:
        options: where it is.

    Raises:
        OptionError: they do not say.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        if not options.admin:
            raise OptionError("admin", "say where the controller's admin API is, http://HOST:PORT; this read needs it")
        self._base = options.admin
        self._token = options.token
        self._tls = ssl.create_default_context(cadata=options.authority or None)

    def topics(self) -> Iterator[str]:
        """Return the names of all topics.

        Raises:
            RefusedError, UnreachableError: as of `get`.
        """
        for page in self.pages("topics", {}):
            yield from (topic["name"] for topic in page["topics"])

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        """Yield all pages of a list, one after another.

        Args:
            path: of the list, below `/api/v1/`.
            query: what is asked; empty texts are left out.

        Raises:
            RefusedError: as of `get`.
            UnreachableError: the same, or a broker did not answer, so that the list would not be whole.
        """
        asked = {name: text for name, text in query.items() if text}
        after: str | None = ""
        while after is not None:
            page = self.get(path, **asked, limit=str(_PAGE), **({"after": after} if after else {}))
            if page.get("unanswered"):
                silent = ", ".join(f"{one['broker']}: {one['reason']}" for one in page["unanswered"])
                raise UnreachableError(f"the list of {path} would not be whole, these did not answer: {silent}")
            yield page
            after = page["next"]

    def get(self, path: str, **query: str) -> Any:
        """Return a page's answer, from JSON.

        Raises:
            RefusedError: it says no.
            UnreachableError: nobody answers.
        """
        url = f"{self._base}/api/v1/{path}?{urlencode(query)}"
        try:
            with urllib.request.urlopen(self._request(url), timeout=_TIMEOUT_S, context=self._tls) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(f"{url} answered {error.code}: {error.read().decode(errors='replace')}") from None
        except OSError as error:
            raise UnreachableError(f"the admin API at {self._base} (option admin) does not answer: {error}") from None

    def _request(self, url: str) -> urllib.request.Request:
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        return urllib.request.Request(url, headers=headers)
