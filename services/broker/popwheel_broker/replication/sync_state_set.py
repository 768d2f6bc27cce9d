"""Sync-state set: the replicas that must have a message before it is acknowledged, and their positions.

Pure: the time is an argument.

`set_states.py` has the states of a replica and of a wish; the README prints their tables.

Why it is safe (S5): the counted replicas always include the stored set, from which the next master is elected. Let
`version` be the latest received state of this epoch. Within an epoch the stored set grows only by this master's
requests, each for one version and stored in place of that version or never; every other change makes it smaller. So the
stored set is within `members` and the replicas that were requested since `version`. These count until a newer state
arrives, which decides every request for an older version, or until it is certain of each request that no controller
has stored it or ever will (`is_certain`). A call may have gone to several controllers, or to one several times, so that
the last of them refuses proves nothing: it may refuse because the first has stored it. A replica is asked in only when
it has all that was committed before; from then on nothing is without it.
Under load a replica is always a little behind a master that does not wait, so it counts a moment before (JOINS):
the watermarks stand still until it has reached them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from popwheel_broker.options import ReplicationOptions
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.lag import PositionTimes
from popwheel_broker.replication.set_states import REPLICA_STATES, WISH_STATES, ReplicaState, WishState
from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_rpc.status import NotProcessedError, RpcError

_ASK_AGAIN_MS = 500
_JOIN_PAUSES = (4, 8, 16, 20)
"""Pauses after the first, second ... vain try to join, as multiples of `joining_ms_max`.

Each try delays sends by up to that long.
"""
_STEADY_LAGS = 10
"""A member for this multiple of `lag_ms_max` has joined successfully."""


@dataclass(frozen=True, slots=True)
class SetChange:
    """Change that the controller is to be asked for (`Controller.ChangeSyncStateSet`).

    Args:
        version: of the group's state that this is based on.
        members: the set that is wanted.
    """

    version: int
    members: frozenset[int]


def is_certain(failure: StatusError | RpcError) -> bool:
    """Return whether a failed request for a change proves that no controller has stored it or ever will.

    Three do: no controller was reached; BAD_REQUEST, as a set that cannot follow its version cannot at any controller;
    and `NotLeadingError`. Proof of the last: a controller returns it before it reads the request, and a call ends with
    it only if all controllers that were asked before returned it, too, or were not reached (`failure_of`); so, as
    nothing on the way repeats a call, no controller has the request any more. Not PRECONDITION_FAILED: a newer state is
    stored, which may be the requested one. Nor any other HA_NOT_AVAILABLE.
    """
    if isinstance(failure, StatusError):
        return failure.code == Code.BAD_REQUEST or isinstance(failure, NotLeadingError)
    return isinstance(failure, NotProcessedError)


class Lag(NamedTuple):
    """Lag of a replica.

    Args:
        replica: its number.
        end_position: what it has received.
        synced_position: what of it is on its device.
        behind_bytes: what it has not received, or not synced.
        behind_ms: for how long the oldest of that has been in the master's log.
    """

    replica: int
    end_position: int
    synced_position: int
    behind_bytes: int
    behind_ms: int


@dataclass(slots=True)
class _Follower:
    """A replica other than the master."""

    number: int
    state: ReplicaState = ReplicaState.FOLLOWS
    end_position: int = 0
    synced_position: int = 0
    connected: bool = False
    absent_since_ms: int = 0
    joining_since_ms: int = 0
    joins_not_before_ms: int = 0
    vain_tries: int = 0
    member_since_ms: int = 0

    def step(self, event: str, state: ReplicaState) -> None:
        """Go to another state, if the table lets it."""
        self.state = REPLICA_STATES.step(self.state, event, state)


class SyncStateSet:
    """The sync-state set as its master has it, for one epoch.

    Positions are of the log, times are milliseconds of a clock that never jumps (`Clock.steady_ms`).

    Args:
        me: the master's number.
        group: the group's state that made it master.
        position: where its log ends, all of it synced, when it begins to lead.
        now_ms: the time.
        options: settings.
        constants: when a replica may join.
        on_watermark: called whenever a watermark, or `enough`, has changed; it must not raise.
    """

    def __init__(
        self,
        me: int,
        group: BrokerGroup,
        position: int,
        now_ms: int,
        options: ReplicationOptions,
        constants: ReplicationConstants,
        on_watermark: Callable[[], None],
    ) -> None:
        self._me = me
        self._options = options
        self._constants = constants
        self._on_watermark = on_watermark
        self._master_alone_acknowledges = options.ack_mode == "master"
        self._end_position = position
        self._synced_position = position
        self._times = PositionTimes()
        self._times.record(position, now_ms)
        self._followers: dict[int, _Follower] = {}
        self._counted: list[_Follower] = []
        self._wish = WishState.NONE
        self._asked: SetChange | None = None
        self._ask_not_before_ms = 0
        self.version = group.version
        self.members = frozenset(group.sync_state_set)
        """Members by the controller's state."""
        self.high_watermark = 0
        """High watermark: records before it may be acknowledged and read; the set has them on its devices.

        Never falls.
        """
        self.replicated_position = 0
        """Position before which all outlives the process of the master: the set has received it. Never falls."""
        self.fully_synced_position = 0
        """High watermark that is sent to slaves.

        With `ack_mode: master`, too, it is the position before which the whole set has all.
        """
        self._received_position = 0
        self.enough = len(self.members) >= options.min_in_sync_replicas
        """True if the set is as large as `min_in_sync_replicas` says.

        If not, sends are refused; those that were waiting when the set shrank are to be answered as refused, too,
        though they may become readable.
        """
        for number in self.members - {me}:
            self._follower(number, now_ms).state = ReplicaState.MEMBER
        self._recount()
        self.validate()

    # What happens

    def appended(self, end_position: int, now_ms: int) -> None:
        """Record an append of the master."""
        assert end_position >= self._end_position, "the log of a master was cut"
        self._end_position = end_position
        self._times.record(end_position, now_ms)
        self._raise_watermarks()

    def synced(self, position: int) -> None:
        """Record a sync of the master."""
        if position > self._synced_position:
            assert position <= self._end_position, "more is synced than was appended"
            self._synced_position = position
            self._raise_watermarks()

    def connected(self, replica: int, end_position: int, synced_position: int, now_ms: int) -> None:
        """Record that a replica follows; it has a prefix of the master's log, up to `end_position`."""
        follower = self._follower(replica, now_ms)
        follower.connected = True
        follower.end_position, follower.synced_position = end_position, synced_position
        self._try_to_join(follower, "connected", now_ms)
        self._raise_watermarks()
        self.validate()

    def progress(self, replica: int, end_position: int, synced_position: int, now_ms: int) -> bool:
        """Record the progress of a replica; return whether `due` may have a change now."""
        follower = self._followers[replica]
        follower.end_position, follower.synced_position = end_position, synced_position
        self._try_to_join(follower, "progress", now_ms)
        self._raise_watermarks()
        return follower.state is ReplicaState.JOINS and self._has_joined(follower)

    def disconnected(self, replica: int, now_ms: int) -> None:
        """Record that a replica's stream has broken."""
        follower = self._followers[replica]
        if follower.connected:
            follower.connected = False
            follower.absent_since_ms = now_ms
            self._leave_off_joining(follower, "disconnected", now_ms)
        if follower.state is ReplicaState.FOLLOWS:
            del self._followers[replica]
            self._recount()
        self.validate()

    def decided(self, version: int, members: Iterable[int], now_ms: int) -> None:
        """Apply the group's state, from an answer or from the registration stream, if it is newer.

        It decides all earlier requests: they were based on an earlier version, so they are in this one or never will
        be.
        """
        if version <= self.version:
            return
        self.version = version
        self.members = frozenset(members)
        self._wish = WISH_STATES.step(self._wish, "decided", WishState.NONE)
        self._asked = None
        self._ask_not_before_ms = 0
        for number in self.members - {self._me}:
            follower = self._follower(number, now_ms)
            if follower.state is not ReplicaState.MEMBER:
                follower.step("decided", ReplicaState.MEMBER)
                follower.member_since_ms = now_ms
        for follower in self._followers.values():
            if follower.number in self.members:
                continue
            if follower.state is ReplicaState.MEMBER:
                self._pause_joining(follower, now_ms)
            if follower.state in (ReplicaState.MEMBER, ReplicaState.ASKED_IN):
                follower.step("decided", ReplicaState.FOLLOWS)
        self._forget_absent()
        self._recount()
        self.validate()

    def failed(self, change: SetChange, failure: StatusError | RpcError, now_ms: int) -> None:
        """Record that a change of `due` failed, or has an unknown outcome: then it is requested again."""
        if change is not self._asked:
            return
        self._ask_not_before_ms = now_ms + _ASK_AGAIN_MS
        if self._wish is WishState.ASKED_AGAIN or not is_certain(failure):
            self._wish = WISH_STATES.step(self._wish, "failed", WishState.UNCERTAIN)
            return
        self._wish = WISH_STATES.step(self._wish, "failed", WishState.NONE)
        self._asked = None
        for follower in self._asked_in():
            follower.step("failed", ReplicaState.FOLLOWS)
            follower.joins_not_before_ms = now_ms + _ASK_AGAIN_MS
        self._forget_absent()
        self._recount()
        self.validate()

    # What is to be done

    def due(self, now_ms: int) -> SetChange | None:
        """Return the request for the controller that is due now. From then on the replicas asked for count;

        `decided` or `failed` must follow, and until then nothing else is due.
        """
        for follower in self._followers.values():
            is_overdue = now_ms - follower.joining_since_ms >= self._constants.joining_ms_max
            if is_overdue and not self._has_joined(follower):
                self._leave_off_joining(follower, "due", now_ms)
        if self._wish in (WishState.ASKED, WishState.ASKED_AGAIN) or now_ms < self._ask_not_before_ms:
            return None
        if self._asked is not None and self._asked_in():
            change = self._asked
        else:
            wanted = (self.members - self._to_leave(now_ms)) | self._candidates()
            if wanted == self.members:
                return None
            change = SetChange(self.version, wanted)
        self._asked = change
        asked = WishState.ASKED if self._wish is WishState.NONE else WishState.ASKED_AGAIN
        self._wish = WISH_STATES.step(self._wish, "due", asked)
        for number in change.members - self.members:
            if self._followers[number].state is not ReplicaState.ASKED_IN:
                self._followers[number].step("due", ReplicaState.ASKED_IN)
        self._recount()
        self.validate()
        return change

    def lags(self, now_ms: int) -> list[Lag]:
        """Return the lag of each replica that follows now."""
        return [
            Lag(
                each.number,
                each.end_position,
                each.synced_position,
                max(0, self._end_position - each.synced_position),
                self._behind_ms(each, now_ms),
            )
            for each in self._followers.values()
            if each.connected
        ]

    @property
    def unsafe_bytes(self) -> int:
        """Number of acknowledged bytes that a failover may lose: with `ack_mode: master` those not replicated yet."""
        return max(0, self.high_watermark - self.fully_synced_position)

    def synced_position_of(self, replica: int) -> int:
        """Return the position that a follower has on its device; 0 if it does not follow."""
        follower = self._followers.get(replica)
        return follower.synced_position if follower is not None and follower.connected else 0

    def validate(self) -> None:
        """Check the invariants that hold after each event that concerns more than one position (S4, S5, C4)."""
        assert self._me in self.members, "a master is in its set"
        assert self.members - {self._me} <= self._followers.keys(), "a member is not known"
        for each in self._followers.values():
            assert (each.state is ReplicaState.MEMBER) == (each.number in self.members), (
                "who is a member is not certain"
            )
            assert each.connected or each.state is not ReplicaState.JOINS, "a replica joins that does not follow"
        assert (self._wish is WishState.NONE) == (self._asked is None), "what is asked for is not certain"
        assert self._wish is not WishState.NONE or not self._asked_in(), "a replica is asked in, and nobody was asked"

    def _asked_in(self) -> list[_Follower]:
        return [each for each in self._followers.values() if each.state is ReplicaState.ASKED_IN]

    def _follower(self, number: int, now_ms: int) -> _Follower:
        follower = self._followers.get(number)
        if follower is None:
            follower = self._followers[number] = _Follower(number, absent_since_ms=now_ms)
        return follower

    def _behind_ms(self, follower: _Follower, now_ms: int) -> int:
        return self._times.behind_ms(follower.synced_position, self._end_position, now_ms)

    def _to_leave(self, now_ms: int) -> frozenset[int]:
        """Members to be asked out."""
        options = self._options
        leaving = set()
        for number in self.members - {self._me}:
            follower = self._followers[number]
            if follower.connected:
                # A replica that ends before the watermark has lost records: it must not be elected.
                lost = follower.end_position < self.fully_synced_position
                late = self._behind_ms(follower, now_ms) >= options.lag_ms_max
            else:
                lost = False
                late = now_ms - follower.absent_since_ms >= options.absence_ms_max
            if lost or late:
                leaving.add(number)
        return frozenset(leaving)

    def _candidates(self) -> frozenset[int]:
        """Replicas to be asked in."""
        return frozenset(
            each.number
            for each in self._followers.values()
            if each.state is ReplicaState.JOINS and self._has_joined(each)
        )

    def _has_joined(self, follower: _Follower) -> bool:
        received = self._received_position
        return follower.synced_position >= self.fully_synced_position and follower.end_position >= received

    def _try_to_join(self, follower: _Follower, event: str, now_ms: int) -> None:
        if (
            follower.state is ReplicaState.FOLLOWS
            and now_ms >= follower.joins_not_before_ms
            and self._end_position - follower.end_position <= self._constants.joining_bytes
        ):
            follower.step(event, ReplicaState.JOINS)
            follower.joining_since_ms = now_ms
            self._recount()

    def _leave_off_joining(self, follower: _Follower, event: str, now_ms: int) -> None:
        if follower.state is ReplicaState.JOINS:
            follower.step(event, ReplicaState.FOLLOWS)
            self._pause_joining(follower, now_ms)
            self._recount()

    def _pause_joining(self, follower: _Follower, now_ms: int) -> None:
        """Record a vain try to join, or a member that was too slow."""
        if follower.member_since_ms and now_ms - follower.member_since_ms >= _STEADY_LAGS * self._options.lag_ms_max:
            follower.vain_tries = 0
        follower.member_since_ms = 0
        pauses = _JOIN_PAUSES[min(follower.vain_tries, len(_JOIN_PAUSES) - 1)]
        follower.vain_tries += 1
        follower.joins_not_before_ms = now_ms + pauses * self._constants.joining_ms_max

    def _forget_absent(self) -> None:
        for follower in list(self._followers.values()):
            if not follower.connected and follower.state is ReplicaState.FOLLOWS:
                del self._followers[follower.number]

    def _recount(self) -> None:
        """Recount the positions after the set of counted replicas has changed."""
        self._counted = [each for each in self._followers.values() if each.state is not ReplicaState.FOLLOWS]
        enough = len(self.members) >= self._options.min_in_sync_replicas
        changed = enough != self.enough
        self.enough = enough
        self._raise_watermarks(changed)

    def _raise_watermarks(self, changed: bool = False) -> None:
        received, replicated = self._end_position, self._synced_position
        for follower in self._counted:
            received = min(received, follower.end_position)
            replicated = min(replicated, follower.synced_position)
        if received > self._received_position:
            self._received_position = received
        if replicated > self.fully_synced_position:
            self.fully_synced_position = replicated
            changed = True
        if self._master_alone_acknowledges:
            received, replicated = self._end_position, self._synced_position
        assert replicated <= received <= self._end_position, "more is synced than was received"
        if received > self.replicated_position:
            self.replicated_position = received
            changed = True
        if replicated > self.high_watermark:
            self.high_watermark = replicated
            changed = True
        assert self.fully_synced_position <= self.high_watermark <= self.replicated_position, "watermarks are crossed"
        if changed:
            self._on_watermark()
