"""The sync-state set: example by example, and as a machine with a controller that answers late, twice or never."""

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from popwheel_broker.options import ReplicationOptions
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.sync_state_set import SetChange, SyncStateSet
from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_rpc.membership.controller_channel import failure_of
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

ME = 0


@dataclass
class Leader:
    """A master with its set, and the time."""

    options: ReplicationOptions = field(default_factory=ReplicationOptions)
    constants: ReplicationConstants = field(default_factory=ReplicationConstants)
    members: frozenset[int] = frozenset({ME})
    position: int = 0
    now_ms: int = 1_000_000
    calls: int = 0

    def __post_init__(self) -> None:
        self.set = SyncStateSet(
            ME,
            BrokerGroup(version=1, sync_state_set=self.members),
            self.position,
            self.now_ms,
            self.options,
            self.constants,
            self.count,
        )

    def count(self) -> None:
        self.calls += 1

    def append(self, end: int, *, synced: bool = True) -> None:
        self.set.appended(end, self.now_ms)
        if synced:
            self.set.synced(end)

    def watermarks(self) -> tuple[int, int]:
        return self.set.replicated_position, self.set.high_watermark

    def joined(self, replica: int = 1) -> "Leader":
        """With a replica in the set that has everything."""
        end = self.set.replicated_position
        self.set.connected(replica, end, end, self.now_ms)
        change = self.set.due(self.now_ms)
        assert change is not None
        self.set.decided(change.version + 1, change.members, self.now_ms)
        return self


def test_alone_everything_is_replicated_at_once_and_confirmed_with_the_sync() -> None:
    leader = Leader(position=100)
    assert leader.watermarks() == (100, 100)
    leader.append(200, synced=False)
    assert leader.watermarks() == (200, 100)
    leader.set.synced(200)
    assert leader.watermarks() == (200, 200)
    assert leader.calls == 3
    assert leader.set.due(leader.now_ms + 10_000) is None


def test_a_member_holds_back_what_it_does_not_have() -> None:
    leader = Leader(position=100).joined()
    leader.append(200)
    assert leader.watermarks() == (100, 100)
    leader.set.progress(1, 200, 100, leader.now_ms)
    assert leader.watermarks() == (200, 100)
    leader.set.progress(1, 200, 180, leader.now_ms)
    assert leader.watermarks() == (200, 180)


def test_with_the_masters_word_alone_the_loss_is_shown() -> None:
    leader = Leader(ReplicationOptions(ack_mode="master"), position=100).joined()
    leader.append(200, synced=False)
    assert leader.watermarks() == (200, 100)
    leader.set.synced(200)
    assert leader.watermarks() == (200, 200)
    assert leader.set.fully_synced_position == 100
    assert leader.set.unsafe_bytes == 100
    leader.set.progress(1, 200, 200, leader.now_ms)
    assert leader.set.unsafe_bytes == 0


def test_who_is_near_counts_before_it_is_asked_in_so_that_it_can_get_there() -> None:
    leader = Leader(position=100)
    leader.append(1000, synced=False)
    leader.set.connected(1, 500, 400, leader.now_ms)
    assert leader.set.due(leader.now_ms) is None
    leader.append(1500)  # the load goes on, but watermarks stand still now
    assert leader.watermarks() == (1000, 400)
    assert not leader.set.progress(1, 999, 999, leader.now_ms)
    assert leader.set.progress(1, 1000, 1000, leader.now_ms)
    change = leader.set.due(leader.now_ms)
    assert change == SetChange(1, frozenset({0, 1}))
    assert leader.set.due(leader.now_ms) is None, "one at a time"
    leader.append(2000)
    assert leader.watermarks() == (1000, 1000), "it counts from the moment of asking"
    leader.set.decided(2, {0, 1}, leader.now_ms)
    assert leader.set.members == {0, 1}


def test_who_is_far_behind_holds_up_nobody() -> None:
    leader = Leader(constants=ReplicationConstants(joining_bytes=4096), position=10_000)
    leader.set.connected(1, 10_000 - 4097, 0, leader.now_ms)
    leader.append(11_000)
    assert leader.watermarks() == (11_000, 11_000)


def test_who_joins_too_slowly_is_left_off_and_tries_again_later() -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 50, 50, leader.now_ms)
    leader.append(200)
    assert leader.watermarks() == (100, 100)
    leader.now_ms += 499
    assert leader.set.due(leader.now_ms) is None
    assert leader.watermarks() == (100, 100)
    leader.now_ms += 1
    assert leader.set.due(leader.now_ms) is None
    assert leader.watermarks() == (200, 200)
    leader.set.progress(1, 60, 60, leader.now_ms)
    leader.append(300)
    assert leader.watermarks() == (300, 300)
    leader.now_ms += 2000
    leader.set.progress(1, 70, 70, leader.now_ms)
    leader.append(400)
    assert leader.watermarks() == (300, 300)
    leader.set.disconnected(1, leader.now_ms)
    assert leader.watermarks() == (400, 400)


def test_a_follower_that_fails_to_join_tries_ever_less_often() -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 100, 0, leader.now_ms)
    began: list[int] = []
    stood_still = True
    end = 100
    while len(began) < 6:
        leader.now_ms += 100
        end += 1
        leader.append(end)
        leader.set.progress(1, end, 0, leader.now_ms)
        assert leader.set.due(leader.now_ms) is None
        stands_still = leader.set.high_watermark < end
        if stands_still and not stood_still:
            began.append(leader.now_ms)
        stood_still = stands_still
    pauses = [later - earlier - 500 for earlier, later in itertools.pairwise(began)]
    assert pauses == [4000, 8000, 10_000, 10_000, 10_000]


def test_a_member_that_could_not_keep_up_does_not_come_back_at_once() -> None:
    leader = Leader(position=100).joined()
    leader.append(200)
    leader.now_ms += 3000
    change = leader.set.due(leader.now_ms)
    assert change == SetChange(2, frozenset({0}))
    leader.set.decided(3, change.members, leader.now_ms)
    leader.set.progress(1, 200, 200, leader.now_ms)
    assert leader.set.due(leader.now_ms) is None
    leader.now_ms += 2000
    leader.set.progress(1, 200, 200, leader.now_ms)
    assert leader.set.due(leader.now_ms) == SetChange(3, frozenset({0, 1}))


def test_a_member_that_is_behind_for_too_long_is_asked_out_and_counts_until_that_is_answered() -> None:
    leader = Leader(position=100).joined()
    leader.append(200)
    leader.now_ms += 1000
    leader.set.progress(1, 200, 200, leader.now_ms)
    leader.append(300)
    leader.now_ms += 2900
    leader.append(400)
    assert leader.set.due(leader.now_ms) is None
    leader.now_ms += 100
    change = leader.set.due(leader.now_ms)
    assert change == SetChange(2, frozenset({0}))
    assert leader.watermarks() == (200, 200)
    leader.set.decided(3, change.members, leader.now_ms)
    assert leader.watermarks() == (400, 400)


def test_an_idle_log_puts_nobody_out() -> None:
    leader = Leader(position=100).joined()
    leader.now_ms += 60_000
    assert leader.set.due(leader.now_ms) is None
    leader.append(200)
    assert leader.set.due(leader.now_ms) is None
    assert [each.behind_ms for each in leader.set.lags(leader.now_ms + 7)] == [7]


def test_a_member_whose_stream_broke_has_half_a_second_to_come_back() -> None:
    leader = Leader(position=100).joined()
    leader.set.disconnected(1, leader.now_ms)
    leader.now_ms += 499
    assert leader.set.due(leader.now_ms) is None
    leader.set.connected(1, 100, 100, leader.now_ms)
    leader.now_ms += 10_000
    assert leader.set.due(leader.now_ms) is None
    leader.set.disconnected(1, leader.now_ms)
    leader.now_ms += 500
    assert leader.set.due(leader.now_ms) == SetChange(2, frozenset({0}))


def test_a_member_that_lost_what_was_confirmed_is_asked_out_at_once() -> None:
    leader = Leader(position=100).joined()
    leader.set.disconnected(1, leader.now_ms)
    leader.set.connected(1, 99, 99, leader.now_ms)
    assert leader.set.due(leader.now_ms) == SetChange(2, frozenset({0}))
    assert leader.watermarks() == (100, 100)


NOBODY_REACHED = NotProcessedError("no connection")
LOST = RpcError(GrpcStatus.UNAVAILABLE, "the connection was lost")
LEADS_NOT = NotLeadingError("another one does")
GIVEN_UP = StatusError(Code.HA_NOT_AVAILABLE, "others change it all the time")
NEWER = StatusError(Code.PRECONDITION_FAILED, "the state is at another version")
CANNOT_BE = StatusError(Code.BAD_REQUEST, "no such replica")


@pytest.mark.parametrize("failure", [NOBODY_REACHED, CANNOT_BE, LEADS_NOT])
def test_what_was_certainly_not_stored_ends_the_counting(failure: StatusError | RpcError) -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 100, 100, leader.now_ms)
    change = leader.set.due(leader.now_ms)
    assert change is not None
    leader.set.failed(change, failure, leader.now_ms)
    leader.append(200)
    assert leader.watermarks() == (200, 200)
    leader.now_ms += 500
    leader.set.progress(1, 200, 200, leader.now_ms)
    assert leader.set.due(leader.now_ms) is not None


@pytest.mark.parametrize("first", [LOST, GIVEN_UP, NEWER, StatusError(Code.INTERNAL_SERVER_ERROR, "not stored")])
@pytest.mark.parametrize("second", [NOBODY_REACHED, CANNOT_BE, LEADS_NOT, NEWER])
def test_who_may_have_been_made_a_member_counts_until_a_newer_state_reports(
    first: StatusError | RpcError, second: StatusError | RpcError
) -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 100, 100, leader.now_ms)
    change = leader.set.due(leader.now_ms)
    assert change is not None
    leader.set.failed(change, first, leader.now_ms)
    leader.append(200)
    assert leader.watermarks() == (100, 100)
    assert leader.set.due(leader.now_ms + 499) is None
    leader.set.disconnected(1, leader.now_ms)
    leader.now_ms += 500
    assert leader.set.due(leader.now_ms) is change, "asked for again, also when it has gone: only so it is settled"
    leader.set.failed(change, second, leader.now_ms)
    assert leader.watermarks() == (100, 100), "the first try may have made it a member"
    leader.set.decided(2, {0}, leader.now_ms)
    assert leader.watermarks() == (200, 200)


def test_answers_to_what_was_asked_before_change_nothing() -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 100, 100, leader.now_ms)
    old = leader.set.due(leader.now_ms)
    assert old is not None
    leader.set.decided(2, {0}, leader.now_ms)  # the registration stream was faster than the answer
    leader.set.progress(1, 100, 100, leader.now_ms)
    new = leader.set.due(leader.now_ms)
    assert new == SetChange(2, frozenset({0, 1}))
    leader.set.failed(old, NOBODY_REACHED, leader.now_ms)
    leader.set.failed(old, LOST, leader.now_ms)
    leader.set.decided(1, {0, 7}, leader.now_ms)
    leader.append(200)
    assert leader.watermarks() == (100, 100)
    assert leader.set.members == {0}


def test_too_few_in_the_set_is_reported() -> None:
    leader = Leader(ReplicationOptions(min_in_sync_replicas=2), position=100)
    assert not leader.set.enough
    calls = leader.calls
    leader.joined()
    assert leader.set.enough
    assert leader.calls == calls + 1
    leader.set.decided(3, {0}, leader.now_ms)
    assert not leader.set.enough
    assert leader.calls == calls + 2


def test_members_that_were_never_learned_of_hold_back_all() -> None:
    leader = Leader(members=frozenset({0, 1, 2}), position=100)
    leader.set.connected(1, 100, 100, leader.now_ms)
    assert leader.watermarks() == (0, 0)
    leader.set.connected(2, 100, 90, leader.now_ms)
    assert leader.watermarks() == (100, 90)
    assert leader.set.synced_position_of(2) == 90
    assert leader.set.synced_position_of(3) == 0


@dataclass
class Controllers:
    """Those that share a store, and what they have not looked at yet."""

    version: int = 1
    members: frozenset[int] = frozenset({ME})
    on_the_way: list[SetChange] = field(default_factory=list)

    def store(self, change: SetChange) -> bool:
        if change.version != self.version:
            return False
        self.version += 1
        self.members = change.members
        return True

    def ask(self, change: SetChange, controllers: list[str]) -> StatusError | RpcError | None:
        """Ask one after the other until one answers; how that failed."""
        failures: list[StatusError | RpcError] = []
        for controller in controllers:
            if controller in ("leads", "writes twice"):  # the second time is refused by its own first
                if self.store(change) and controller == "leads":
                    return None
                failures.append(NEWER)
                break
            failed: dict[str, StatusError | RpcError] = {"dead": NOBODY_REACHED, "leads not": LEADS_NOT}
            failures.append(failed.get(controller, LOST))
            if controller == "late":
                self.on_the_way.append(change)
            elif controller == "loses the answer":
                self.store(change)
        return failure_of(failures)


CONTROLLERS = st.lists(
    st.sampled_from(["dead", "leads not", "late", "loses the answer", "writes twice", "leads"]), min_size=1, max_size=4
)


@given(
    calls=st.lists(CONTROLLERS, min_size=1, max_size=4),
    late=st.lists(st.booleans(), min_size=4, max_size=4),
    follows=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_whom_the_controllers_may_elect_has_all_that_is_confirmed(
    calls: list[list[str]], late: list[bool], follows: list[bool]
) -> None:
    leader = Leader(position=100)
    leader.set.connected(1, 100, 100, leader.now_ms)
    controllers = Controllers()
    has = end = 100

    def look() -> None:
        if 1 in controllers.members:
            assert leader.watermarks() <= (has, has)

    for call, comes_late, follows_on in zip(calls, late, follows, strict=False):
        if follows_on:
            has = end
            leader.set.progress(1, has, has, leader.now_ms)
        change = leader.set.due(leader.now_ms)
        if change is not None:
            failure = controllers.ask(change, call)
            if failure is None:
                leader.set.decided(controllers.version, controllers.members, leader.now_ms)
            else:
                leader.set.failed(change, failure, leader.now_ms)
        look()
        end += 100
        leader.append(end)
        look()
        while comes_late and controllers.on_the_way:
            controllers.store(controllers.on_the_way.pop())
            look()
        leader.now_ms += 60_000


@dataclass
class Follower:
    """What a replica really has; the master learns of it later."""

    end: int = 0
    synced: int = 0
    connected: bool = False


class SetMachine(RuleBasedStateMachine):
    """A master, two replicas and controllers that share a store; each word between them comes late, twice or never.

    What must hold at every moment: whoever the controller may elect has all that the master counts as confirmed (S5),
    and all that it counts as held; no watermark ever falls (C4).
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.end = self.synced = 0
        self.followers = {1: Follower(), 2: Follower()}
        self.controllers = Controllers()
        self.awaited: SetChange | None = None
        self.before = (0, 0)

    @initialize(position=st.integers(0, 100), joining_bytes=st.sampled_from([4096, 8192]))
    def begin(self, position: int, joining_bytes: int) -> None:
        options, constants = ReplicationOptions(lag_ms_max=1000), ReplicationConstants(joining_bytes=joining_bytes)
        self.end = self.synced = position
        self.set = SyncStateSet(
            ME, BrokerGroup(version=1, sync_state_set=[ME]), position, self.now_ms, options, constants, lambda: None
        )

    @rule(length=st.integers(1, 5000))
    def append(self, length: int) -> None:
        self.end += length
        self.set.appended(self.end, self.now_ms)

    @rule(share=st.integers(0, 4))
    def sync(self, share: int) -> None:
        self.synced += (self.end - self.synced) * share // 4
        self.set.synced(self.synced)

    @rule(number=st.sampled_from([1, 2]), received=st.integers(0, 4), synced=st.integers(0, 4))
    def follow(self, number: int, received: int, synced: int) -> None:
        follower = self.followers[number]
        if follower.connected:
            follower.end += (self.end - follower.end) * received // 4
            follower.synced += (follower.end - follower.synced) * synced // 4

    @rule(number=st.sampled_from([1, 2]))
    def learn(self, number: int) -> None:
        follower = self.followers[number]
        if follower.connected:
            self.set.progress(number, follower.end, follower.synced, self.now_ms)
        else:
            self.set.connected(number, follower.end, follower.synced, self.now_ms)
            follower.connected = True

    @rule(number=st.sampled_from([1, 2]))
    def part(self, number: int) -> None:
        follower = self.followers[number]
        if follower.connected:
            self.set.disconnected(number, self.now_ms)
            follower.connected = False

    @rule(milliseconds=st.sampled_from([1, 20, 100, 500, 2000]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def ask(self) -> None:
        change = self.set.due(self.now_ms)
        if change is not None:
            assert self.awaited is None or change.version > self.awaited.version
            self.awaited = change
            self.controllers.on_the_way.append(change)

    @precondition(lambda self: self.controllers.on_the_way)
    @rule(data=st.data(), again=st.booleans(), answered=st.booleans())
    def decide(self, data: st.DataObject, again: bool, answered: bool) -> None:
        change = data.draw(st.sampled_from(self.controllers.on_the_way))
        if not again:
            self.controllers.on_the_way.remove(change)
        fits = self.controllers.store(change)
        if answered and change is self.awaited:
            self.awaited = None
            if fits:
                self.publish()
            else:
                self.set.failed(change, NEWER, self.now_ms)

    @rule(controllers=CONTROLLERS)
    def ask_one_after_the_other(self, controllers: list[str]) -> None:
        change = None if self.awaited else self.set.due(self.now_ms)
        if change is None:
            return
        failure = self.controllers.ask(change, controllers)
        if failure is None:
            self.publish()
        else:
            self.set.failed(change, failure, self.now_ms)

    @precondition(lambda self: self.awaited is not None)
    @rule()
    def give_up_waiting(self) -> None:
        assert self.awaited is not None
        change, self.awaited = self.awaited, None
        self.set.failed(change, LOST, self.now_ms)

    @rule()
    def publish(self) -> None:
        self.set.decided(self.controllers.version, self.controllers.members, self.now_ms)

    @invariant()
    def whoever_may_be_elected_has_it(self) -> None:
        if not hasattr(self, "set"):
            return
        for number in self.controllers.members - {ME}:
            assert self.followers[number].synced >= self.set.high_watermark
            assert self.followers[number].end >= self.set.replicated_position
        assert self.synced >= self.set.high_watermark
        assert self.end >= self.set.replicated_position

    @invariant()
    def watermarks_never_fall(self) -> None:
        if hasattr(self, "set"):
            now = (self.set.replicated_position, self.set.high_watermark)
            assert now >= self.before
            assert all(new >= old for new, old in zip(now, self.before, strict=True))
            self.before = now

    def teardown(self) -> None:
        """After healing all are in the set, and everything is confirmed (L2)."""
        if not hasattr(self, "set"):
            return
        if self.awaited is not None:
            self.give_up_waiting()
        for _ in range(40):
            self.publish()
            self.now_ms += 250
            self.sync(4)
            for number in self.followers:
                self.learn(number)
                self.follow(number, 4, 4)
                self.learn(number)
            self.ask()
            if self.awaited is not None:
                change, self.awaited = self.awaited, None
                if self.controllers.store(change):
                    self.publish()
                else:
                    self.set.failed(change, NEWER, self.now_ms)
            self.whoever_may_be_elected_has_it()
        assert self.set.members == {0, 1, 2}
        assert self.set.replicated_position == self.set.high_watermark == self.end


TestSetMachine = SetMachine.TestCase
TestSetMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
