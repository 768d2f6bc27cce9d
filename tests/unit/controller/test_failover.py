"""What becomes of a broker group whose replicas die, hang, come back, lose their volume, or want to stop."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import DescribeBrokerGroupRequest
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState
from popwheel_controller.broker_groups.group_writer import Decision
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_rpc.methods import DESCRIBE_BROKER_GROUP
from tests.unit.controller.fake_replicas import DETECTION_MS, GROUP, FakeReplica, Scene, masters, scene, until
from tests.unit.controller.memory_store import MemoryStore


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path) as made:
        yield made


async def test_the_first_replica_leads_and_the_others_follow(here: Scene) -> None:
    first, second = FakeReplica(1), FakeReplica(0)
    await here.join(first, second)
    assert (first.leads, second.leads) == (1, None)
    assert (second.group.master, list(second.group.sync_state_set)) == (1, [1])
    await until(lambda: len(first.group.replicas) == 2)
    assert {replica.number: replica.address for replica in first.group.replicas} == {0: "replica-0:1", 1: "replica-1:1"}
    assert here.route() == ("replica-1:1", 1)


async def test_a_killed_master_is_followed_by_the_most_complete_of_the_set_within_100_ms(tmp_path: Path) -> None:
    took = []
    for attempt in range(3):  # the machine may be busy with something else in one of them
        async with scene(tmp_path / str(attempt)) as here:
            master, behind, ahead, outside = (FakeReplica(number) for number in range(4))
            await here.led_with(master, behind, ahead)
            await here.join(outside)
            for replica, end in ((master, 120), (behind, 100), (ahead, 110), (outside, 120)):
                replica.report.end_position, replica.report.last_epoch = end, 1
            await asyncio.sleep(0.1)  # until all of this was reported
            began = time.perf_counter()
            master.kill()
            await until(lambda: ahead.leads == 2)  # noqa: B023 - waited for here
            took.append(time.perf_counter() - began)
            await until(lambda: here.route() == ("replica-2:1", 2))
            await until(lambda: behind.group.master == outside.group.master == 2)  # noqa: B023
            assert list(ahead.group.sync_state_set) == [2]
    assert min(took) < 0.1


async def test_nobody_from_outside_the_set_is_elected(here: Scene) -> None:
    master, outside = FakeReplica(0), FakeReplica(1)
    await here.join(master, outside)
    outside.report.end_position = 10**6
    master.kill()
    await until(lambda: here.route() is None)
    assert here.app.state.away == {GROUP}
    await asyncio.sleep(2 * DETECTION_MS / 1000)
    assert masters(outside.learned) == [(1, 0)]
    back = master.next_life()
    await here.join(back)
    assert back.leads == 2
    await until(lambda: here.route() == ("replica-0:1", 2))
    assert not here.app.state.away


async def test_a_master_that_hangs_is_replaced_after_the_detection_time_and_learns_of_it_when_it_comes_back(
    here: Scene,
) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    began = time.perf_counter()
    master.beats = False
    await until(lambda: slave.leads == 2)
    assert DETECTION_MS / 1000 * 0.9 <= time.perf_counter() - began < DETECTION_MS / 1000 + 0.6
    await until(lambda: master.leads is None)
    master.beats = True
    await slave.ask_for_set(here.channel, 0, 1)
    assert here.route() == ("replica-1:1", 2)


async def test_a_stream_that_breaks_while_the_process_lives_changes_nothing(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    master.cut()
    await asyncio.sleep(DETECTION_MS / 1000 / 2)
    assert here.route() == ("replica-0:1", 1)
    await master.join(here.channel)
    await asyncio.sleep(1.5 * DETECTION_MS / 1000)
    assert (here.route(), masters(master.learned)) == (("replica-0:1", 1), [(1, 0)])


async def test_one_that_does_not_come_back_is_dead_after_the_detection_time(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    master.cut()
    await until(lambda: slave.leads == 2)


async def test_a_new_process_of_the_master_begins_a_new_epoch(here: Scene) -> None:
    master = FakeReplica(0)
    await here.join(master)
    master.kill()
    back = master.next_life(address="replica-0:2")
    await here.join(back)
    assert masters(back.learned) == [(2, 0)]
    await until(lambda: here.route() == ("replica-0:2", 2))


async def test_of_two_processes_with_one_number_the_older_has_to_stop(here: Scene) -> None:
    older = FakeReplica(0)
    await here.join(older)
    newer = older.next_life(address="replica-0:2")
    await here.join(newer)
    await until(lambda: older.refusal is not None)
    assert isinstance(older.refusal, StatusError)
    assert (older.refusal.code, newer.leads) == (Code.PRECONDITION_FAILED, 2)


async def test_a_wiped_member_leaves_the_set_and_wins_nothing(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    slave.kill()
    wiped = FakeReplica(1, b"another volume")
    await here.join(wiped)
    await until(lambda: list(master.group.sync_state_set) == [0])
    master.kill()
    await until(lambda: here.route() is None)
    assert masters(wiped.learned) == [(1, 0)]


async def test_a_wiped_master_is_followed_by_another_member(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    master.cut()
    wiped = FakeReplica(0, b"another volume")
    await here.join(wiped)
    await until(lambda: slave.leads == 2)
    assert list(slave.group.sync_state_set) == [1]


async def test_if_the_only_member_is_wiped_an_operator_must_decide(here: Scene) -> None:
    master, outside = FakeReplica(0), FakeReplica(1)
    await here.join(master, outside)
    master.kill()
    wiped = FakeReplica(0, b"another volume")
    here.machines.add(wiped)
    await wiped.join(here.channel)
    await until(lambda: outside.group.master == NO_MASTER)
    assert here.route() is None
    api = make_http_app("test", "0", CollectorRegistry(), {}, [here.app.admin])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://here/api/v1/brokers") as http:
        shown = (await http.get(f"/{GROUP}")).json()
        assert shown["master"] is None
        assert "came with an empty volume" in shown["trouble"]
        assert {one["number"]: one["wiped"] for one in shown["replicas"]} == {0: True, 1: False}
        would = (await http.post(f"/{GROUP}/unclean-election?dry_run=true", json={"replica": 1})).json()
        assert (would["replicas"], would["word"]) == ([1], f"lose-messages-of-{GROUP}")
        assert "they would be lost for good" in would["loss"] and outside.leads is None
        refused = await http.post(f"/{GROUP}/unclean-election", json={"replica": 1})
        assert refused.status_code == 400
        assert f"lose-messages-of-{GROUP}" in refused.json()["message"]
        assert "A silent master need not be dead" in refused.json()["message"], "what it can't know"
        assert outside.leads is None
        body = {"replica": 1, "word": f"lose-messages-of-{GROUP}"}
        done = await http.post(f"/{GROUP}/unclean-election", json=body)
        assert (done.status_code, done.json()["master"], done.json()["sync_state_set"]) == (200, 1, [1])
        again = await http.post(f"/{GROUP}/unclean-election", json=body)
        assert (again.status_code, "has a master" in again.json()["message"]) == (409, True)
    await until(lambda: outside.leads == 2 and bool(wiped.learned) and wiped.group.master == 1)


async def test_nobody_is_given_up_by_an_operators_word_while_the_master_may_live(here: Scene) -> None:
    """Neither one that this controller has not learned of yet, nor one whose stream just broke."""
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    await master.ask_for_set(here.channel, 0)
    elect_unclean = here.app._transfers.elect_unclean
    for away in ("the controller", "the stream"):
        if away == "the controller":
            await here.restart()
            elect_unclean = here.app._transfers.elect_unclean
            await slave.join(here.channel)
        else:
            await master.join(here.channel)
            await asyncio.sleep(0.1)
            master.cut()
            await asyncio.sleep(0.1)
        with pytest.raises(StatusError, match="replica 0 of broker-0 may live") as caught:
            await elect_unclean(GROUP, 1, f"lose-messages-of-{GROUP}")
        assert caught.value.code == Code.PRECONDITION_FAILED
    master.kill()
    await until(lambda: here.route() is None)
    assert (await elect_unclean(GROUP, 1, f"lose-messages-of-{GROUP}")).master == 1


async def test_a_controller_that_was_away_changes_nothing_that_went_well(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    version = master.group.version
    await here.restart()
    assert here.route() == ("replica-0:1", 1)  # before anybody has come
    await master.join(here.channel)
    await slave.join(here.channel)
    await asyncio.sleep(1.5 * DETECTION_MS / 1000)
    assert (here.route(), master.group.version) == (("replica-0:1", 1), version)


async def test_a_restarted_controller_waits_for_the_master_before_it_elects_another(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    await here.restart()
    began = time.perf_counter()
    await slave.join(here.channel)
    await until(lambda: slave.leads == 2)
    assert time.perf_counter() - began > DETECTION_MS / 1000 / 2


async def test_a_store_that_lost_a_group_waits_for_the_whole_latest_set(here: Scene) -> None:
    """Who is most complete leads, but only when everybody is there who may know of a smaller set."""
    log: dict[str, Any] = {"epoch": 4, "last_epoch": 4, "end_position": 100}
    one = FakeReplica(1, version=7, sync_state_set=[0, 1], **log)
    outside = FakeReplica(2, version=6, sync_state_set=[0, 1, 2], **{**log, "end_position": 400})
    here.machines.add(one, outside)
    for replica in (one, outside):
        await replica.join(here.channel)
    await asyncio.sleep(0.3)
    assert (one.learned, outside.learned, here.route()) == ([], [], None)
    zero = FakeReplica(0, version=6, sync_state_set=[0, 1, 2], **log)
    await here.join(zero)
    assert (zero.leads, zero.group.version) == (5, 8)
    await until(lambda: here.route() == ("replica-0:1", 5))


async def test_an_empty_log_is_nobodys_log_in_a_lost_group(here: Scene) -> None:
    one = FakeReplica(1, end_position=100, last_epoch=4, version=7, sync_state_set=[0, 1])
    zero = FakeReplica(0, b"another volume")
    here.machines.add(one, zero)
    for replica in (one, zero):
        await replica.join(here.channel)
    await asyncio.sleep(0.3)
    assert one.learned == zero.learned == []


async def test_a_broker_of_a_release_without_replicas_leads_at_once(here: Scene) -> None:
    old = FakeReplica(0, end_position=1000)
    await here.join(old)
    assert old.leads == 1


async def test_a_stranger_stays_out(here: Scene) -> None:
    """A folder of another cluster, whose epochs are later: it would win, and its log would replace the group's."""
    master = FakeReplica(0)
    await here.join(master)
    stranger = FakeReplica(1, end_position=10**6, last_epoch=9, version=50, sync_state_set=[0, 1])
    here.machines.add(stranger)
    await stranger.join(here.channel)
    await asyncio.sleep(0.1)
    assert (stranger.learned, master.leads, len(master.group.replicas)) == ([], 1, 1)


async def test_a_store_that_was_set_back_goes_on_from_what_all_its_members_know(here: Scene) -> None:
    zero, one = FakeReplica(0), FakeReplica(1)
    await here.led_with(zero, one)
    for replica in (zero, one):
        replica.kill()
    await here.restart()
    later = {"version": 30, "epoch": 8, "last_epoch": 8}
    back = [replica.next_life(**later) for replica in (zero, one)]
    for replica, end in zip(back, (500, 600), strict=True):
        replica.report.end_position = end
        replica.report.sync_state_set[:] = [0, 1]
    here.machines.add(*back)
    await back[0].join(here.channel)
    await asyncio.sleep(0.1)
    assert back[0].learned == []
    await back[1].join(here.channel)
    await until(lambda: back[1].leads == 9)
    assert back[1].group.version > 30


async def test_asking_for_a_set_needs_the_latest_epoch_and_version(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.join(master, slave)
    await until(lambda: len(master.group.replicas) == 2)
    for wrong in ({"epoch": 2}, {"version": 1}, {"replica": 1}):
        for name, value in wrong.items():
            was = getattr(master.report, name)
            setattr(master.report, name, value)
            with pytest.raises(StatusError) as caught:
                await master.ask_for_set(here.channel, 0, 1)
            assert caught.value.code == Code.PRECONDITION_FAILED
            setattr(master.report, name, was)
    for numbers in ((1,), (), (0, 5)):
        with pytest.raises(StatusError) as caught:
            await master.ask_for_set(here.channel, *numbers)
        assert caught.value.code == Code.BAD_REQUEST
    assert list((await master.ask_for_set(here.channel, 0, 1)).sync_state_set) == [0, 1]
    assert list((await master.ask_for_set(here.channel, 0)).sync_state_set) == [0]


async def test_a_master_that_leaves_hands_over_first(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    began = time.perf_counter()
    master.report.leaving = True
    await until(lambda: slave.leads == 2 and master.leads is None)
    assert time.perf_counter() - began < 0.3
    assert master.handed_over_to == [1]
    await until(lambda: here.route() == ("replica-1:1", 2))


async def test_a_master_that_leaves_alone_is_let_go_at_once(here: Scene) -> None:
    master = FakeReplica(0)
    await here.join(master)
    master.report.leaving = True
    await until(lambda: master.group.master == NO_MASTER and here.route() is None)
    master.kill()
    back = master.next_life()
    await here.join(back)
    await until(lambda: back.leads == 2)


async def test_a_master_that_leaves_waits_a_moment_for_a_slave_that_catches_up(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.join(master, slave)
    await until(lambda: len(master.group.replicas) == 2)
    master.report.leaving = True
    await asyncio.sleep(0.2)
    assert master.leads == 1
    await master.ask_for_set(here.channel, 0, 1)
    await until(lambda: slave.leads == 2)


async def test_an_operator_passes_the_role_on(here: Scene) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.join(master, slave)
    await until(lambda: len(master.group.replicas) == 2)
    switch = here.app._transfers.switch
    for to, code, words in (
        (None, Code.PRECONDITION_FAILED, "its master must stay"),
        (1, Code.PRECONDITION_FAILED, "does not have everything yet"),
        (0, Code.PRECONDITION_FAILED, "is the master of broker-0 already"),
        (7, Code.NOT_FOUND, "has no replica 7; it has 0, 1"),
    ):
        with pytest.raises(StatusError) as caught:
            await switch(GROUP, to)
        assert (caught.value.code, words in caught.value.message) == (code, True), caught.value.message
    with pytest.raises(StatusError, match="no broker group nothing"):
        await switch("nothing", None)
    await master.ask_for_set(here.channel, 0, 1)
    master.transfer_error = StatusError(Code.PROXY_TIMEOUT, "not yet")
    with pytest.raises(StatusError, match="not yet"):
        await switch(GROUP, 1)
    assert here.route() == ("replica-0:1", 1)
    master.transfer_error = None
    assert (await switch(GROUP, None)).master == 1
    await until(lambda: slave.leads == 2 and master.leads is None)


async def test_a_controller_that_ceases_to_lead_while_a_master_hands_over_says_so(
    here: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = FakeReplica(0), FakeReplica(1)
    await here.led_with(master, slave)
    change = here.app.overseer.change

    async def change_without_a_lead(group: str, decision: Decision, *, forced: bool = False) -> GroupState:
        # Forgotten before, the group would be back by the next report of a replica.
        return await change(group, lambda _: decision(None), forced=forced)

    monkeypatch.setattr(here.app.overseer, "change", change_without_a_lead)
    with pytest.raises(StatusError, match="this controller leads no more") as caught:
        await here.app._transfers.switch(GROUP, 1)
    assert caught.value.code == Code.HA_NOT_AVAILABLE


async def test_while_the_store_is_away_nobody_is_elected(tmp_path: Path) -> None:
    """C2: and no set becomes smaller; when it is back all goes on."""
    store = MemoryStore()
    async with scene(tmp_path, shared=store, replication={"lease_ms": 60_000}) as here:
        master, slave = FakeReplica(0), FakeReplica(1)
        await here.led_with(master, slave)
        store.away = True
        with pytest.raises(StatusError) as caught:
            await master.ask_for_set(here.channel, 0)
        assert caught.value.code == Code.INTERNAL_SERVER_ERROR
        master.kill()
        await asyncio.sleep(0.5)
        assert slave.leads is None
        store.away = False
        await until(lambda: slave.leads == 2)


async def test_impossible_reports_are_refused(here: Scene) -> None:
    for wrong in (
        {"group": "no good"},
        {"group": ""},
        {"address": ""},
        {"address": "host"},
        {"address": "a b:80"},
        {"address": "::1:80"},
        {"replica": -1},
        {"replica": 64},
        {"identity": bytes(65)},
    ):
        replica = FakeReplica(0)
        for name, value in wrong.items():
            setattr(replica.report, name, value)
        await replica.join(here.channel)
        await until(lambda replica=replica: replica.refusal is not None)  # type: ignore[misc]
        assert isinstance(replica.refusal, StatusError)
        assert replica.refusal.code == Code.BAD_REQUEST
        replica.cut()
    assert isinstance(here.app._state_writer, StateWriter)
    assert here.app.state.brokers == {}


async def test_nothing_is_kept_of_groups_that_are_not_stored(tmp_path: Path) -> None:
    """Whoever registers under ever new names would fill the memory: only the stored groups are counted."""
    async with scene(tmp_path, broker_groups_max=1) as here:
        first = FakeReplica(0)
        await here.join(first)
        overseer = here.app.overseer
        for number in range(5):
            other = FakeReplica(0)
            other.report.group = f"made-up-{number}"
            await other.join(here.channel)
            await until(lambda number=number: f"made-up-{number}" in overseer.names())  # type: ignore[misc]
            await asyncio.sleep(0.05)
            other.kill()
        await until(lambda: overseer.names() == [GROUP])
        await until(lambda: {group for group, _ in overseer.replicas._last} == {GROUP})
        assert {group for group, _ in overseer.replicas._detector._watched} == {GROUP}
        assert set(overseer._seen) == {GROUP}
        assert set(overseer._to_retry) | set(overseer._dirty) == set()
        assert set(overseer.groups._locks) <= {GROUP}
        assert first.leads == 1


async def test_as_many_groups_as_may_be(tmp_path: Path) -> None:
    async with scene(tmp_path, broker_groups_max=1) as here:
        first, second = FakeReplica(0), FakeReplica(0)
        second.report.group = "broker-1"
        await here.join(first)
        await second.join(here.channel)
        await asyncio.sleep(0.1)
        assert (second.learned, list(here.app.overseer.groups.states)) == ([], [GROUP])
        second.cut()


async def test_who_cannot_register_yet_may_ask_where_the_others_are(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        await here.led_with(FakeReplica(0), FakeReplica(1))
        group = await here.channel.call(DESCRIBE_BROKER_GROUP, DescribeBrokerGroupRequest(group=GROUP))
        assert [replica.number for replica in group.replicas] == [0, 1]
        assert all(replica.address for replica in group.replicas)
        with pytest.raises(StatusError) as refused:
            await here.channel.call(DESCRIBE_BROKER_GROUP, DescribeBrokerGroupRequest(group="another"))
        assert refused.value.code == Code.NOT_FOUND


async def test_who_says_that_it_leaves_or_is_dead_is_not_counted_on(here: Scene) -> None:
    master, slave, other = FakeReplica(0), FakeReplica(1), FakeReplica(2)
    await here.led_with(master, slave, other)

    async def counted_on() -> list[int]:
        group = await here.channel.call(DESCRIBE_BROKER_GROUP, DescribeBrokerGroupRequest(group=GROUP))
        return [replica.number for replica in group.replicas if replica.alive]

    assert await counted_on() == [0, 1, 2]
    slave.report.leaving = True
    async with asyncio.timeout(5):
        while await counted_on() != [0, 2]:
            await asyncio.sleep(0.01)
    other.kill()
    async with asyncio.timeout(5):
        while await counted_on() != [0]:
            await asyncio.sleep(0.01)
