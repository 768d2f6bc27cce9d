"""What `popwheel admin timer` says: a contract with those who script against it."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.http import HttpServer, make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.cli.test_main import call, sentence_of
from tests.unit.controller.fake_timer_broker import NOW_MS, FakeTimerBroker


class Cluster(NamedTuple):
    """A controller over a real socket, and a broker that it knows."""

    admin: Callable[..., "asyncio.Future[Result]"]
    broker: FakeTimerBroker


@pytest.fixture
async def cluster(tmp_path: Path, quiet_server: None) -> AsyncIterator[Cluster]:
    broker = FakeTimerBroker("b1", ("later", NOW_MS + 1_005), ("later", NOW_MS + 90_000), ("far", NOW_MS + 10**9))
    registry = CollectorRegistry()
    controller = ControllerApp(
        Runtime(SystemClock(), random.Random(1), registry), ControllerOptions(), tmp_path, broker.connect
    )
    await controller.start()
    broker.key = controller.state.receipt_key
    channel = LocalChannel(controller.service)
    registrar = BrokerRegistrar(
        channel, lambda: ReplicaReport(group="b1", address="b1:1"), lambda group: None, random.Random(0)
    )
    await registrar.start()
    groups = controller.overseer.groups
    while "b1" not in groups.states or not groups.states["b1"].epoch:
        await asyncio.sleep(0)  # the line that says who leads must not stand among what a command prints
    server = HttpServer(make_http_app("test", "0", registry, {}, [controller.admin]), "127.0.0.1", 0)
    await server.start()

    def admin(*arguments: str) -> "asyncio.Future[Result]":
        words = ("admin", "--server", f"http://127.0.0.1:{server.port}", *arguments)
        return asyncio.ensure_future(asyncio.to_thread(call, *words))

    await admin("topic", "create", "later", "--type", "DELAY")
    yield Cluster(admin, broker)
    await server.stop()
    await registrar.stop()
    await channel.close()
    await controller.stop()


def lines_of(result: Result) -> list[list[str]]:
    """The words of each line."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


async def test_stats_as_tables(cluster: Cluster) -> None:
    assert lines_of(await cluster.admin("timer", "stats")) == [
        ["DUE", "PENDING"],
        ["within", "1m", "1"],
        ["within", "10m", "1"],
        ["within", "1h", "0"],
        ["within", "1d", "0"],
        ["later", "1"],
        ["all", "3"],
        [],
        ["TOPIC", "PENDING"],
        ["far", "1"],
        ["later", "2"],
        [],
        ["BROKER", "PENDING", "RECALLED", "READ", "UNTIL", "WRITTEN", "UNTIL", "BEHIND"],
        ["b1", "3", "0", "2023-11-14T22:13:20.000Z", "2023-11-14T22:13:20.001Z", "7", "ms"],
    ]


async def test_stats_as_json(cluster: Cluster) -> None:
    stats = json.loads((await cluster.admin("timer", "stats", "-o", "json")).stdout)
    assert (stats["pending"], stats["brokers"][0]["broker"], stats["unanswered"]) == (3, "b1", [])


async def test_timers_are_listed_and_recalled(cluster: Cluster) -> None:
    admin, broker = cluster
    handle = broker.handle("later", NOW_MS + 1_005)
    assert lines_of(await admin("timer", "list", "--topic", "later", "--within", "90s", "--limit", "1")) == [
        ["DUE", "MESSAGE_ID", "TAG", "KEYS", "BODY", "BROKER", "RECALL_HANDLE"],
        ["2023-11-14T22:13:21.005Z", "id-1005", "t", "k1,", "k2", "soon", "b1", handle],
    ]
    listed = json.loads((await admin("timer", "list", "--topic", "later", "-o", "json")).stdout)
    assert listed["timers"][0]["recall_handle"] == handle
    assert (len(listed["timers"]), listed["more"], listed["unanswered"]) == (2, False, [])
    recalled = await admin("timer", "recall", handle, "--topic", "later", "-o", "json")
    assert json.loads(recalled.stdout) == {"topic": "later", "message_id": "id-1005", "recalled": True}
    late = await admin("timer", "recall", handle, "--topic", "later")
    assert sentence_of(late) == "PRECONDITION_FAILED: it is too late: it has been or is being delivered"
    assert late.exit_code == 1
    stats = json.loads((await admin("timer", "stats", "-o", "json")).stdout)
    assert (stats["pending"], stats["brokers"][0]["recalled"]) == (2, 1)


async def test_that_there_are_more_is_said_beside_the_table(cluster: Cluster) -> None:
    result = await cluster.admin("timer", "list", "--topic", "later", "--limit", "1")
    assert result.stderr == "there are more: raise --limit, or ask for a shorter time with --within\n"
    assert (await cluster.admin("timer", "list", "--topic", "later")).stderr == ""


@pytest.mark.parametrize("words", [("stats",), ("list", "--topic", "later")])
async def test_a_broker_that_does_not_answer_is_named(cluster: Cluster, words: tuple[str, ...]) -> None:
    cluster.broker.error = RpcError(GrpcStatus.UNAVAILABLE, "connection refused")
    result = await cluster.admin("timer", *words)
    assert result.exit_code == 0
    assert result.stderr == "without the broker b1: the broker b1 cannot be reached now; try again\n"
    as_json = await cluster.admin("timer", *words, "-o", "json")
    assert as_json.stderr == ""
    assert json.loads(as_json.stdout)["unanswered"][0]["broker"] == "b1"


@pytest.mark.parametrize(
    ("span", "count"), [("1s", 0), ("2s", 1), ("89s", 1), ("90s", 2), ("1m", 1), ("2m", 2), ("1h", 2), ("1d", 2)]
)
async def test_spans_of_time(cluster: Cluster, span: str, count: int) -> None:
    listed = await cluster.admin("timer", "list", "--topic", "later", "--within", span, "-o", "json")
    assert len(json.loads(listed.stdout)["timers"]) == count


@pytest.mark.parametrize("span", ["", "10", "m", "0s", "-1s", "1.5h", "10 m", "1w", "10M", "1h30m", "9999999999s"])
def test_what_is_no_span_of_time(span: str) -> None:
    result = call("admin", "timer", "list", "--topic", "later", "--within", span)
    assert "is not a span of time; write 90s, 10m, 2h or 1d" in sentence_of(result)
    assert result.exit_code == 2


async def test_refusals_are_one_sentence(cluster: Cluster) -> None:
    for words, sentence in (
        (("list", "--topic", "nowhere"), "TOPIC_NOT_FOUND: there is no topic nowhere"),
        (("list", "--topic", "later", "--within", "9999d"), "BAD_REQUEST: within_ms: "),
        (("recall", "x", "--topic", "later"), "BAD_REQUEST: this recall handle was not issued for this topic"),
    ):
        assert sentence in sentence_of(await cluster.admin("timer", *words))
