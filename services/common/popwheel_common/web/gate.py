"""Gate before an application: it refuses requests before their body is read."""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.before_answer import call_before_answer
from popwheel_common.web.caller import Caller, anybody, nobody, set_caller
from popwheel_common.web.hosts import AllowedHosts, is_from_another_site
from popwheel_common.web.refusals import refusal
from popwheel_common.web.signed_callers import SignedCallers
from popwheel_common.web.tokens import Tokens
from popwheel_common.web.within import is_within

BODY_BYTES_MAX: Final = 16 * 1024
"""The limit of a request's body. The longest that makes sense, a group with its waits, has less than 1 KiB. A route may
say that its bodies are longer."""
LONG_BODIES_MAX: Final = 4
"""Limit of longer bodies that are read, and answered, at the same time."""
HEADERS_MAX: Final = 100
"""The limit of a request's headers."""
AT_ONCE_MAX: Final = 64
"""Requests that are answered at the same time, health checks and what pages of the console ask not counted. Where few
connections are allowed it is half of them: others wait for their clients then, and can make room for a health check."""

_HEALTH = frozenset(("/healthz", "/readyz"))
_OPEN_PATHS = _HEALTH | {"/metrics"}
_API_PATHS = ("/api", "/docs", "/redoc", "/openapi.json", "/static-offline-docs")
"""Paths that take a token or a login; all else is pages of the console, which asks for a login by itself."""
_SHOWN_LENGTH_MAX = 100
_NAMES_LOGGED_MAX = 16
_DIGITS_MAX = 18
_NO_TOKEN = "show a token: authorization: Bearer TOKEN, or popwheel admin --token; POPWHEEL_TOKEN holds it, too"
_OTHER_SITE = (
    "a page of another site asks for this, so it is not done: what changes something is taken from pages of this "
    "server's own, and from programs"
)
_TOO_LONG = "the body has more than %d bytes, the most that a request may have: send less"
_TOO_MANY_LONG = f"{LONG_BODIES_MAX} long requests are being answered, the most at the same time: try again"
_TOO_MANY_HEADERS = f"the request has more than {HEADERS_MAX} headers: send fewer"
_TOO_MANY_AT_ONCE = "%d requests are being answered, the most at the same time: try again"

_logger = structlog.get_logger()

BodyLimit = Callable[[str, str], int]
"""Limit of a request's body by its method and its path."""


def short_bodies(method: str, path: str) -> int:
    """Return the limit where no route takes longer bodies."""
    return BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class GateRules:
    """Rules for requests that are let in.

    Args:
        hosts: names that requests may be for; None: all.
        tokens: without one of which nothing but health, readiness and metrics is answered; None: all is.
        signed: those whom the console has let in; None: it lets in everybody, or there is no console.
        at_once_max: as many requests are answered at the same time, health checks not counted.
        body_limit: how long bodies may be.
    """

    hosts: AllowedHosts | None = None
    tokens: Tokens | None = None
    signed: SignedCallers | None = None
    at_once_max: int = AT_ONCE_MAX
    body_limit: BodyLimit = short_bodies


class Gate:
    """Refuses requests for other hosts, of other sites, without token, too long, and too many at once.

    Args:
        app: the application.
        rules: which requests are let in.
        document: for `/openapi.json`: is waited for before it is answered.
        registry: where refusals are counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: GateRules,
        document: Callable[[], Awaitable[object]],
        registry: CollectorRegistry,
    ) -> None:
        self._app = app
        self._body_limit = rules.body_limit
        self._long_bodies = 0
        self._hosts = rules.hosts
        self._tokens = rules.tokens
        self._signed = rules.signed
        self._document = document
        self._at_once_max = rules.at_once_max
        self._at_once = 0
        self._logged: set[str] = set()
        """Names for which requests were refused; the first few of them."""
        self._refused = Counter(
            "popwheel_http_refused",
            "HTTP requests that were refused: for another host, of another site, too large, too many at once",
            ("reason",),
            registry=registry,
        )
        for reason in ("host", "site", "headers", "body", "at_once"):
            self._refused.labels(reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (trouble := self._trouble(scope)) is not None:
            await trouble(scope, receive, send)
        elif scope["path"] in _HEALTH or is_within(scope):
            await self._answer(scope, receive, send)
        elif self._at_once >= self._at_once_max:
            self._refused.labels("at_once").inc()
            await refusal(429, Code.TOO_MANY_REQUESTS, _TOO_MANY_AT_ONCE % self._at_once_max)(scope, receive, send)
        else:
            self._at_once += 1
            try:
                await self._answer(scope, receive, send)
            finally:
                self._at_once -= 1

    def _trouble(self, scope: Scope) -> Response | None:
        """Return the refusal of a request by its headers; None if it is accepted."""
        if len(scope["headers"]) > HEADERS_MAX:
            self._refused.labels("headers").inc()
            return refusal(431, Code.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_MANY_HEADERS)
        headers: dict[str, list[str]] = defaultdict(list)
        for name, value in scope["headers"]:
            headers[name.decode("latin-1").lower()].append(value.decode("latin-1"))
        hosts = headers["host"]
        for host in hosts:
            if self._hosts is not None and not self._hosts.allow(host):
                self._refuse_host(host[:_SHOWN_LENGTH_MAX])
                return refusal(
                    421,
                    Code.BAD_REQUEST,
                    f"{host[:_SHOWN_LENGTH_MAX]!r} is no name of this server. If it is one, add it to the setting "
                    "http.allowed_hosts",
                )
        if is_from_another_site(scope["method"], hosts[0] if hosts else "", headers):
            self._refused.labels("site").inc()
            return refusal(403, Code.FORBIDDEN, _OTHER_SITE)
        client = scope.get("client")
        address = "" if client is None else str(client[0])
        caller = self._caller(scope["path"], next(iter(headers["authorization"]), ""), address)
        if caller is None:
            if self._tokens is not None:
                peer = "" if client is None else "{}:{}".format(*client)
                self._tokens.denied(scope["method"], scope["path"], peer)
            return refusal(401, Code.UNAUTHORIZED, _NO_TOKEN, {"www-authenticate": "Bearer"})
        set_caller(scope.setdefault("state", {}), caller)
        length = next(iter(headers["content-length"]), "0")
        limit = self._body_limit(scope["method"], scope["path"])
        is_too_long = len(length) > _DIGITS_MAX or (length.isdigit() and int(length) > limit)
        return self._too_long(limit) if is_too_long else None

    def _caller(self, path: str, authorization: str, address: str) -> Caller | None:
        """Return the caller; None for an unknown one, if the path is not public."""
        if path in _OPEN_PATHS or (self._tokens is None and self._signed is None):
            return anybody(address)
        if self._signed is not None:
            if not path.startswith(_API_PATHS):
                return nobody(address)
            if self._signed.is_signed(authorization):
                return self._signed.caller(authorization)
        return None if self._tokens is None else self._tokens.caller(authorization, address)

    def _refuse_host(self, host: str) -> None:
        """Count it, and say it once for a name: a scrape or a probe goes on for ever."""
        self._refused.labels("host").inc()
        if host not in self._logged and len(self._logged) < _NAMES_LOGGED_MAX:
            self._logged.add(host)
            _logger.warning("refused a request for another host: see http.allowed_hosts", host=repr(host))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read all of a body, then hand it on. What says how long it is may be wrong, so its bytes are counted."""
        limit = self._body_limit(scope["method"], scope["path"])
        body = bytearray()
        is_long = False
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return  # the client has gone
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > limit:
                    await self._too_long(limit)(scope, receive, send)
                    return
                if len(body) > BODY_BYTES_MAX and not is_long:
                    if self._long_bodies >= LONG_BODIES_MAX:
                        self._refused.labels("at_once").inc()
                        await refusal(429, Code.TOO_MANY_REQUESTS, _TOO_MANY_LONG)(scope, receive, send)
                        return
                    is_long = True
                    self._long_bodies += 1
            await self._forward(bytes(body), scope, receive, send)
        finally:
            self._long_bodies -= is_long

    async def _forward(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request whose body has been read to the application."""
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        if scope["path"] == "/openapi.json":
            await self._document()
        await call_before_answer(self._app, scope, replay, send)

    def _too_long(self, limit: int) -> Response:
        self._refused.labels("body").inc()
        return refusal(413, Code.PAYLOAD_TOO_LARGE, _TOO_LONG % limit)
