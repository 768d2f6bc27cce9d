"""What operators are notified of the changes of a broker group."""

from dataclasses import replace

from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, ReplicaRecord
from popwheel_controller.broker_groups.group_history import CHANGES_MAX, GroupHistory, differences
from tests.harness.manual_clock import ManualClock

RECORDS = {number: ReplicaRecord(number, f"host-{number}:1", b"id") for number in range(3)}
WELL = GroupState("b", 5, 2, 0, frozenset({0, 1}), {0: RECORDS[0], 1: RECORDS[1]})


def test_a_failover_is_reported_step_by_step() -> None:
    resigned = WELL.resigned()
    elected = resigned.elected(1)
    back = replace(elected, sync_state_set=frozenset({0, 1}))
    assert differences(WELL, resigned) == ("replica 0 is master no more",)
    assert differences(resigned, elected) == (
        "replica 1 is master, in epoch 3; before it nobody",
        "replica 0 is in sync no more",
    )
    assert differences(elected, back) == ("replica 0 is in sync",)
    assert differences(WELL, WELL.elected(0))[0] == "replica 0 is master, in epoch 3; before it replica 0"


def test_replicas_that_come_go_and_change_are_reported() -> None:
    assert differences(None, WELL) == ("the group is known",)
    assert differences(WELL, WELL.with_replica(RECORDS[2])) == ("replica 2 has joined",)
    assert differences(WELL, WELL.without_replica(1)) == ("replica 1 is forgotten",)
    moved = WELL.with_replica(replace(RECORDS[1], address="other:2"))
    assert differences(WELL, moved) == ("replica 1 is at other:2",)
    wiped = WELL.with_replica(replace(RECORDS[1], identity=b"new"))
    assert differences(WELL, wiped) == ("replica 1 is in sync no more", "replica 1 came back with an empty volume")
    assert differences(WELL, replace(WELL, version=6)) == ("nothing that is decided here",)


def test_the_latest_steps_are_kept_and_the_others_counted() -> None:
    clock = ManualClock(1_000)
    history = GroupHistory(2, clock)
    for number in range(CHANGES_MAX + 3):
        history.changed(WELL, replace(WELL, version=number))
    latest = history.of("b")
    assert (len(latest.changes), latest.dropped, latest.changes[0].version) == (CHANGES_MAX, 3, 3)
    assert (latest.changes[0].time_ms, latest.changes[0].master) == (clock.wall_ms(), 0)
    history.changed(WELL, replace(WELL, master=NO_MASTER))
    assert latest.changes[-1].master == NO_MASTER


def test_that_many_groups_are_known_at_the_most_and_none_once_another_controller_led() -> None:
    clock = ManualClock(1_000)
    history = GroupHistory(2, clock)
    for name in ("a", "b", "a", "c"):
        history.changed(None, replace(WELL, name=name))
    assert [len(history.of(name).changes) for name in "abc"] == [2, 0, 1]
    clock.advance(500)
    history.begin()
    assert (history.since_ms, len(history.of("a").changes)) == (clock.wall_ms(), 0)
