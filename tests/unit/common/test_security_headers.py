"""What browsers are reported by each answer of an HTTP server."""

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from popwheel_common.http import HttpServer, make_http_app


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    router = APIRouter(prefix="/api/v1")

    @router.get("/crash")
    async def crash() -> None:
        raise RuntimeError("what nobody thought of")

    server = HttpServer(make_http_app("test", "0", CollectorRegistry(), {}, [router]), "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "status"),
    [("/healthz", 200), ("/metrics", 200), ("/openapi.json", 200), ("/api/v1/crash", 500), ("/nowhere", 404)],
)
async def test_each_answer_has_them(http: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await http.get(path)
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_pages_of_documents_work_with_what_they_may(http: httpx.AsyncClient, path: str) -> None:
    page = await http.get(path)
    parts = [part.strip().partition(" ") for part in page.headers["content-security-policy"].split(";")]
    policy = {name: allowed for name, _, allowed in parts}
    assert policy["frame-ancestors"] == "'none'"
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert loaded and all(each.startswith("/static-offline-docs/") or "fonts" not in each for each in loaded)
    assert "'self'" in policy["script-src"] and "'self'" in policy["style-src"] and "'self'" in policy["connect-src"]
    assert ("<script>" not in page.text) or "'unsafe-inline'" in policy["script-src"]
    for each in loaded:
        if each.startswith("/static"):
            part = await http.get(each)
            assert (part.status_code, part.headers["x-content-type-options"]) == (200, "nosniff")
            assert part.headers.get("cache-control") != "no-store", "it is large, and the same for ever"


async def test_what_is_no_request_is_answered_with_them(server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"what is this\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400") and b"x-content-type-options: nosniff" in answer
