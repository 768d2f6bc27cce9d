"""What follows a try that did not go well: no I/O, no time but what it is passed."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.log.refusals import WriterStoppedError
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.brokers.group_gate import ANYWHERE, for_sends
from popwheel_proxy.brokers.retry_policy import LEFT_S, NOBODY_S, Fault, SendTries, Step, fault_of, give_up_at
from popwheel_proxy.protocol.errors import NoMasterError
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

GROUPS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (NotProcessedError("refused"), Fault.NOT_REACHED),
        (NotProcessedError("no connection in time", GrpcStatus.DEADLINE_EXCEEDED), Fault.NOT_REACHED),
        (NoMasterError("a", known=True), Fault.NO_MASTER),
        (RpcError(GrpcStatus.UNAVAILABLE, "lost"), Fault.OUTCOME_UNKNOWN),
        (RpcError(GrpcStatus.DEADLINE_EXCEEDED, "too slow"), Fault.OUTCOME_UNKNOWN),
        (RpcError(GrpcStatus.CANCELLED, "by its handler"), Fault.OUTCOME_UNKNOWN),
        (RpcError(GrpcStatus.INTERNAL, "the handler failed"), None),
        (RpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too long"), None),
        (StatusError(Code.HA_NOT_AVAILABLE, "does not lead"), Fault.NOT_LEADING),
        (StatusError(Code.SLAVE_PERSISTENCE_TIMEOUT, "deposed meanwhile"), Fault.OUTCOME_UNKNOWN),
        (WriterStoppedError("the device fails"), Fault.NOT_LEADING),
        (WriterStoppedError("the device fails", outcome_unknown=True), Fault.OUTCOME_UNKNOWN),
        (StatusError(Code.TOO_MANY_REQUESTS, "too much"), Fault.BUSY),
        (StatusError(Code.MASTER_PERSISTENCE_TIMEOUT, "the disk is full"), None),
        (StatusError(Code.TOPIC_NOT_FOUND, "no"), None),
    ],
)
def test_what_failures_mean(error: StatusError | RpcError, fault: Fault | None) -> None:
    assert fault_of(error) is fault


def test_until_when() -> None:
    assert give_up_at(10.0, None, 0.3, 10.0, there=True) == 20.0
    assert give_up_at(10.0, None, 0.3, 10.0, there=False) == 10.0 + NOBODY_S
    assert give_up_at(10.0, 12.0, 0.3, 10.0, there=True) == 11.7
    assert give_up_at(10.0, 60.0, 0.3, 10.0, there=True) == 20.0


def test_a_bound_send_waits_where_it_belongs() -> None:
    tries = SendTries(only=("a", 3))
    for fault in (Fault.NO_MASTER, Fault.NOT_REACHED, Fault.NOT_LEADING, Fault.OUTCOME_UNKNOWN):
        assert tries.failed(("a", 3), fault, GROUPS, GROUPS, GROUPS, 0.0) is Step.WAIT
        assert (tries.place, tries.gate) == (("a", 3), for_sends("a"))
    for now in (0.0, LEFT_S):
        tries.check_groups(("b",), now)
        assert tries.place == ("a", 3), "also when its group is gone"


def test_a_send_of_unknown_outcome_waits_for_a_group_that_has_left_and_then_others_may_take_it() -> None:
    """One without slaves leaves when it is killed, and is back when it was started again with what it had."""
    tries = SendTries()
    assert tries.failed(("a", 3), Fault.OUTCOME_UNKNOWN, ("b",), ("b",), ("b",), 10.0) is Step.WAIT
    assert (tries.gate, tries.wait_until) == (for_sends("a"), 10.0 + LEFT_S)
    tries.check_groups(("a", "b"), 11.0)
    assert (tries.place, tries.wait_until) == (("a", 3), inf)
    tries.check_groups(("b",), 20.0)
    assert tries.place == ("a", 3), "its time begins anew"
    assert tries.failed(("a", 3), Fault.NO_MASTER, ("b",), ("b",), ("b",), 20.0 + LEFT_S) is Step.ELSEWHERE
    assert tries.place is None
    assert tries.past == {"a"}


def test_a_send_of_unknown_outcome_goes_back_to_a_group_that_was_gone_for_long() -> None:
    """All its replicas may die at once and come back with what they had: without `again` it would be stored twice."""
    tries = SendTries()
    tries.failed(("a", 3), Fault.OUTCOME_UNKNOWN, ("a",), (), (), 0.0)
    tries.check_groups((), 0.0)
    tries.check_groups((), LEFT_S)
    assert (tries.maybe_stored_at, tries.place) == (None, None), "others may take it"
    tries.check_groups(("a",), LEFT_S + 1)
    assert (tries.maybe_stored_at, tries.place) == (("a", 3), ("a", 3))


faults = st.sampled_from(Fault)
groups = st.frozensets(st.sampled_from(GROUPS))


@given(st.lists(st.tuples(faults, groups, groups, groups, st.integers(0, 99)), max_size=30), st.booleans())
def test_whatever_goes_wrong(
    story: list[tuple[Fault, frozenset[str], frozenset[str], frozenset[str], int]], bound: bool
) -> None:
    """Nothing is sent elsewhere that may be stored at a group that is there; every group is tried before it waits."""
    tries = SendTries(only=("a", 0) if bound else None)
    maybe_stored_at: str | None = None
    gone_since: float | None = None
    ever = False
    for now, (fault, names, led, sound, chance) in enumerate(story):
        led &= names
        sound &= led
        tries.check_groups(names, now)
        gone_since = None if maybe_stored_at in names else now if gone_since is None else gone_since
        if gone_since is not None and now >= gone_since + LEFT_S:
            maybe_stored_at = None
        place = tries.place
        if place is None:
            open_ = sorted(led - tries.past) or sorted(led)
            place = (open_[chance % len(open_)], chance % 4) if open_ else None
        if place is None:
            fault = Fault.NO_MASTER
        step = tries.failed(place, fault, names, led, sound, now)
        if fault is Fault.OUTCOME_UNKNOWN and place is not None:
            ever = True
            maybe_stored_at = place[0]
            gone_since = None if maybe_stored_at in names else now if gone_since is None else gone_since
        assert tries.outcome_unknown is ever
        if maybe_stored_at is not None:
            assert tries.place is not None
            assert tries.place[0] == maybe_stored_at
        if bound:
            assert tries.gate == for_sends("a")
        if tries.place is not None:
            assert step is (Step.FAIL if fault is Fault.BUSY else Step.WAIT)
            continue
        assert tries.gate == ANYWHERE
        if step is Step.ELSEWHERE:
            assert led - tries.past
        elif step is Step.WAIT:
            assert not tries.past
