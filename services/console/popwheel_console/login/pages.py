"""Routes of login and logout."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.responses import RedirectResponse

from popwheel_common.audit_log import AuditLog
from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.refusals import http_status
from popwheel_common.web.signatures import Signatures
from popwheel_common.web.signed_callers import TOKEN, USER, Identity
from popwheel_console.login.attempts import Attempts
from popwheel_console.login.login_methods import LoginMethods
from popwheel_console.login.logins import Logins
from popwheel_console.login.oidc import CALLBACK
from popwheel_console.login.passwords import Passwords
from popwheel_console.view.links import within
from popwheel_console.view.renderer import Renderer

_ON_THE_WAY_COOKIE: Final = "popwheel_oidc"
_ON_THE_WAY_S: Final = 600
_NAME_SHOWN: Final = 64

Endpoint = Callable[[Request], Awaitable[Response]]


class LoginPages:
    """Routes of login and logout.

    Args:
        logins: sessions and forms.
        renderer: of templates.
        version: of the static files.
        methods: of login.
        on_the_way: signs the state while a browser is at the provider.
        clock: the monotonic clock.
        registry: for its metrics.
    """

    def __init__(
        self,
        logins: Logins,
        renderer: Renderer,
        version: str,
        methods: LoginMethods,
        on_the_way: Signatures,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        self._logins = logins
        self._renderer = renderer
        self._version = version
        self._tokens = methods.tokens
        self._users = methods.users
        self._oidc = methods.oidc
        self._on_the_way = on_the_way
        self._clock = clock
        self._passwords = Passwords()
        self._attempts = Attempts()
        self._log = AuditLog(clock.monotonic)
        self._count = Counter(
            "popwheel_console_logins", "Logins at the console, by outcome", ("outcome",), registry=registry
        )
        for outcome in ("done", "refused", "too_often"):
            self._count.labels(outcome)
        Gauge(
            "popwheel_console_login_failures_kept",
            "Names and addresses with recorded login failures",
            registry=registry,
        ).set_function(lambda: len(self._attempts))

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to those of the console."""
        router.add_route("/login", self._show, methods=["GET"], include_in_schema=False)
        router.add_route("/login", self._log_in, methods=["POST"], include_in_schema=False)
        router.add_route("/logout", self._log_out, methods=["POST"], include_in_schema=False)
        if self._oidc is not None:
            router.add_route("/login/oidc", self._redirect, methods=["GET"], include_in_schema=False)
            router.add_route(CALLBACK, self._return_from_provider, methods=["GET"], include_in_schema=False)

    async def _show(self, request: Request) -> Response:
        if not self._logins.are_demanded or self._logins.session_of(request) is not None:
            return RedirectResponse(within(request.query_params.get("next", "")), status_code=303)
        return await self._form(request, within(request.query_params.get("next", "")))

    async def _form(self, request: Request, following: str, refusal: StatusError | None = None) -> Response:
        values = {
            "csrf": self._logins.csrf_token(request),
            "following": following,
            "refusal": "" if refusal is None else refusal.message,
            "with_password": self._users is not None,
            "with_token": self._tokens is not None,
            "with_oidc": self._oidc is not None,
            "version": self._version,
        }
        body = await self._renderer.render("login.html", values)
        status = 200 if refusal is None else http_status(refusal.code)
        response = Response(body, status, media_type="text/html")
        self._logins.renew_cookie(request, response)
        return response

    async def _log_in(self, request: Request) -> Response:
        following = ""
        try:
            form = await self._logins.checked_form(request)
            following = within(form.get("next", ""))
            self._logins.begin(request, await self._identity(request, form.get("name", ""), form.get("secret", "")))
        except StatusError as refusal:
            return await self._form(request, following, refusal)
        return self._let_in(request, following)

    def _let_in(self, request: Request, following: str) -> Response:
        self._count.labels("done").inc()
        response = RedirectResponse(following or "/", status_code=303)
        self._logins.renew_cookie(request, response)
        return response

    async def _identity(self, request: Request, name: str, secret: str) -> Identity:
        """Return the user of a password, or of a token if the name is empty.

        Raises:
            StatusError: UNAUTHORIZED: it is wrong; TOO_MANY_REQUESTS: after too many failures.
        """
        address = "" if request.client is None else request.client.host
        wait_s = self._attempts.wait_s(name, address, self._clock.monotonic())
        if wait_s > 0:
            self._count.labels("too_often").inc()
            raise StatusError(
                Code.TOO_MANY_REQUESTS, f"too many logins have failed: try again in {int(wait_s / 60) + 1} minutes"
            )
        found = await self._password(name, secret) if name else self._token(secret, address)
        if found is None:
            self._attempts.failed(name, address, self._clock.monotonic())
            self._count.labels("refused").inc()
            self._log.denied(reason="login", name=name[:_NAME_SHOWN], peer=address)
            wrong = "the name or the password is wrong" if name else "this is no token of the admin API"
            raise StatusError(Code.UNAUTHORIZED, wrong)
        self._attempts.succeeded(name)
        return found

    async def _password(self, name: str, password: str) -> Identity | None:
        user = None if self._users is None else self._users.get(name)
        is_right = await self._passwords.check(None if user is None else user.password_hash, password)
        return Identity(USER, name, user.rights) if user is not None and is_right else None

    def _token(self, token: str, address: str) -> Identity | None:
        caller = None if self._tokens is None else self._tokens.caller(f"Bearer {token}", address)
        if caller is None or self._tokens is None:
            return None
        rights = self._tokens.rights(caller.name)
        return None if rights is None else Identity(TOKEN, caller.name, rights)

    async def _log_out(self, request: Request) -> Response:
        try:
            await self._logins.checked_form(request)
        except StatusError as refusal:
            return await self._form(request, "", refusal)
        self._logins.end(request)
        response = RedirectResponse("/login" if self._logins.are_demanded else "/", status_code=303)
        self._logins.renew_cookie(request, response)
        return response

    # OpenID Connect.

    async def _redirect(self, request: Request) -> Response:
        assert self._oidc is not None
        following = within(request.query_params.get("next", ""))
        kept: dict[str, Any] = {}
        request.scope["session"] = kept
        try:
            response = await self._oidc.begin(request)
        except StatusError as refusal:
            return await self._form(request, following, refusal)
        response.set_cookie(
            _ON_THE_WAY_COOKIE,
            self._on_the_way.sign({"kept": kept, "next": following, "ticket": self._logins.ticket(request).id}),
            max_age=_ON_THE_WAY_S,
            path="/login/oidc",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        self._logins.renew_cookie(request, response)
        return response

    async def _return_from_provider(self, request: Request) -> Response:
        assert self._oidc is not None
        found = self._on_the_way.read(request.cookies.get(_ON_THE_WAY_COOKIE, ""), _ON_THE_WAY_S) or {}
        kept = found.get("kept", {}) if found.get("ticket") == self._logins.ticket(request).id else {}
        request.scope["session"] = cast(dict[str, Any], kept)
        following = within(str(found.get("next", "")))
        try:
            self._logins.begin(request, await self._oidc.finish(request))
        except StatusError as refusal:
            self._count.labels("refused").inc()
            response = await self._form(request, following, refusal)
        else:
            response = self._let_in(request, following)
        response.delete_cookie(_ON_THE_WAY_COOKIE, path="/login/oidc")
        return response
