"""Checkpoint sync: when each master is asked for its checkpoint, and what each slave is sent (DESIGN 4).

Pure: it is passed roles, answers and the time, and returns the calls to make. A slave that is slow or absent is left
out until its call ends, and delays no other. The known epoch and, within it, version of a slave never decrease (C4);
checkpoints of an epoch that is over are sent to nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request to a master for its checkpoint.

    Args:
        number: distinguishes it from others.
        group: name of the broker group.
        epoch: of its master.
        master: the replica to ask.
        begun_s: time of the request, monotonic clock.
    """

    number: int
    group: str
    epoch: int
    master: ReplicaPlace
    begun_s: float


@dataclass(frozen=True, slots=True)
class Give:
    """Checkpoint to send to a slave.

    Args:
        group: name of the broker group.
        slave: the receiver.
        checkpoint: its master's.
        begun_s: time when it was requested, monotonic clock: its data is not older.
    """

    group: str
    slave: ReplicaPlace
    checkpoint: ReplicaCheckpoint
    begun_s: float


@dataclass(slots=True)
class _Slave:
    """State of a slave.

    Args:
        place: its number and address.
        since_s: when it was first seen.
        epoch: of its checkpoint; 0 if it has none.
        version: of its checkpoint.
        taken_s: when that checkpoint was requested; None if it has none.
        took_s: time from then until the slave had it.
        is_busy: whether a call to it is under way.
    """

    place: ReplicaPlace
    since_s: float
    epoch: int = 0
    version: int = 0
    taken_s: float | None = None
    took_s: float = 0.0
    is_busy: bool = False


@dataclass(slots=True)
class _Group:
    """A broker group with a master and slaves.

    Args:
        roles: the current ones.
        next_s: start of the next round.
        slaves: by number; absent ones stay listed, as they may return.
        fetch: the request to the current master that is under way.
    """

    roles: GroupRoles
    next_s: float
    slaves: dict[int, _Slave] = field(default_factory=dict)
    fetch: Fetch | None = None

    def present(self) -> Iterator[_Slave]:
        """Yield the living slaves."""
        return (self.slaves[place.number] for place in self.roles.slaves)

    @property
    def can_sync(self) -> bool:
        """True if the master is not being asked, and a slave is waiting for it."""
        has_master = self.roles.master is not None
        return has_master and self.fetch is None and any(not slave.is_busy for slave in self.present())


@dataclass(frozen=True, slots=True)
class CheckpointAge:
    """Age of a slave's checkpoint.

    Args:
        replica: its number.
        version: of its checkpoint; 0 if it has none.
        age_s: time since it was requested, or since the slave was first seen if it has none.
        took_s: time from the request until the slave had it; None if it has none.
    """

    replica: int
    version: int
    age_s: float
    took_s: float | None


class CheckpointSync:
    """Scheduler of checkpoint sync.

    Args:
        interval_s: interval of the rounds, in seconds.
        fetches_max: limit of masters that are asked at the same time.
    """

    def __init__(self, interval_s: float, fetches_max: int) -> None:
        self._interval_s = interval_s
        self._fetches_max = fetches_max
        self._groups: dict[str, _Group] = {}
        self._numbers = count(1)
        self._under_way: set[int] = set()
        """Numbers of the unanswered fetches, also to former masters and of removed groups."""

    # What is reported

    def roles(self, roles: GroupRoles, now_s: float) -> None:
        """Record the current roles of a group."""
        group = self._groups.get(roles.group)
        if group is None:
            group = self._groups[roles.group] = _Group(roles, now_s)
        elif roles.epoch < group.roles.epoch:
            return
        elif roles.epoch > group.roles.epoch or roles.master != group.roles.master:
            group.next_s = now_s
            group.fetch = None
        group.roles = roles
        for place in roles.slaves:
            slave = group.slaves.get(place.number)
            if slave is None:
                group.slaves[place.number] = _Slave(place, now_s)
                group.next_s = now_s
            elif slave.place != place:
                slave.place = place
                slave.is_busy = False
                group.next_s = now_s

    def forget(self, name: str) -> None:
        """Drop a group that was removed, or that another controller manages now."""
        self._groups.pop(name, None)

    def time_passed(self, now_s: float) -> list[Fetch]:
        """Return the calls of the rounds that are due."""
        fetches: list[Fetch] = []
        due = [group for group in self._groups.values() if group.next_s <= now_s and group.can_sync]
        for group in sorted(due, key=lambda each: each.next_s):
            if len(self._under_way) >= self._fetches_max:
                break  # the others follow when some of these have answered
            roles = group.roles
            assert roles.master is not None, "nobody is there to be asked"
            group.next_s = now_s + self._interval_s
            group.fetch = Fetch(next(self._numbers), roles.group, roles.epoch, roles.master, now_s)
            self._under_way.add(group.fetch.number)
            fetches.append(group.fetch)
        return fetches

    def next_time_s(self) -> float | None:
        """Return when the next step is due; None if there is none; a past time means that an answer has arrived."""
        return min((group.next_s for group in self._groups.values() if group.can_sync), default=None)

    def fetched(self, fetch: Fetch, checkpoint: ReplicaCheckpoint) -> list[Give]:
        """Process a master's answer; drop it if its epoch is over or if it was not requested."""
        group = self._ended(fetch)
        if group is None or (checkpoint.group, checkpoint.epoch) != (fetch.group, group.roles.epoch):
            return []
        gives: list[Give] = []
        for slave in group.present():
            if not slave.is_busy:
                slave.is_busy = True
                gives.append(Give(fetch.group, slave.place, checkpoint, fetch.begun_s))
        return gives

    def not_fetched(self, fetch: Fetch) -> None:
        """Record that a master did not answer, or refused."""
        self._ended(fetch)

    def _ended(self, fetch: Fetch) -> _Group | None:
        self._under_way.discard(fetch.number)
        group = self._groups.get(fetch.group)
        if group is None or group.fetch != fetch:
            return None
        group.fetch = None
        return group

    def stored(self, give: Give, now_s: float) -> None:
        """Record that a slave has its checkpoint."""
        slave = self._receiver(give)
        if slave is None:
            return
        slave.is_busy = False
        checkpoint = give.checkpoint
        if (checkpoint.epoch, checkpoint.version) > (slave.epoch, slave.version):
            slave.epoch, slave.version = checkpoint.epoch, checkpoint.version
        if slave.taken_s is None or give.begun_s > slave.taken_s:
            slave.taken_s, slave.took_s = give.begun_s, now_s - give.begun_s

    def not_stored(self, give: Give) -> None:
        """Record that a slave did not answer, or refused."""
        slave = self._receiver(give)
        if slave is not None:
            slave.is_busy = False

    def _receiver(self, give: Give) -> _Slave | None:
        """Return the slave that the checkpoint was sent to, unless another process has replaced it."""
        group = self._groups.get(give.group)
        slave = None if group is None else group.slaves.get(give.slave.number)
        return None if slave is None or slave.place != give.slave else slave

    # What is shown

    def ages(self, name: str, now_s: float) -> list[CheckpointAge]:
        """Return the age of the checkpoint of each living slave of a group (C3)."""
        group = self._groups.get(name)
        if group is None:
            return []
        return [
            CheckpointAge(
                slave.place.number,
                slave.version,
                now_s - (slave.since_s if slave.taken_s is None else slave.taken_s),
                None if slave.taken_s is None else slave.took_s,
            )
            for slave in group.present()
        ]

    def names(self) -> list[str]:
        """Return the names of all known groups."""
        return list(self._groups)
