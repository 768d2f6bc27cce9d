"""Checkpoint sync: when each master is asked for its checkpoint, and what each slave is sent (DESIGN 4).

Pure: it is passed roles, answers and the time, and returns the calls to make. Slaves advance independently: a
difference is fetched for those with the same version, so a slow or absent slave delays no other. The known epoch and,
within it, version of a slave never decrease (C4); checkpoints of an epoch that is over are sent to nobody.
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
        known_version: base of the difference; 0 for the whole checkpoint.
        slaves: that get the answer.
        asked_s: time of the request, monotonic clock.
        begun_s: time of the request for its first part.
    """

    number: int
    group: str
    epoch: int
    master: ReplicaPlace
    known_version: int
    slaves: tuple[int, ...]
    asked_s: float
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


Action = Fetch | Give


@dataclass(slots=True)
class _Slave:
    """State of a slave.

    Args:
        place: its number and address.
        since_s: when it was first seen.
        epoch: of its checkpoint; 0 if that is not known.
        version: of its checkpoint.
        known_version: base that a difference for it starts from.
        taken_s: when that checkpoint was requested; None before the first one is complete.
        took_s: time from then until it was stored.
        is_busy: whether a call for it is under way.
    """

    place: ReplicaPlace
    since_s: float
    epoch: int = 0
    version: int = 0
    known_version: int = 0
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
        fetches: that are under way, by number.
    """

    roles: GroupRoles
    next_s: float
    slaves: dict[int, _Slave] = field(default_factory=dict)
    fetches: dict[int, Fetch] = field(default_factory=dict)

    def present(self) -> Iterator[_Slave]:
        """Yield the living slaves."""
        return (self.slaves[place.number] for place in self.roles.slaves)


@dataclass(frozen=True, slots=True)
class CheckpointAge:
    """Age of a slave's checkpoint.

    Args:
        replica: its number.
        version: of its checkpoint; 0 if that is not known.
        age_s: time since it was requested, or since the slave was first seen if it has none.
        took_s: time from the request until it was stored; None if it has none.
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
        """Numbers of the unanswered fetches, also of removed groups."""

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

    def time_passed(self, now_s: float) -> list[Action]:
        """Return the calls of the rounds that are due."""
        actions: list[Action] = []
        due = [group for group in self._groups.values() if group.next_s <= now_s and _can_sync(group)]
        for group in sorted(due, key=lambda each: each.next_s):
            by_version: dict[int, list[_Slave]] = {}
            for slave in group.present():
                if not slave.is_busy:
                    known = slave.known_version if slave.epoch == group.roles.epoch else 0
                    by_version.setdefault(known, []).append(slave)
            if len(self._under_way) + len(by_version) > max(self._fetches_max, len(by_version)):
                break  # the others follow when some of these have answered
            group.next_s = now_s + self._interval_s
            actions += [self._fetch(group, known, slaves, now_s, now_s) for known, slaves in by_version.items()]
        return actions

    def _fetch(self, group: _Group, known: int, slaves: list[_Slave], now_s: float, begun_s: float) -> Fetch:
        roles = group.roles
        assert roles.master is not None, "nobody is there to be asked"
        assert slaves and not any(slave.is_busy for slave in slaves), "two checkpoints are under way to one slave"
        for slave in slaves:
            slave.is_busy = True
        numbers = tuple(slave.place.number for slave in slaves)
        fetch = Fetch(next(self._numbers), roles.group, roles.epoch, roles.master, known, numbers, now_s, begun_s)
        group.fetches[fetch.number] = fetch
        self._under_way.add(fetch.number)
        return fetch

    def next_time_s(self) -> float | None:
        """Return when the next step is due; None if there is none; a past time means that an answer has arrived."""
        return min((group.next_s for group in self._groups.values() if _can_sync(group)), default=None)

    def fetched(self, fetch: Fetch, checkpoint: ReplicaCheckpoint) -> list[Action]:
        """Process a master's answer; drop it if its epoch is over or if it was not requested."""
        group = self._ended(fetch)
        if group is None:
            return []
        slaves = [group.slaves[number] for number in fetch.slaves]
        is_good = (
            fetch.epoch == group.roles.epoch
            and (checkpoint.group, checkpoint.epoch) == (fetch.group, fetch.epoch)
            and checkpoint.version > fetch.known_version
            and checkpoint.base_version in (0, fetch.known_version)
        )
        if not is_good:
            for slave in slaves:
                slave.is_busy = False
            return []
        present = {place.number for place in group.roles.slaves}
        actions: list[Action] = []
        for slave in slaves:
            slave.is_busy = slave.place.number in present
            if slave.is_busy:
                actions.append(Give(fetch.group, slave.place, checkpoint, fetch.begun_s))
        return actions

    def not_fetched(self, fetch: Fetch) -> None:
        """Record that a master did not answer, or refused."""
        group = self._ended(fetch)
        if group is not None:
            for number in fetch.slaves:
                group.slaves[number].is_busy = False

    def _ended(self, fetch: Fetch) -> _Group | None:
        self._under_way.discard(fetch.number)
        group = self._groups.get(fetch.group)
        return None if group is None or group.fetches.pop(fetch.number, None) is None else group

    def stored(self, give: Give, now_s: float) -> list[Action]:
        """Record that a slave has stored its checkpoint."""
        found = self._receiver(give)
        if found is None:
            return []
        group, slave = found
        slave.is_busy = False
        checkpoint = give.checkpoint
        if (checkpoint.epoch, checkpoint.version) > (slave.epoch, slave.version):
            slave.epoch, slave.version = checkpoint.epoch, checkpoint.version
            slave.known_version = checkpoint.rest_from or checkpoint.version
        if not checkpoint.rest_from:
            if slave.taken_s is None or give.begun_s > slave.taken_s:
                slave.taken_s, slave.took_s = give.begun_s, now_s - give.begun_s
            return []
        if checkpoint.epoch != group.roles.epoch or group.roles.master is None or slave not in group.present():
            return []
        return [self._fetch(group, slave.known_version, [slave], now_s, give.begun_s)]

    def not_stored(self, give: Give, *, refused: bool) -> None:
        """Record that a slave did not answer, or refused: of unknown version, it gets a whole checkpoint next."""
        found = self._receiver(give)
        if found is not None:
            _, slave = found
            slave.is_busy = False
            if refused:
                slave.epoch = slave.version = slave.known_version = 0

    def _receiver(self, give: Give) -> tuple[_Group, _Slave] | None:
        """Return the slave that the checkpoint was sent to, unless another process has replaced it."""
        group = self._groups.get(give.group)
        slave = None if group is None else group.slaves.get(give.slave.number)
        return None if group is None or slave is None or slave.place != give.slave else (group, slave)

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


def _can_sync(group: _Group) -> bool:
    return group.roles.master is not None and any(not slave.is_busy for slave in group.present())
