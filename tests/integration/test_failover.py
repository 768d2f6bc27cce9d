"""Real replicas killed, paused and cut apart under load of the official client: nothing lost, nothing twice (S1, S2,
S3, T1, T2, P3); transactions end as their senders say, and message groups keep their order (X2, P6).

In the default run each drill is done once, all under one load, whose account is closed when they are over: what a lost
answer hides for its invisible duration is waited for once. If `FAILOVER_ROUNDS` is set (`make drills`: 10) each is done
as many times, and has a load and an account of its own.
"""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import COMMIT, ROLLBACK, Code, Message
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendResultEntry
from tests.harness.client import MessagingClient, bodies, half_message, ordered_message
from tests.harness.failover import CONTROLLER, GROUP, FailoverLoad, ReplicatedCluster

ROUNDS = int(os.environ.get("FAILOVER_ROUNDS", "0"))
PAUSE_S = 10.0 if ROUNDS else 7.0
CUT_S = 5.0
CONTROLLER_AWAY_S = 1.0
FIFO_GROUP = "orderly"
LINES = ("a", "b", "c")
LINE_MESSAGES = 5
TEST_S_MAX = 120 + 60 * ROUNDS

_names = (f"load{number}" for number in itertools.count())


class UnderLoad:
    """Strikes a cluster while a load works on it, and sees that nothing happens that must not.

    Args:
        cluster: that is struck.
        folder: for the load's output.
    """

    def __init__(self, cluster: ReplicatedCluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._load: FailoverLoad | None = None
        self._strikes: list[str] = []

    async def drill(self, name: str, strike: Callable[[int, int], Awaitable[None]], rounds: int = 1) -> None:
        """Strike under load; what is lost shows itself in `settle`, all else at once.

        Args:
            name: of the drill.
            strike: is told the numbers of master and slave; returns when the failure is over.
            rounds: how often, if `FAILOVER_ROUNDS` does not say.
        """
        cluster = self._cluster
        await cluster.wait_until_healthy()
        load = self._load = self._load or FailoverLoad(self._folder, cluster.address, next(_names))
        try:
            await load.flows(cluster)
            for _ in range(ROUNDS or rounds):
                before = await cluster.wait_until_healthy()
                await load.flows(cluster)
                self._strikes.append(f"{name} at {time.monotonic():.1f}")
                await strike(before["master"], 1 - before["master"])
                await cluster.wait_until_healthy()
                await load.flows(cluster)
            faults = load.account.verdict().faults
            assert faults.keys() <= {"lost", "timers_lost"}, self._explain(load)  # those may come yet
        except BaseException as error:
            self._end(load, error)
            raise
        if ROUNDS:
            await self.settle()

    async def settle(self) -> None:
        """Wait until all has come, and see that it has; the next drill has another load."""
        if self._load is None:
            return
        load = self._load
        try:
            verdict = await load.settle(self._cluster)
            assert verdict.faults == {}, self._explain(load)
            assert load.account.sent_count > 50 * len(self._strikes)
        except BaseException as error:
            self._end(load, error)
            raise
        self._end(load, None)

    def _end(self, load: FailoverLoad, error: BaseException | None) -> None:
        self._load, self._strikes = None, []
        load.__exit__(None if error is None else type(error), error, None)

    def _explain(self, load: FailoverLoad) -> str:
        return f"{load.account.verdict().explain()}; struck: {self._strikes}"


class Unfinished:
    """Transactions that are open, and a FIFO group that has read half of its messages: a failover changes neither.

    Args:
        client: the way to the proxy.
        name: what its topics' names end with.
    """

    def __init__(self, client: MessagingClient, name: str) -> None:
        self._client = client
        self._pledged, self._ordered = f"Pledged-{name}", f"Ordered-{name}"
        self._halves: dict[str, SendResultEntry] = {}
        self._held: list[Message] = []

    async def begin(self) -> None:
        """Before the strike."""
        client = self._client
        fates = ("commit before", "rollback before", "commit 0", "commit 1", "rollback 0", "rollback 1")
        sent = await client.send_messages(*(half_message(self._pledged, fate.encode()) for fate in fates))
        assert sent.status.code == Code.OK, sent.status
        self._halves = dict(zip(fates, sent.entries, strict=True))
        await self._end("commit before", "rollback before")
        for line in LINES:
            numbers = range(LINE_MESSAGES)
            sent = await client.send_messages(
                *(ordered_message(self._ordered, f"{line} {number}".encode(), line) for number in numbers)
            )
            assert sent.status.code == Code.OK, sent.status
        first = await client.receive_all(FIFO_GROUP, self._ordered, len(LINES))
        assert sorted(bodies(first)) == [f"{line} 0".encode() for line in LINES]
        assert (await client.ack(FIFO_GROUP, self._ordered, first)).status.code == Code.OK
        second = await client.receive_all(FIFO_GROUP, self._ordered, len(LINES))
        self._held = [each for each in second if each.system_properties.message_group == LINES[1]]
        done = [each for each in second if each not in self._held]
        assert (len(self._held), len(done)) == (1, len(LINES) - 1)
        assert (await client.ack(FIFO_GROUP, self._ordered, done)).status.code == Code.OK

    async def finish(self) -> None:
        """After it: all goes on as if nothing had been."""
        client = self._client
        await self._end(*self._halves)
        seen = await client.receive_all("pledgee", self._pledged, 3)
        assert sorted(bodies(seen)) == [b"commit 0", b"commit 1", b"commit before"]
        assert (await client.ack("pledgee", self._pledged, seen)).status.code == Code.OK
        got = {line: [f"{line} 0".encode(), f"{line} 1".encode()] for line in LINES}
        held_back = await client.receive_all(FIFO_GROUP, self._ordered, len(LINES) - 1)
        assert LINES[1] not in {each.system_properties.message_group for each in held_back}
        new, ready = held_back, [*self._held, *held_back]
        while ready:
            for each in new:
                got[each.system_properties.message_group].append(each.body)
            assert (await client.ack(FIFO_GROUP, self._ordered, ready)).status.code == Code.OK
            wanted = sum(len(each) < LINE_MESSAGES for each in got.values())
            new = ready = await client.receive_all(FIFO_GROUP, self._ordered, wanted, patience_s=5.0) if wanted else []
        assert got == {line: [f"{line} {number}".encode() for number in range(LINE_MESSAGES)] for line in LINES}
        assert (await client.receive("pledgee", self._pledged, poll_s=0.3)).messages == []

    async def _end(self, *fates: str) -> None:
        """Say of half messages how they ended; again, if that was said before."""
        for fate in fates:
            half = self._halves[fate]
            resolution = COMMIT if fate.startswith("commit") else ROLLBACK
            status = await self._client.end_transaction(self._pledged, half.transaction_id, resolution, half.message_id)
            assert status.code == Code.OK, (fate, status)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("failover")) as running:
        asyncio.run(running.make_topics())
        yield running


@pytest.fixture(scope="module")
def under_load(cluster: ReplicatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderLoad]:
    under_load = UnderLoad(cluster, tmp_path_factory.mktemp("load"))
    yield under_load
    asyncio.run(under_load.settle())


async def epoch(cluster: ReplicatedCluster) -> int:
    group = await cluster.wait_until_healthy()
    return int(group["epoch"])


@pytest.mark.timeout(TEST_S_MAX)
async def test_kill_9_of_the_master(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    made = await cluster.admin("group", "create", FIFO_GROUP, "--fifo")
    assert made.returncode == 0, made.stderr

    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        async with MessagingClient(cluster.address) as client:
            unfinished = Unfinished(client, next(_names))
            await unfinished.begin()
            cluster.signal(cluster.replica(master), signal.SIGKILL)
            after = await cluster.wait_for_epoch_after(before)
            assert after["master"] == slave
            await unfinished.finish()

    await under_load.drill("kill the master", strike)


@pytest.mark.timeout(TEST_S_MAX)
async def test_the_master_hangs_and_comes_back(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        cluster.signal(cluster.replica(master), signal.SIGSTOP)
        try:
            async with asyncio.timeout(PAUSE_S):
                after = await cluster.wait_for_epoch_after(before)
                assert after["master"] == slave
                await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            pass
        finally:
            cluster.signal(cluster.replica(master), signal.SIGCONT)

    await under_load.drill("pause the master", strike)


@pytest.mark.timeout(TEST_S_MAX)
@pytest.mark.parametrize("apart", ["controller", "slave", "both"])
async def test_the_master_is_cut_off(cluster: ReplicatedCluster, under_load: UnderLoad, apart: str) -> None:
    async def strike(master: int, slave: int) -> None:
        others = {"controller": [CONTROLLER], "slave": [cluster.replica(slave)]}
        for other in others.get(apart, [*others["controller"], *others["slave"]]):
            await asyncio.to_thread(cluster.cut, cluster.replica(master), other)
        try:
            await asyncio.sleep(CUT_S)
        finally:
            await asyncio.to_thread(cluster.heal)

    await under_load.drill(f"cut off from {apart}", strike)


@pytest.mark.timeout(TEST_S_MAX)
async def test_kill_9_of_the_controller(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        cluster.signal(CONTROLLER, signal.SIGKILL)
        await asyncio.sleep(CONTROLLER_AWAY_S)
        after = await cluster.wait_until_healthy()
        assert (after["epoch"], after["master"]) == (before, master), "it finds them as they were"

    await under_load.drill("kill the controller", strike)


@pytest.mark.timeout(TEST_S_MAX)
async def test_kill_9_of_all(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        cluster.kill_all()
        await cluster.wait_for_epoch_after(before)

    await under_load.drill("kill all", strike)


@pytest.mark.timeout(TEST_S_MAX)
async def test_switchover(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        done = await cluster.admin("broker", "switchover", GROUP, "--to", str(slave))
        assert done.returncode == 0, done.stderr
        after = await cluster.wait_for_epoch_after(before)
        assert after["master"] == slave

    await under_load.drill("switchover", strike, rounds=2)


@pytest.mark.timeout(TEST_S_MAX)
async def test_sigterm_hands_over(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    async def strike(master: int, slave: int) -> None:
        before = await epoch(cluster)
        cluster.signal(cluster.replica(master), signal.SIGTERM)
        after = await cluster.wait_for_epoch_after(before)
        assert (after["name"], after["master"]) == (GROUP, slave)

    await under_load.drill("SIGTERM", strike)


async def test_the_drill_by_command(cluster: ReplicatedCluster) -> None:
    await cluster.wait_until_healthy()
    done = await cluster.admin("drill", "kill-master", GROUP, "-o", "json")
    assert done.returncode == 0, done.stderr
    bill = json.loads(done.stdout)
    assert (bill["lost"], bill["repeated"], bill["words"]) == (0, 0, "")
    assert bill["master_after"] == 1 - bill["master_before"]
    assert bill["epoch_after"] > bill["epoch_before"]
    assert 0 < bill["without_send_s"] < bill["healthy_again_s"]


async def test_an_unclean_election_wants_a_word(cluster: ReplicatedCluster, under_load: UnderLoad) -> None:
    await under_load.settle()  # it may lose messages
    before = await cluster.wait_until_healthy()
    master, slave = before["master"], 1 - before["master"]
    cluster.signal(cluster.replica(slave), signal.SIGSTOP)
    try:
        await cluster.wait_until(lambda: (cluster.group() or before)["sync_state_set"] == [master], 20, "a smaller set")
        cluster.signal(cluster.replica(master), signal.SIGSTOP)
        cluster.signal(cluster.replica(slave), signal.SIGCONT)
        await cluster.wait_until(lambda: bool((cluster.group() or before)["trouble"]), 20, "trouble")
        await cluster.wait_until(lambda: _is_alive(cluster.group(), slave), 20, "the slave, alive")
        refused = await cluster.admin("broker", "elect-unclean", GROUP)
        assert refused.returncode == 2
        assert refused.stderr.startswith("popwheel: nothing was done: "), refused.stderr
        looked = await cluster.admin("broker", "elect-unclean", GROUP, "--dry-run", "-o", "json")
        word = f"lose-messages-of-{GROUP}"
        assert json.loads(looked.stdout)["word"] == word
        done = await cluster.admin("broker", "elect-unclean", GROUP, "--word", word, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["master"] == slave
    finally:
        for number in (master, slave):
            cluster.signal(cluster.replica(number), signal.SIGCONT)
    after = await cluster.wait_until_healthy()
    assert (after["master"], after["epoch"] > before["epoch"]) == (slave, True)


def _is_alive(group: dict[str, Any] | None, number: int) -> bool:
    return group is not None and any(each["alive"] for each in group["replicas"] if each["number"] == number)


@pytest.mark.timeout(TEST_S_MAX)
async def test_the_leading_controller_dies_and_then_the_master(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path, controllers=2) as cluster:
        await cluster.make_topics()

        async def strike(master: int, slave: int) -> None:
            before, controller = await epoch(cluster), cluster.leading_controller
            cluster.signal(controller, signal.SIGKILL)
            cluster.signal(cluster.replica(master), signal.SIGKILL)
            await cluster.wait_for_epoch_after(before)

        under_load = UnderLoad(cluster, tmp_path / "load")
        await under_load.drill("kill the leading controller and the master", strike)
        await under_load.settle()
