"""Every call of the admin API with garbage, as its own OpenAPI document lists them."""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx

from tests.fuzz.garbage import Garbage
from tests.fuzz.subject import FoundError, Subject

_NUMBERS = (0, 1, -1, 2, 1_000, 1_001, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**70)
_OWN = "fuzz-admin-"
"""Names that the admin API may make and delete: of others it may not, or acknowledged messages went."""
_ENDLESS = ("/api/v1/topics/{name}/tail",)
"""Their answers go on for minutes, and this client waits for their end."""
_LENGTH_MAX = 2_000
_TIMEOUT_S = 20.0


class AdminFuzzer:
    """Makes requests of the admin API, one at a time, and looks at the answers.

    Args:
        subject: what is asked.
        dice: decides.
        garbage: makes texts.
    """

    def __init__(self, subject: Subject, dice: random.Random, garbage: Garbage) -> None:
        self._subject = subject
        self._dice = dice
        self._garbage = garbage
        transport = httpx.ASGITransport(subject.http)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://fuzz", timeout=_TIMEOUT_S)
        self._document = subject.http.openapi()
        self._calls = [
            (method.upper(), path, call)
            for path, methods in self._document["paths"].items()
            for method, call in methods.items()
            if path not in _ENDLESS
        ]
        self.requests = 0
        self.answered: Counter[str] = Counter()
        """How often each call was answered with which HTTP status."""
        self.last = "nothing yet"

    async def one(self) -> None:
        """Make one request and look at its answer, and at what has changed if it was refused.

        Raises:
            FoundError: something that must not be.
        """
        method, path, call = self._dice.choice(self._calls)
        url, query = path, {}
        for parameter in call.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                text = self._text(name)
                if method == "DELETE" and not text.startswith(_OWN):
                    text = f"{_OWN}{self._dice.randrange(3)}"
                url = url.replace(f"{{{name}}}", httpx.QueryParams({"": text or "x"}).__str__()[1:])
            elif self._dice.random() < 0.6 or parameter.get("required"):
                query[name] = self._text(name) if self._dice.random() < 0.7 else str(self._dice.choice(_NUMBERS))
        body = self._body(call) if "requestBody" in call else None
        self.last = f"{method} {url} {query} {str(body)[:4_000]!r}"
        before, revived = self._subject.snapshot(), self._subject.revived
        headers = {"content-type": "application/json"} if body is not None else {}
        # A task of its own: what the fuzzer's own task does is not measured.
        request = self._client.request(method, url, params=query, content=body, headers=headers)
        answer = await asyncio.create_task(request)
        self.requests += 1
        self.answered[f"{method} {path} {answer.status_code}"] += 1
        if answer.status_code >= 400:
            self._check_refusal(answer)
            after = self._subject.snapshot()
            if after != before and self._subject.revived == revived:
                raise FoundError(f"refused, and yet changed: {before} {after}; the answer: {answer.text[:300]}")

    async def close(self) -> None:
        """Let the client go."""
        await self._client.aclose()

    def _check_refusal(self, answer: httpx.Response) -> None:
        try:
            refusal = answer.json()
            code, message = str(refusal["code"]), str(refusal["message"])
        except (ValueError, KeyError, TypeError):
            raise FoundError(f"{answer.status_code} without a name: {answer.text[:300]!r}") from None
        if not code.isupper() or code in ("INTERNAL_ERROR", "INTERNAL_SERVER_ERROR", "CODE_UNSPECIFIED"):
            raise FoundError(f"{answer.status_code} {code}: {message!r}")
        if len(message.split()) < 3 or not message.isprintable() or len(message) > _LENGTH_MAX:
            raise FoundError(f"{answer.status_code} {code} with a sentence that says nothing: {message[:300]!r}")

    def _text(self, name: str) -> str:
        dice = self._dice
        roll = dice.random()
        if name in ("broker", "group") and roll < 0.5:
            return "broker-0"
        if name in ("id", "offset", "limit", "begin") and roll < 0.5:
            return str(dice.choice((0, 1, 5, *_NUMBERS)))
        if roll < 0.6:
            return f"{_OWN}{dice.randrange(3)}"
        text = self._garbage.text()
        return text if text.isprintable() or dice.random() < 0.3 else "x"

    def _body(self, call: dict[str, Any]) -> bytes:
        """A JSON body: of the call's own schema more or less, or something else altogether."""
        dice = self._dice
        roll = dice.random()
        if roll < 0.05:
            return dice.randbytes(dice.randrange(60))
        schema = call["requestBody"]["content"]["application/json"]["schema"]
        data = json.dumps(self._value(schema, "", 0)).encode()
        return self._garbage.mutated(data) if roll < 0.15 else data

    def _value(self, schema: dict[str, Any], name: str, depth: int) -> Any:
        dice = self._dice
        if "$ref" in schema:
            schema = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            schema = dice.choice(schema["anyOf"])
        if dice.random() < 0.05 or depth > 4:
            return dice.choice((None, [], {}, "x", 7, 1e308, True, [[]] * 3))
        kind = schema.get("type")
        if kind == "object":
            properties = schema.get("properties", {})
            needed = schema.get("required", ())
            made = {
                key: self._value(each, key, depth + 1)
                for key, each in properties.items()
                if dice.random() < (0.95 if key in needed else 0.4)
            }
            return made | ({"colour": 1} if dice.random() < 0.03 else {})
        if kind == "array":
            return [self._value(schema.get("items", {}), name, depth + 1) for _ in range(dice.choice((0, 1, 2, 70)))]
        if kind in ("integer", "number"):
            return dice.choice((1, 5, 1_000, *_NUMBERS, 1.5))
        if kind == "boolean":
            return dice.random() < 0.5
        if "enum" in schema and dice.random() < 0.8:
            return dice.choice(schema["enum"])
        return self._text(name)
