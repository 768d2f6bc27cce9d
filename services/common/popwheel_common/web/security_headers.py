"""Headers that limit what pages of ours may do in browsers; each answer of each HTTP server has them."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PAGES: Final = ("/docs", "/redoc")
_CLOSED: Final = "default-src 'none'; frame-ancestors 'none'"
_OF_DOCS: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; worker-src blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""Swagger UI and ReDoc come from this server. Their pages begin with a script and styles within the page."""
_OF_PAGES: Final = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
"""Pages of the console: scripts, styles and forms of this server's own, and none within a page."""
_STATIC: Final = ("/static-offline-docs", "/static/")
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def security_headers(path: str, content_type: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer.

    Args:
        path: that was asked for.
        content_type: of the answer.
    """
    is_page = content_type.startswith(b"text/html")
    policy = _OF_DOCS if path.startswith(_PAGES) else _OF_PAGES if is_page else _CLOSED
    # A form of a page that gives no referrer has no origin, and the gate would take it for another site's.
    referrer = b"same-origin" if policy == _OF_PAGES else b"no-referrer"
    kept = () if path.startswith(_STATIC) else ((b"cache-control", b"no-store"),)
    return [*_ALWAYS, (b"referrer-policy", referrer), (b"content-security-policy", policy.encode()), *kept]


REFUSAL_HEADERS: Final = {name.decode(): value.decode() for name, value in security_headers("")}
"""Headers of responses that the application did not make."""


class SecurityHeaders:
    """Stands around an application, also around what answers for its crashes.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                content_type = next((value for name, value in headers if name.lower() == b"content-type"), b"")
                ours = security_headers(scope["path"], content_type)
                names = {name for name, _ in ours}
                others = [each for each in headers if each[0].lower() not in names]
                message = {**message, "headers": [*others, *ours]}
            await send(message)

        await self._app(scope, receive, answer)
