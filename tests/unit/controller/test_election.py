"""Who may become master, and of what a group that the store does not know is made."""

from dataclasses import replace
from typing import Any

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import (
    NO_MASTER,
    GroupState,
    IllegalStepError,
    ReplicaRecord,
    follow_up,
    group_document,
    group_of,
)
from popwheel_controller.broker_groups.election import elect, found, missing_members, most_complete
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.group_policy import ObservedReplica, next_state, route, trouble


def report(number: int, epoch: int = 0, end: int = 0, **more: Any) -> ReplicaReport:
    return ReplicaReport(
        group="b",
        replica=number,
        address=f"r{number}:1",
        identity=more.pop("identity", b"%d" % number),
        last_epoch=epoch,
        end_position=end,
        **more,
    )


def reports(*all_of_them: ReplicaReport) -> dict[int, ReplicaReport]:
    return {each.replica: each for each in all_of_them}


def state(*members: int, master: int = 0, epoch: int = 3, version: int = 5) -> GroupState:
    records = {number: ReplicaRecord(number, f"r{number}:1", b"%d" % number) for number in range(3)}
    return GroupState("b", version, epoch, master, frozenset(members), records)


def living(*all_of_them: ReplicaReport) -> dict[int, ObservedReplica]:
    return {each.replica: ObservedReplica(Liveness.LIVING, each) for each in all_of_them}


def test_the_log_decides_first_by_epoch_then_by_length_then_by_number() -> None:
    assert most_complete({}) is None
    assert most_complete(reports(report(0, 2, 900), report(1, 3, 100), report(2, 3, 100))) == 1
    assert most_complete(reports(report(0, 3, 100), report(2, 3, 101))) == 2


def test_only_members_that_are_what_they_were_and_stay_are_elected() -> None:
    assert elect(state(0, 1), reports(report(1, 1, 1), report(2, 9, 9))) == 1
    assert elect(state(0, 1), reports(report(1, identity=b"new"))) is None
    assert elect(state(0, 1), reports(report(1, leaving=True), report(0))) == 0
    assert elect(state(0, 1), {}) is None


def test_a_suspect_member_is_chosen_only_if_all_of_the_set_are_there_and_suspect() -> None:
    sure, short, long = report(0, 3, 50), report(0, 3, 100, suspect=True), report(1, 3, 200, suspect=True)
    assert elect(state(0, 1), reports(long)) is None
    assert elect(state(0, 1), reports(sure, long)) == 0  # what it said last may be old, but it has everything
    assert elect(state(0, 1), reports(short, long)) == 1
    assert elect(state(0, 1, 2), reports(short, long)) is None
    assert elect(state(0, 1), reports(report(0, 3, 300, leaving=True), long)) is None
    assert elect(state(1), reports(long)) == 1


def test_a_group_that_waits_for_the_end_of_a_doubt_says_so() -> None:
    group = state(0, 1)
    new_process = ObservedReplica(Liveness.LIVING, report(0, 3, 100, suspect=True), earlier_epoch=3)
    alone = {0: new_process, 1: ObservedReplica(Liveness.DEAD)}
    assert next_state("b", group, alone) is None
    why = trouble(group, alone)
    assert why.startswith("replica 0 had to cut off the end of the log") and why.endswith("waits for replica 1")
    assert route("b", group, alone) is None
    soon = route("b", group, {0: new_process, 1: ObservedReplica(Liveness.UNSURE)})
    assert soon is not None and soon.address == ""
    other = ObservedReplica(Liveness.LIVING, report(1, 3, 200))
    assert trouble(group, {0: new_process, 1: other}) == ""
    after = next_state("b", group, {0: new_process, 1: other})
    assert after is not None and (after.epoch, after.master) == (4, 1)
    wiped = ObservedReplica(Liveness.LIVING, report(1, identity=b"new"))
    after = next_state("b", group, {0: new_process, 1: wiped})  # what it had is gone, there is nobody to wait for
    assert after is not None and (after.epoch, after.master) == (4, 0)


def test_a_master_that_begins_anew_is_chosen_only_if_no_other_member_will_come() -> None:
    """Its device may have lied; seed 61110 of the simulator of broker groups."""
    group = state(0, 1)
    anew = ObservedReplica(Liveness.LIVING, report(0, 3, 100), earlier_epoch=3)
    assert next_state("b", group, {0: anew, 1: ObservedReplica(Liveness.UNSURE)}) is None
    for end in (200, 50):  # what it said last may be old, but it has all that counts
        after = next_state("b", group, {0: anew, 1: ObservedReplica(Liveness.LIVING, report(1, 3, end))})
        assert after is not None and (after.epoch, after.master) == (4, 1)
    after = next_state("b", group, {0: anew, 1: ObservedReplica(Liveness.LIVING, report(1, 3, 200, suspect=True))})
    assert after is not None and (after.epoch, after.master) == (4, 0)
    after = next_state("b", group, {0: anew, 1: ObservedReplica(Liveness.DEAD)})
    assert after is not None and (after.epoch, after.master) == (4, 0)
    of_three = {
        0: ObservedReplica(Liveness.DEAD),
        1: ObservedReplica(Liveness.LIVING, report(1, 3, 200)),
        2: ObservedReplica(Liveness.UNSURE),
    }
    after = next_state("b", state(0, 1, 2), of_three)  # one that has served all the time waits for nobody
    assert after is not None and (after.epoch, after.master) == (4, 1)


def test_a_master_that_acknowledges_alone_is_compared_with_the_others_though_it_begins_anew() -> None:
    anew = ObservedReplica(Liveness.LIVING, report(0, 3, 300, acks_alone=True), earlier_epoch=3)
    for end, chosen in ((200, 0), (400, 1)):
        after = next_state("b", state(0, 1), {0: anew, 1: ObservedReplica(Liveness.LIVING, report(1, 3, end))})
        assert after is not None and after.master == chosen
    assert next_state("b", state(0, 1), {0: anew, 1: ObservedReplica(Liveness.UNSURE)}) is None


def test_a_replica_that_was_asked_without_effect_is_neither_chosen_nor_waited_for() -> None:
    group = state(0, 1)
    anew = ObservedReplica(Liveness.LIVING, report(0, 3, 100), earlier_epoch=3)
    for mute in (
        ObservedReplica(Liveness.LIVING, report(1, 3, 200), is_unreachable=True),
        ObservedReplica(Liveness.UNSURE, is_unreachable=True),
    ):
        after = next_state("b", group, {0: anew, 1: mute})
        assert after is not None and (after.epoch, after.master) == (4, 0)
    mute = ObservedReplica(Liveness.LIVING, report(1, 3, 200), is_unreachable=True)
    assert next_state("b", group, {0: ObservedReplica(Liveness.DEAD), 1: mute}) is None
    assert "replica 1 has registered, but does not answer" in trouble(
        group, {0: ObservedReplica(Liveness.DEAD), 1: mute}
    )


def test_a_lost_group_is_led_by_a_suspect_member_only_if_all_are() -> None:
    sure = report(0, 4, 100, version=6, sync_state_set=[0, 1])
    long, longer = (report(n, 4, 200 + n, version=6, sync_state_set=[0, 1], suspect=True) for n in range(2))
    for replicas, master in (((sure, longer), 0), ((long, longer), 1)):
        made = found("b", reports(*replicas))
        assert made is not None and made.master == master


def test_a_new_group_is_led_by_the_first() -> None:
    made = found("b", reports(report(2), report(1)))
    assert made is not None
    assert (made.epoch, made.master, made.sync_state_set, sorted(made.replicas)) == (1, 1, frozenset({1}), [1, 2])
    assert follow_up(None, made).version == 1
    assert found("b", {}) is None
    assert found("b", reports(report(1, leaving=True))) is None


def test_a_lost_group_needs_its_latest_set() -> None:
    zero, one, two = (report(n, 4, 100 + n, version=6 + (n == 0), sync_state_set=[0, 1]) for n in range(3))
    assert found("b", reports(one, two)) is None
    assert missing_members(reports(one, two)) == {0}
    made = found("b", reports(zero, one, two))
    assert made is not None
    assert (made.epoch, made.master, made.version) == (5, 1, 7)  # 2 has more, but is no member
    assert found("b", reports(report(0), one, two)) is None  # an empty log is no member's
    assert "replica 0, of the latest" in trouble(None, living(one, two))


def test_logs_without_any_word_of_a_set_are_compared_at_once() -> None:
    made = found("b", reports(report(0), report(1, 0, 10), report(2, 0, 20)))
    assert made is not None
    assert (made.epoch, made.master) == (1, 2)


def test_nothing_changes_while_all_is_well() -> None:
    alive = living(report(0, leading=True), report(1))
    assert next_state("b", state(0, 1), alive) is None
    assert route("b", state(0, 1), alive) is not None
    assert trouble(state(0, 1), alive) == ""
    doubtful = {0: ObservedReplica(Liveness.UNSURE), 1: ObservedReplica(Liveness.LIVING, report(1))}
    assert next_state("b", state(0, 1), doubtful) is None
    silent = {0: ObservedReplica(Liveness.DEAD), 1: ObservedReplica(Liveness.SILENT, report(1))}
    assert next_state("b", state(0, 1), silent) is None  # not from somebody who may be gone as well


def test_routes_say_whether_there_will_be_a_master() -> None:
    group = state(0, 1)
    nobody = route("b", group, {1: ObservedReplica(Liveness.UNSURE)})
    assert nobody is not None
    assert (nobody.address, nobody.epoch) == ("", 3)
    assert route("b", group, {2: ObservedReplica(Liveness.LIVING, report(2))}) is None
    assert route("b", group, {}) is None
    assert route("b", None, {}) is None
    assert trouble(group, {2: ObservedReplica(Liveness.LIVING, report(2))}).startswith("waits for replicas 0, 1")


def test_a_new_address_and_a_new_replica_are_taken_in() -> None:
    moved = report(1)
    moved.address = "elsewhere:1"
    after = next_state("b", state(0, 1), living(report(0, leading=True), moved, report(7)))
    assert after is not None
    assert (after.replicas[1].address, after.replicas[7].address) == ("elsewhere:1", "r7:1")
    assert (after.master, after.sync_state_set, after.epoch) == (0, frozenset({0, 1}), 3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"master": 1}, "a new master begins a new epoch"),
        ({"epoch": 2}, "epochs grow"),
        ({"epoch": 4, "master": 2, "sync_state_set": [2]}, "chosen from the set"),
        ({"epoch": 4, "master": 1, "sync_state_set": [0, 1]}, "alone in the set"),
        ({"epoch": 5, "master": 1, "sync_state_set": [1]}, "follows the one before"),
        ({"sync_state_set": []}, "never empty"),
        ({"sync_state_set": [1]}, "holds the master"),
        ({"sync_state_set": [0, 9]}, "known replicas"),
        ({"master": NO_MASTER, "sync_state_set": [0, 1, 2]}, "nobody joins"),
        ({"name": "other"}, "keeps its name"),
        ({"version": 4}, "versions grow"),
        ({"replicas": {}, "sync_state_set": [0]}, "known replicas|not forgotten"),
    ],
)
def test_steps_that_must_never_be(change: dict[str, Any], rule: str) -> None:
    if "sync_state_set" in change:
        change = {**change, "sync_state_set": frozenset(change["sync_state_set"])}
    with pytest.raises(IllegalStepError, match=rule):
        follow_up(state(0, 1), replace(state(0, 1), **change))


def test_an_operator_may_force_a_master_but_not_an_old_epoch() -> None:
    forced = state(0, 1).elected_unclean(ReplicaRecord(2, "r2:1", b"2"), 9, 20)
    stored = follow_up(state(0, 1), forced, forced=True)
    assert (stored.version, stored.epoch, stored.master, stored.sync_state_set) == (21, 10, 2, frozenset({2}))
    assert group_of(group_document(stored), "the file") == stored


def test_a_master_that_is_none_any_more_is_notified_who_is() -> None:
    with pytest.raises(StatusError, match="that is replica 0 in epoch 3"):
        state(0, 1).with_sync_state_set(2, 1, 5, [1])
    with pytest.raises(StatusError, match="it has none now"):
        state(0, 1, master=NO_MASTER).with_sync_state_set(3, 0, 5, [0])
