"""Sessions of requests, and the check that a form was sent by a page of this console."""

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import parse_qsl

from fastapi import Request, Response

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.console_options import ConsoleOptions
from popwheel_common.web.signatures import Signatures
from popwheel_common.web.signed_callers import Identity, SignedCallers
from popwheel_console.login.session import Session, Ticket, new_id

LIVE_HEADER: Final = "x-popwheel-live"
"""Header of a background refresh, which does not keep a session alive."""
_COOKIE: Final = "popwheel_session"
_RENEWED_EVERY: Final = 20
"""Number of renewals of a cookie within the idle time-out of a session."""
_FIELDS_MAX: Final = 100
_NOT_OURS: Final = (
    "this form is not of a page of this console, or the page was opened too long ago: open the page again, and send "
    "its form"
)


class Logins:
    """Sessions and forms.

    Args:
        options: of the console.
        secret: shared by all controllers of a cluster.
        signed: callers that have logged in; None if no login is required.
        clock: the wall clock.
    """

    def __init__(self, options: ConsoleOptions, secret: bytes, signed: SignedCallers | None, clock: Clock) -> None:
        self._options = options
        self._signed = signed
        self._clock = clock
        self._tickets = Signatures(secret, "session", clock)
        self._forms = Signatures(secret, "form", clock)
        self._is_secure = options.url.startswith("https://")
        self._cookie = f"__Host-{_COOKIE}" if self._is_secure else _COOKIE

    @property
    def are_demanded(self) -> bool:
        """True if a login is required."""
        return self._signed is not None

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request; None if a login is required first."""
        if self._signed is None:
            return Session()
        identity = self.ticket(request).identity
        rights = None if identity is None else self._signed.rights(identity)
        if identity is None or rights is None:
            return None
        client = request.client
        header = self._signed.header(identity, "" if client is None else client.host)
        return Session(identity.name, header, rights.role, rights.sees_data)

    def csrf_token(self, request: Request) -> str:
        """Return the token that every form sends as `csrf`; it is valid for this session only."""
        return self._forms.sign(self.ticket(request).id)

    async def checked_form(self, request: Request) -> Mapping[str, str]:
        """Return the fields of a form that a page of this console has sent.

        Raises:
            StatusError: FORBIDDEN: another page has sent it; BAD_REQUEST: it is no form.
        """
        try:
            fields = dict(
                parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
            )
        except ValueError as error:
            raise StatusError(Code.BAD_REQUEST, f"this is no form: {error}") from error
        signed_for = self._forms.read(fields.get("csrf", ""), self._options.idle_ms // 1000)
        if signed_for is None or signed_for != self.ticket(request).id:
            raise StatusError(Code.FORBIDDEN, _NOT_OURS)
        return fields

    def ticket(self, request: Request) -> Ticket:
        """Return the content of a request's cookie; a new one if there is no valid cookie."""
        state = request.scope.setdefault("state", {})
        if "ticket" not in state:
            state["ticket"] = self._ticket(request.cookies.get(self._cookie, ""))
        return cast(Ticket, state["ticket"])

    def _ticket(self, cookie: str) -> Ticket:
        now_ms = self._clock.wall_ms()
        fields = self._tickets.read(cookie, self._options.idle_ms // 1000) if cookie else None
        if fields is not None:
            found = Ticket.of_fields(fields)
            if now_ms - found.began_ms < self._options.session_ms:
                return found
        return Ticket(new_id(), now_ms, 0)

    def begin(self, request: Request, identity: Identity) -> None:
        """Begin a session after a login, with a new id, so that no one can have fixed it before."""
        request.scope.setdefault("state", {})["ticket"] = Ticket(new_id(), self._clock.wall_ms(), 0, identity)

    def end(self, request: Request) -> None:
        """End a session at a logout."""
        request.scope.setdefault("state", {})["ticket"] = Ticket(new_id(), self._clock.wall_ms(), 0)

    def renew_cookie(self, request: Request, response: Response) -> None:
        """Set the browser's cookie, if it is missing or due for renewal."""
        ticket, now_ms = self.ticket(request), self._clock.wall_ms()
        is_new = not ticket.renewed_ms
        if not is_new and (
            request.headers.get(LIVE_HEADER) == "1"
            or now_ms - ticket.renewed_ms < self._options.idle_ms // _RENEWED_EVERY
        ):
            return
        renewed = Ticket(ticket.id, ticket.began_ms, now_ms, ticket.identity)
        response.set_cookie(
            self._cookie,
            self._tickets.sign(renewed.fields()),
            path="/",
            secure=self._is_secure,
            httponly=True,
            samesite="lax",  # the redirect from an OpenID Connect provider is a cross-site request
        )
