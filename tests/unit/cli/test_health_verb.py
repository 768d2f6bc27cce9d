"""What `popwheel admin health` says, and its exit code: for scripts and CI."""

import json
from typing import Any

import pytest

from popwheel_cli.admin import health
from tests.harness.ports import free_ports
from tests.unit.cli.fake_admin_api import STATUS, FakeAdminApi
from tests.unit.cli.test_main import call

PROXY = {"kind": "proxy", "name": "p1", "replica": None, "ready": True, "reason": ""}
ALL_WELL: dict[str, Any] = {**STATUS, "processes": [*STATUS["processes"], PROXY]}
READY = (200, {"ready": True, "reasons": {}})


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_wait", lambda seconds: None)


def test_all_is_well() -> None:
    with FakeAdminApi({"GET /readyz": READY, "GET /cluster/status": (200, ALL_WELL)}) as api:
        result = call("admin", "--server", api.url, "health")
        as_json = call("admin", "--server", api.url, "health", "-o", "json")
    assert (result.exit_code, result.stdout) == (0, "ready\n")
    assert json.loads(as_json.stdout) == {"ready": True, "problems": []}


def test_each_problem_has_a_line() -> None:
    late = {**PROXY, "ready": False, "reason": "the proxy knows of no broker yet"}
    group = {**STATUS["broker_groups"][0], "trouble": "no replica of the set lives"}
    status = {**STATUS, "processes": [late], "broker_groups": [group]}
    answers = {
        "GET /readyz": (503, {"ready": False, "reasons": {"controller": "it waits"}}),
        "GET /cluster/status": (200, status),
    }
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "health")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{api.url}: controller: it waits",
        "broker group broker-0: no replica of the set lives",
        "proxy p1: the proxy knows of no broker yet",
        "no broker is there",
    ]


def test_a_server_that_is_not_there_is_a_problem_and_waited_for() -> None:
    (port,) = free_ports(1)
    server = f"http://127.0.0.1:{port}"
    result = call("admin", "--server", server, "health")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{server} does not answer: ")
    waited = call("admin", "--server", server, "health", "--exit-when-ready", "--timeout", "1s")
    assert waited.exit_code == 1
    assert len(waited.stdout.splitlines()) == 1, "nothing has changed meanwhile"
    assert waited.stderr == "popwheel: not ready within 1 s\n"


def test_it_ends_when_all_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"GET /readyz": READY, "GET /cluster/status": (200, STATUS)}

    def comes(seconds: float) -> None:
        answers["GET /cluster/status"] = 200, ALL_WELL

    monkeypatch.setattr(health, "_wait", comes)
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "health", "--exit-when-ready")
    assert (result.exit_code, result.stdout) == (0, "no proxy is there\nready\n")


def test_a_word_that_is_no_span_of_time() -> None:
    result = call("admin", "health", "--timeout", "soon")
    assert result.exit_code == 2
    assert "is not a span of time" in result.stderr


def test_watch_has_a_line_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"GET /readyz": READY, "GET /cluster/status": (200, STATUS)}
    looks = 0

    def comes(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            answers["GET /cluster/status"] = 200, ALL_WELL
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(health, "_wait", comes)
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "health", "--watch", "-o", "json")
    assert [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")] == [
        {"ready": False, "problems": ["no proxy is there"]},
        {"ready": True, "problems": []},
    ]
