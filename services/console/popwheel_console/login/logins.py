"""The session that a request has, and the forms that only pages of this console can send."""

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
"""Header of a page that refreshes itself: nobody has asked for it, so it keeps no session alive."""
_COOKIE: Final = "popwheel_session"
_RENEWED_EVERY: Final = 20
"""A cookie is renewed so often within the time in which an idle session ends."""
_FIELDS_MAX: Final = 100
_NOT_OURS: Final = (
    "this form is not of a page of this console, or the page was opened too long ago: open the page again, and send "
    "its form"
)


class Logins:
    """Sessions and forms.

    Args:
        options: of the console.
        secret: of all controllers of a cluster.
        signed: of those who have logged in; None: nobody has to.
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
        """The session of a request; None: somebody has to log in first."""
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
        """Return the value that every form sends as `csrf`: it is valid for this session alone, and while it lasts."""
        return self._forms.sign(self.ticket(request).id)

    async def checked_form(self, request: Request) -> Mapping[str, str]:
        """The fields of a form that a page of this console has sent.

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
        """The content of a request's cookie; a new one if there is none that is good."""
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
        """Begin a session after a login. It has a new id, so nobody can have known it before."""
        request.scope.setdefault("state", {})["ticket"] = Ticket(new_id(), self._clock.wall_ms(), 0, identity)

    def end(self, request: Request) -> None:
        """End a session at a logout."""
        request.scope.setdefault("state", {})["ticket"] = Ticket(new_id(), self._clock.wall_ms(), 0)

    def keep(self, request: Request, response: Response) -> None:
        """Set the browser's cookie, if it has none or its own is to be renewed."""
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
            samesite="lax",  # the way back from a provider of OpenID Connect begins at its site
        )
