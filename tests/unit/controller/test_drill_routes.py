"""A master that is killed by the admin API: by whom, where, and what is refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_cli.process.broker_process import kill_replica
from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.cluster.processes import Processes
from tests.unit.controller.fake_replicas import GROUP, FakeReplica, Scene, scene

PID = 4711
PATH = f"/api/v1/brokers/{GROUP}/kill-master"


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as made:
        yield made


def browser(here: Scene) -> httpx.AsyncClient:
    app = make_http_app("test", "0", CollectorRegistry(), {}, [here.app.admin])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def known_as(monkeypatch: pytest.MonkeyPatch, pid: int | None) -> None:
    """Have the controller know the numbers of processes, or not."""
    before = Processes.members

    def members(self: Processes, registrations: Any) -> Any:
        return [replace(each, pid=pid) for each in before(self, registrations)]

    monkeypatch.setattr(Processes, "members", members)


async def test_a_master_is_killed_where_that_may_be(here: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.led_with(FakeReplica(0), FakeReplica(1))
    known_as(monkeypatch, PID)
    killed: list[tuple[int, str, int]] = []
    here.app.kill_replica = lambda *whom: killed.append(whom)
    async with browser(here) as http:
        would = await http.post(PATH, params={"dry_run": "true"})
        assert (would.json(), killed) == ({"name": GROUP, "replica": 0, "pid": PID, "killed": False}, [])
        assert (await http.post(PATH)).json()["killed"] is True
        assert killed == [(PID, GROUP, 0)]
        assert (await http.post("/api/v1/brokers/nothing/kill-master")).status_code == 404


async def test_elsewhere_it_is_refused_by_a_sentence(here: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.led_with(FakeReplica(0))
    async with browser(here) as http:
        answer = await http.post(PATH)
    assert (answer.status_code, "popwheel cluster" in answer.json()["message"]) == (409, True)
    known_as(monkeypatch, None)
    here.app.kill_replica = lambda *whom: pytest.fail("it has no number")
    async with browser(here) as http:
        assert "is not here" in (await http.post(PATH)).json()["message"]


def test_no_other_process_is_killed() -> None:
    with pytest.raises(StatusError, match="nothing was killed: process 1 here is another one") as caught:
        kill_replica(1, GROUP, 0)
    assert caught.value.code == Code.PRECONDITION_FAILED
