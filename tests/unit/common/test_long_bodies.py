"""Routes whose bodies may be longer than others': how long, and how many at once. And answers that go on for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry

from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.web.gate import BODY_BYTES_MAX, LONG_BODIES_MAX

LONG = 200_000


def limit(method: str, path: str) -> int:
    return LONG if (method, path) == ("POST", "/long") else BODY_BYTES_MAX


class Served:
    """A server with a route for long bodies, one for short ones, and one whose answer goes on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.go_on = asyncio.Event()
        self.waiting = 0
        self.ended = asyncio.Event()
        router = APIRouter()

        @router.post("/long")
        async def take_long(request: Request, waits: bool = False) -> int:
            length = len(await request.body())
            if waits:
                self.waiting += 1
                await self.go_on.wait()
            return length

        @router.post("/short")
        async def take_short(request: Request) -> int:
            return len(await request.body())

        @router.get("/events")
        async def go_on() -> StreamingResponse:
            return StreamingResponse(self.events(), media_type="text/event-stream")

        app = make_http_app("test", "0", self.registry, {}, [router], body_limit=limit)
        self.server = HttpServer(app, "127.0.0.1", 0, self.registry)

    async def events(self) -> AsyncIterator[str]:
        try:
            yield "first\n"
            await self.go_on.wait()
            yield "second\n"
        finally:
            self.ended.set()

    def refused(self, reason: str) -> float | None:
        return self.registry.get_sample_value("popwheel_http_refused_total", {"reason": reason})


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    served = Served()
    await served.server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.server.port}") as http:
            yield served, http
    finally:
        served.go_on.set()
        await served.server.stop()


async def test_only_their_route_takes_them() -> None:
    async def chunks(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(10_000)

    async with serving() as (served, http):
        assert (await http.post("/long", content=bytes(LONG))).json() == LONG
        assert (await http.post("/long", content=chunks(20))).json() == LONG
        assert (await http.post("/short", content=bytes(BODY_BYTES_MAX))).json() == BODY_BYTES_MAX
        for path, most in (("/long", LONG), ("/short", BODY_BYTES_MAX)):
            for refused in (
                await http.post(path, content=bytes(most + 1)),
                await http.post(path, content=chunks(21)),
            ):
                assert (refused.status_code, refused.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
                assert f"more than {most} bytes" in refused.json()["message"]
        assert served.refused("body") == 4


async def test_few_of_them_at_once() -> None:
    async with serving() as (served, http):
        waiting = [
            asyncio.create_task(http.post("/long?waits=true", content=bytes(LONG))) for _ in range(LONG_BODIES_MAX)
        ]
        async with asyncio.timeout(10):
            while served.waiting < LONG_BODIES_MAX:
                await asyncio.sleep(0)
        refused = await http.post("/long", content=bytes(LONG))
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_REQUESTS")
        assert served.refused("at_once") == 1
        assert (await http.post("/long", content=b"short")).json() == 5
        served.go_on.set()
        assert [(await each).json() for each in waiting] == [LONG] * LONG_BODIES_MAX
        assert (await http.post("/long", content=bytes(LONG))).json() == LONG


async def test_an_answer_that_goes_on_is_passed_on_as_it_comes() -> None:
    async with serving() as (served, http), http.stream("GET", "/events") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "first"
        served.go_on.set()
        assert await anext(lines) == "second"


async def test_an_answer_ends_when_its_client_goes() -> None:
    async with serving() as (served, http):
        async with http.stream("GET", "/events") as answer:
            assert await anext(answer.aiter_lines()) == "first"
        async with asyncio.timeout(10):
            await served.ended.wait()
