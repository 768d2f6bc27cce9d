"""Health, readiness, metrics, and refusals in one form."""

import asyncio
import signal
import socket

import httpx
import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry, Counter

from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.refusals import http_status


def client_of(reasons: dict[str, str | None]) -> httpx.AsyncClient:
    registry = CollectorRegistry()
    Counter("popwheel_test", "Counts", registry=registry).inc(3)
    router = APIRouter()

    @router.get("/refused")
    async def refuse() -> None:
        raise StatusError(Code.TOPIC_NOT_FOUND, "there is no topic x")

    @router.get("/not-leading")
    async def refuse_to_lead() -> None:
        raise NotLeadingError("not I", "10.0.0.7:8080")

    checks = {name: (lambda reason=reason: reason) for name, reason in reasons.items()}
    app = make_http_app("test", "0", registry, checks, [router])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_ready_when_every_part_is() -> None:
    async with client_of({"broker": None, "proxy": None}) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": {}})


async def test_not_ready_says_which_part_and_why_while_alive() -> None:
    async with client_of({"broker": "the disk is full", "proxy": None}) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"ready": False, "reasons": {"broker": "the disk is full"}}
        assert (await http.get("/healthz")).text == "ok\n"


async def test_metrics_for_prometheus() -> None:
    async with client_of({}) as http:
        answer = await http.get("/metrics")
        assert "popwheel_test_total 3.0" in answer.text
        assert answer.headers["content-type"].startswith("text/plain; version=")
        answer = await http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["content-type"].startswith("application/openmetrics-text")


async def test_refusals_have_one_form() -> None:
    async with client_of({}) as http:
        answer = await http.get("/refused")
        assert answer.status_code == 404
        assert answer.json() == {"code": "TOPIC_NOT_FOUND", "message": "there is no topic x"}
        not_leading = {"code": "HA_NOT_AVAILABLE", "message": "not I", "leader": "10.0.0.7:8080"}
        assert (await http.get("/not-leading")).json() == not_leading
        assert (await http.get("/nowhere")).json()["code"] == "NOT_FOUND"


async def test_what_a_caller_wrote_is_said_back_so_that_a_log_can_bear_it() -> None:
    async with client_of({}) as client:
        message = (await client.get("/no%1B[31m/" + "x" * 9_000)).json()["message"]
        assert message.startswith("GET /no\\x1b[31m/xxx")
        assert message.endswith("xxx: Not Found")
        assert len(message) < 400


def test_every_code_has_a_status_of_http() -> None:
    statuses = {name: http_status(number) for name, number in Code.items() if number >= 40000}
    assert statuses["ILLEGAL_TOPIC"] == 400
    assert statuses["PRECONDITION_FAILED"] == 409
    assert statuses["TOO_MANY_REQUESTS"] == 429
    assert statuses["PROXY_TIMEOUT"] == 504
    assert statuses["INTERNAL_SERVER_ERROR"] == 500
    assert statuses["FAILED_TO_CONSUME_MESSAGE"] == 500
    assert set(statuses.values()) <= {400, 401, 402, 403, 404, 408, 409, 413, 429, 431, 500, 501, 504}


async def test_served_in_our_own_loop_without_taking_the_signals() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    server = HttpServer(make_http_app("test", "0", CollectorRegistry(), {}), "127.0.0.1", 0)
    await server.start()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"http://127.0.0.1:{server.port}/healthz")
        assert answer.text == "ok\n"
        began = asyncio.get_running_loop().time()
        await server.stop()  # though a client keeps its connection open
        assert asyncio.get_running_loop().time() - began < 1.5
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_taken_port_is_an_error_of_the_system() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = HttpServer(make_http_app("test", "0", CollectorRegistry(), {}), "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await server.start()
    await server.stop()
