"""What `popwheel admin quarantine` says: a contract with those who script against it. The broker is a real core."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry

from popwheel_broker.calls.quarantine_server import QuarantineServer
from popwheel_broker.log.flusher import Flusher
from popwheel_common.clock import SystemClock
from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.service import Service
from tests.harness.poison import MARK, Poison
from tests.unit.broker.core_world import world_of
from tests.unit.broker.world import INVISIBLE_MS, World
from tests.unit.cli.test_main import call, sentence_of
from tests.unit.controller.test_app import until


class Cluster(NamedTuple):
    """A controller over a real socket, and a broker with one message that was quarantined."""

    admin: Callable[..., "asyncio.Future[Result]"]
    world: World
    id: str


@pytest.fixture
async def cluster(tmp_path: Path, quiet_server: None) -> AsyncIterator[Cluster]:
    world = world_of()
    world.put("t", MARK)
    world.pop("g", "t")
    world.clock.advance(INVISIBLE_MS)
    with Poison(["redelivery"]).spread():
        world.revive()
    world.flush()
    service = Service()
    flusher = Flusher(world.core.store, "sync", 500, lambda error: None)
    QuarantineServer(world.core, flusher, "b1", 10_000).bind(service)
    registry = CollectorRegistry()
    controller = ControllerApp(
        Runtime(SystemClock(), random.Random(1), registry),
        ControllerOptions(),
        tmp_path,
        lambda info: LocalChannel(service),
    )
    await controller.start()
    flusher.start()
    channel = LocalChannel(controller.service)
    registrar = BrokerRegistrar(
        channel, lambda: ReplicaReport(group="b1", address="b1:1"), lambda group: None, random.Random(2)
    )
    await registrar.start()
    server = HttpServer(make_http_app("test", "0", registry, {}, [controller.admin]), "127.0.0.1", 0)
    await server.start()

    def admin(*arguments: str) -> "asyncio.Future[Result]":
        words = ("admin", "--server", f"http://127.0.0.1:{server.port}", "quarantine", *arguments)
        return asyncio.ensure_future(asyncio.to_thread(call, *words))

    await until(lambda: bool(controller.state.brokers and controller.state.brokers["b1"].address))
    await admin("list")  # what is logged of the registration comes before what is asked
    (entry,) = world.core.quarantine.table
    yield Cluster(admin, world, entry.id)
    await server.stop()
    await registrar.stop()
    await channel.close()
    await controller.stop()
    await flusher.stop()


async def test_the_list_says_what_failed_and_where(cluster: Cluster) -> None:
    result = await cluster.admin("list")
    assert result.exit_code == 0, result.output
    heads, row = (line.split() for line in result.stdout.splitlines())
    assert heads == ["SINCE", "BROKER", "ID", "STEP", "TOPIC", "GROUP", "TAKEN", "REASON"]
    assert row[1:] == ["b1", cluster.id, "redelivery", "t", "g", "yes", "KeyError:", "'poison'"]
    listed = json.loads((await cluster.admin("list", "-o", "json")).stdout)
    assert (listed["total"], listed["unanswered"]) == (1, [])


async def test_one_is_shown_with_its_message(cluster: Cluster) -> None:
    shown = json.loads((await cluster.admin("show", "b1", cluster.id, "-o", "json")).stdout)
    assert (shown["body"], shown["body_encoding"], shown["body_bytes"]) == ("poison", "text", 6)
    assert (shown["message_id"], shown["unreadable"]) == (MARK.hex(), "")
    result = await cluster.admin("show", "b1", cluster.id)
    assert "message_id  " + MARK.hex() in "\n".join("  ".join(line.split()) for line in result.stdout.splitlines())


@pytest.mark.parametrize(("verb", "comes_again"), [(("retry",), True), (("drop", "--yes"), False)])
async def test_what_is_done_with_one_can_be_asked_twice(
    cluster: Cluster, verb: tuple[str, ...], comes_again: bool
) -> None:
    for changed in ("yes", "no"):
        result = await cluster.admin(*verb, "b1", cluster.id)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines()[1].split() == ["b1", cluster.id, changed]
    assert list(cluster.world.core.quarantine.table) == []
    cluster.world.flush()
    assert cluster.world.bodies(cluster.world.pop("g", "t")) == ([MARK] if comes_again else [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("show", "b1", "12"), "the quarantine has no id 12"),
        (("retry", "b1", "what"), "'what' is no id of the quarantine"),
        (("drop", "elsewhere", "12", "--yes"), "the broker elsewhere is not there now"),
    ],
)
async def test_what_is_not_there_is_named(cluster: Cluster, words: tuple[str, ...], sentence: str) -> None:
    result = await cluster.admin(*words)
    assert result.exit_code == 1
    assert sentence in sentence_of(result)
