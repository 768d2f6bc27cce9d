"""Routes of the console: pages, forms, static files, and the error for unknown pages."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote, urlencode

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError, code_name
from popwheel_common.web.caller import Role
from popwheel_common.web.refusals import http_status
from popwheel_console.answer import Answer, Question, Row
from popwheel_console.api_client import ApiClient, load
from popwheel_console.catalog import ACTIONS, PAGES, STREAMS
from popwheel_console.frame import THEMES, Frame, crumbs, filled, navigation, trouble_of
from popwheel_console.login.logins import LIVE_HEADER, Logins
from popwheel_console.login.pages import LoginPages
from popwheel_console.login.session import Session
from popwheel_console.page import Action, Page, Stream
from popwheel_console.static_files import CACHE_CONTROL, StaticFiles
from popwheel_console.view.links import within
from popwheel_console.view.renderer import Renderer
from popwheel_console.visit import Elsewhere, Refused, Visit

PATIENCE_S: Final = 0.25
"""Time after which a page is shown without the answers that are missing."""
LIVE_PATIENCE_S: Final = 6.0
"""Likewise of a background refresh."""
THEME_COOKIE: Final = "popwheel_theme"
NOTICE_COOKIE: Final = "popwheel_notice"
_YEAR_S: Final = 365 * 24 * 3600
_API: Final = ("/api", "/metrics", "/healthz", "/readyz", "/docs", "/redoc", "/openapi.json")
_NOTICE_LENGTH_MAX: Final = 500
_NOTICE_S: Final = 30

Endpoint = Callable[[Request], Awaitable[Response]]


class Console:
    """Web application of the console. The constructor loads libraries: call it in a thread.

    Args:
        clock: the time.
        logins: sessions and forms.
        login_pages: routes of the login.
        renderer: of templates.
        files: static files.
    """

    def __init__(
        self, clock: Clock, logins: Logins, login_pages: LoginPages, renderer: Renderer, files: StaticFiles
    ) -> None:
        load()
        self._clock = clock
        self._logins = logins
        self._login_pages = login_pages
        self._renderer = renderer
        self._files = files
        self._pages = {page.path: page for page in PAGES}

    def router(self) -> APIRouter:
        """Return the routes. Include them last: they have a page for each unknown address."""
        router = APIRouter()
        self._login_pages.add_to(router)
        for page in PAGES:
            router.add_route(page.path, self._shows(page), methods=["GET"], include_in_schema=False)
        for action in ACTIONS:
            router.add_route(action.path, self._does(action), methods=["POST"], include_in_schema=False)
        for stream in STREAMS:
            router.add_route(stream.path, self._passes_on(stream), methods=["GET"], include_in_schema=False)
        router.add_route("/theme", self._theme, methods=["GET"], include_in_schema=False)
        router.add_route("/static/{version}/{name}", self._static, methods=["GET"], include_in_schema=False)
        router.add_route("/{path:path}", self._nowhere, methods=["GET"], include_in_schema=False)
        return router

    def _shows(self, page: Page) -> Endpoint:
        async def show(request: Request) -> Response:
            session = self._logins.session_of(request)
            if session is None:
                return self._to_login(request)
            return self._with_cookie(request, await self._page(request, page, session))

        return show

    def _does(self, action: Action) -> Endpoint:
        async def do(request: Request) -> Response:
            session = self._logins.session_of(request)
            if session is None:
                return self._to_login(request)
            return self._with_cookie(request, await self._done(request, action, session))

        return do

    async def _done(self, request: Request, action: Action, session: Session) -> Response:
        """Run a form's work, and redirect."""
        try:
            form = await self._logins.checked_form(request)
        except StatusError as error:
            refusal = Answer(http_status(error.code), {}, code_name(error.code), error.message)
            return await self._error(request, session, refusal)
        visit = replace(self._visit(request, session), patience_s=LIVE_PATIENCE_S, form=form)
        try:
            done = await action.work(visit)
        except Refused as refused:
            return await self._page(request, action.page, session, form, refused.answer)
        answer = RedirectResponse(done.address, status_code=303)
        # Not in the address: else a foreign link could make this page show any text.
        notice = quote(done.notice[:_NOTICE_LENGTH_MAX])
        answer.set_cookie(NOTICE_COOKIE, notice, max_age=_NOTICE_S, path="/", httponly=True, samesite="strict")
        return answer

    def _to_login(self, request: Request) -> Response:
        """Send a browser to the login; a background refresh only reports the end of the session."""
        if request.headers.get(LIVE_HEADER) == "1":
            return Response("the session has ended: log in again", 401, media_type="text/plain")
        following = _address(request) if request.method == "GET" else "/"
        return RedirectResponse(f"/login?{urlencode({'next': following})}", status_code=303)

    def _with_cookie(self, request: Request, response: Response) -> Response:
        self._logins.renew_cookie(request, response)
        return response

    async def _page(
        self,
        request: Request,
        page: Page,
        session: Session,
        form: Mapping[str, str] | None = None,
        refusal: Answer | None = None,
    ) -> Response:
        """Show a page, after a refused form with the sent values."""
        is_live = request.headers.get(LIVE_HEADER) == "1"
        visit = self._visit(request, session)
        if is_live or visit.query.get("wait") == "1":
            visit = replace(visit, patience_s=LIVE_PATIENCE_S)
        if form is not None:
            visit = replace(visit, form=form)
        try:
            answers, view = await asyncio.gather(visit.ask(cluster=Question("/cluster")), page.gather(visit))
        except Refused as refused:
            return await self._error(request, session, refused.answer, page)
        except Elsewhere as elsewhere:
            return RedirectResponse(elsewhere.address, status_code=303)
        heading = page.heading(visit.path)
        frame = self._frame(request, session, visit, page, heading, answers["cluster"], is_live=is_live)
        values = {"frame": frame, "view": view, "form": Row(form or {}), "refusal": refusal}
        body = await self._renderer.render(page.template, values)
        answer = Response(body, 200 if refusal is None else refusal.status or 504, media_type="text/html")
        if frame.notice:
            answer.delete_cookie(NOTICE_COOKIE, path="/")
        return answer

    async def _error(self, request: Request, session: Session, answer: Answer, page: Page | None = None) -> Response:
        """Show a refusal by its code; a skeleton if the answer is late."""
        visit = self._visit(request, session)
        cluster = (await visit.ask(cluster=Question("/cluster")))["cluster"]
        is_live = request.headers.get(LIVE_HEADER) == "1"
        heading = "Not found" if answer.status == 404 else "Refused"
        if answer.status >= 500:
            heading = "Not answered"
        if answer.is_pending and page is not None:
            heading = page.heading(visit.path)
        frame = self._frame(request, session, visit, page, heading, cluster, is_live=is_live)
        body = await self._renderer.render("error.html", {"frame": frame, "answer": answer})
        return Response(body, answer.status or (504 if is_live else 200), media_type="text/html")

    def _visit(self, request: Request, session: Session) -> Visit:
        client = request.client
        return Visit(
            ApiClient(
                request.app,
                session.authorization,
                "" if client is None else client.host,
                request.headers.get("host", ""),
            ),
            self._clock.wall_ms(),
            PATIENCE_S,
            path={name: str(value) for name, value in request.path_params.items()},
            query=dict(request.query_params),
        )

    def _frame(
        self,
        request: Request,
        session: Session,
        visit: Visit,
        page: Page | None,
        heading: str,
        cluster: Answer,
        *,
        is_live: bool,
    ) -> Frame:
        theme = request.cookies.get(THEME_COOKIE, "")
        return Frame(
            heading=heading,
            crumbs=[] if page is None else crumbs(self._pages, page, visit.path),
            sections=navigation(self._pages, "" if page is None else page.section),
            address=_address(request) if request.method == "GET" or page is None else filled(page.path, visit.path),
            refresh_s=0 if page is None else page.refresh_s,
            now_ms=visit.now_ms,
            cluster=cluster.text("name"),
            trouble=trouble_of(cluster),
            leader=visit.api.leader,
            theme=theme if theme in THEMES else "",
            version=self._files.version,
            user=session.name,
            csrf=self._logins.csrf_token(request),
            notice="" if is_live else unquote(request.cookies.get(NOTICE_COOKIE, ""))[:_NOTICE_LENGTH_MAX],
            is_live=is_live,
            may_operate=session.role >= Role.OPERATE,
            may_administer=session.role >= Role.ADMINISTER,
        )

    def _passes_on(self, stream: Stream) -> Endpoint:
        async def pass_on(request: Request) -> Response:
            session = self._logins.session_of(request)
            if session is None:
                return self._to_login(request)
            visit = self._visit(request, session)
            path = filled(stream.of, visit.path)
            whole = await visit.api.ask(Question(path))  # if it is refused, so is the stream
            if not whole.is_good:
                return Response(whole.why, whole.status or 504, media_type="text/plain")
            query = {name: visit.asked_for(name) for name in stream.query}
            return visit.api.stream(Question(f"{path}{stream.below}", query), stream.media_type)

        return pass_on

    async def _theme(self, request: Request) -> Response:
        """Store the theme, light or dark, of a browser that runs no script."""
        answer = RedirectResponse(within(request.query_params.get("back", "")), status_code=303)
        theme = request.query_params.get("to", "")
        if theme in THEMES:
            answer.set_cookie(THEME_COOKIE, theme, max_age=_YEAR_S, path="/", samesite="lax")
        else:
            answer.delete_cookie(THEME_COOKIE, path="/")
        return answer

    async def _static(self, request: Request) -> Response:
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        # A page of another release may request this file: the browser must not cache it under that version.
        kept = CACHE_CONTROL if request.path_params["version"] == self._files.version else "no-cache"
        return Response(file.data, headers={"content-type": file.content_type, "cache-control": kept})

    async def _nowhere(self, request: Request) -> Response:
        path = request.url.path
        session = self._logins.session_of(request)
        if session is None or path.startswith(_API) or "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return await self._error(request, session, Answer(404, {}, "NO_SUCH_PAGE", f"there is no page {path[:200]}"))


def _address(request: Request) -> str:
    return within(request.url.path + (f"?{request.url.query}" if request.url.query else ""))
