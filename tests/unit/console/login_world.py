"""A controller's HTTP side with a console and an API that says who calls, a browser, and a clock that tests move."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, generate_latest

from popwheel_common.http import make_http_app
from popwheel_common.settings.console_options import ConsoleOptions
from popwheel_common.web.caller import caller_in
from popwheel_common.web.security_headers import SecurityHeaders
from popwheel_common.web.signatures import Signatures
from popwheel_common.web.signed_callers import SignedCallers
from popwheel_common.web.tokens import Tokens
from popwheel_common.web.users import Users
from popwheel_console.console import Console
from popwheel_console.login.login_methods import LoginMethods
from popwheel_console.login.logins import Logins
from popwheel_console.login.oidc import Oidc
from popwheel_console.login.pages import LoginPages
from popwheel_console.login.passwords import hash_of
from popwheel_console.static_files import StaticFiles
from popwheel_console.view.renderer import Renderer
from tests.harness.compiled_templates import keep_compiled
from tests.harness.manual_clock import ManualClock

SECRET = b"a secret of thirty-two bytes at least"
TOKEN = "a-token-of-the-admin-api"
PASSWORD = "correct horse"
HASH = hash_of(PASSWORD)

keep_compiled()


class LoginWorld:
    """The server; `browser` has its cookies."""

    def __init__(
        self,
        folder: Path,
        *,
        with_tokens: bool = False,
        with_users: bool = False,
        asks: Oidc | None = None,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.calls: list[tuple[str, str, bool, str]] = []
        self.options = ConsoleOptions(**options)
        self.users_path = folder / "users"
        tokens = users = None
        if with_tokens:
            (folder / "tokens").write_text(f"robot operate {TOKEN}\n")
            tokens = Tokens(str(folder / "tokens"), self.clock, self.registry)
        if with_users:
            self.users_path.write_text(f"# people\nanna administer {HASH}\nbert read {HASH}\n")
            users = Users(str(self.users_path), self.registry)
        methods = LoginMethods(tokens, users, asks)
        self.signed = SignedCallers(SECRET, tokens, users, self.clock) if methods.are_any else None
        self.logins = Logins(self.options, SECRET, self.signed, self.clock)
        renderer, files = Renderer(self.clock), StaticFiles()
        on_the_way = Signatures(SECRET, "oidc", self.clock)
        pages = LoginPages(self.logins, renderer, files.version, methods, on_the_way, self.clock, self.registry)
        self.app = make_http_app(
            "test",
            "1",
            self.registry,
            {},
            [self._api(), Console(self.clock, self.logins, pages, renderer, files).router()],
            tokens=tokens,
            signed=self.signed,
        )
        self.base = self.options.url or "http://console.test"
        self.browser = self.new_browser()

    def _api(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1")

        @router.get("/cluster")
        async def cluster(request: Request) -> dict[str, str]:
            caller = caller_in(request.scope["state"])
            self.calls.append((caller.name, caller.role.name, caller.sees_data, caller.address))
            return {"name": "lab"}

        return router

    def new_browser(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(SecurityHeaders(self.app), client=("192.0.2.7", 1234))
        return httpx.AsyncClient(transport=transport, base_url=self.base)

    async def csrf(self, path: str = "/login", browser: httpx.AsyncClient | None = None) -> str:
        """The token in a form of a page."""
        page = await (browser or self.browser).get(path)
        return page.text.partition('name="csrf" value="')[2].partition('"')[0]

    async def log_in(self, name: str = "", secret: str = PASSWORD, following: str = "/") -> httpx.Response:
        fields = {"csrf": await self.csrf(), "name": name, "secret": secret, "next": following}
        return await self.browser.post("/login", data=fields)

    def metric(self, line: str) -> bool:
        return f"{line}\n" in generate_latest(self.registry).decode()


@asynccontextmanager
async def login_world(folder: Path, **options: Any) -> AsyncIterator[LoginWorld]:
    world = LoginWorld(folder, **options)
    async with world.browser:
        yield world
