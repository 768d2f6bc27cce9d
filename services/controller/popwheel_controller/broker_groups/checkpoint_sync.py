"""Checkpoint sync: which master is asked for its progress when, and which slave is given what (DESIGN 4).

Pure: it is passed roles, answers and the time, and returns what is to be asked and given. Each slave goes its own way:
a difference is asked for those who know the same version, and whoever is slow or away keeps nobody waiting. Epochs
and, within one, versions that a slave is known to hold never go back (C4); nothing of an epoch that is over goes to
anybody.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace


@dataclass(frozen=True, slots=True)
class Fetch:
    """A master is to be asked for its progress.

    Args:
        number: distinguishes it from others.
        group: name of the broker group.
        epoch: of its master.
        master: whom to ask.
        known_version: that a difference may go onto; 0 for none.
        slaves: for whom.
        asked_s: when, monotonic clock.
        begun_s: when the first part of it was asked for.
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
    """A slave is to be given its master's progress.

    Args:
        group: name of the broker group.
        slave: whom.
        checkpoint: what.
        begun_s: when it was asked for, monotonic clock: its data is not older.
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
        place: where it is.
        since_s: when it was first seen.
        epoch: of what it holds; 0 if that is not known.
        version: of what it holds.
        known_version: what had changed up to here it holds.
        taken_s: when that was asked of the master; None before the first one is complete.
        took_s: how long it took from then until it was stored.
        is_busy: something is under way for it.
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
        roles: as they are now.
        next_s: when its next round begins.
        slaves: by number; those that are away are remembered, as they may come back.
        fetches: that are under way, by number.
    """

    roles: GroupRoles
    next_s: float
    slaves: dict[int, _Slave] = field(default_factory=dict)
    fetches: dict[int, Fetch] = field(default_factory=dict)

    def present(self) -> Iterator[_Slave]:
        """The slaves that live."""
        return (self.slaves[place.number] for place in self.roles.slaves)


@dataclass(frozen=True, slots=True)
class CheckpointAge:
    """Age of the progress that a slave has stored.

    Args:
        replica: its number.
        version: of what it holds; 0 if that is not known.
        age_s: since it was asked of the master, or since the slave was first seen if it has none.
        took_s: how long it took to bring it there; None if it has none.
    """

    replica: int
    version: int
    age_s: float
    took_s: float | None


class CheckpointSync:
    """Decides.

    Args:
        interval_s: how often each slave is given its master's progress, in seconds.
        fetches_max: how many masters are asked at a time, at the most.
    """

    def __init__(self, interval_s: float, fetches_max: int) -> None:
        self._interval_s = interval_s
        self._fetches_max = fetches_max
        self._groups: dict[str, _Group] = {}
        self._numbers = count(1)
        self._under_way: set[int] = set()
        """Numbers of the fetches that have not come back, also of groups that were forgotten."""

    # What is reported

    def roles(self, roles: GroupRoles, now_s: float) -> None:
        """The roles of a group are these now."""
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
        """A group is gone, or is not this controller's any more."""
        self._groups.pop(name, None)

    def time_passed(self, now_s: float) -> list[Action]:
        """Rounds that are due."""
        actions: list[Action] = []
        due = [group for group in self._groups.values() if group.next_s <= now_s and _can_sync(group)]
        for group in sorted(due, key=lambda each: each.next_s):
            by_version: dict[int, list[_Slave]] = {}
            for slave in group.present():
                if not slave.is_busy:
                    known = slave.known_version if slave.epoch == group.roles.epoch else 0
                    by_version.setdefault(known, []).append(slave)
            if len(self._under_way) + len(by_version) > max(self._fetches_max, len(by_version)):
                break  # the others have their turn when some of those under way are back
            group.next_s = now_s + self._interval_s
            actions += [self._fetch(group, known, slaves, now_s, now_s) for known, slaves in by_version.items()]
        return actions

    def _fetch(self, group: _Group, known: int, slaves: list[_Slave], now_s: float, begun_s: float) -> Fetch:
        roles = group.roles
        assert roles.master is not None, "nobody is there to be asked"
        assert slaves and not any(slave.is_busy for slave in slaves), "a slave is given two checkpoints at a time"
        for slave in slaves:
            slave.is_busy = True
        numbers = tuple(slave.place.number for slave in slaves)
        fetch = Fetch(next(self._numbers), roles.group, roles.epoch, roles.master, known, numbers, now_s, begun_s)
        group.fetches[fetch.number] = fetch
        self._under_way.add(fetch.number)
        return fetch

    def next_time_s(self) -> float | None:
        """Return when the next step is due; None if there is none. A time in the past means that an answer has come."""
        return min((group.next_s for group in self._groups.values() if _can_sync(group)), default=None)

    def fetched(self, fetch: Fetch, checkpoint: ReplicaCheckpoint) -> list[Action]:
        """A master has answered. Nothing is given of an epoch that is over, or that was not asked for."""
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
        """A master has not answered, or refused."""
        group = self._ended(fetch)
        if group is not None:
            for number in fetch.slaves:
                group.slaves[number].is_busy = False

    def _ended(self, fetch: Fetch) -> _Group | None:
        self._under_way.discard(fetch.number)
        group = self._groups.get(fetch.group)
        return None if group is None or group.fetches.pop(fetch.number, None) is None else group

    def stored(self, give: Give, now_s: float) -> list[Action]:
        """A slave has stored what it was given."""
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
        """A slave has not answered, or refused: then it is not known what it holds, and it is given all."""
        found = self._receiver(give)
        if found is not None:
            _, slave = found
            slave.is_busy = False
            if refused:
                slave.epoch = slave.version = slave.known_version = 0

    def _receiver(self, give: Give) -> tuple[_Group, _Slave] | None:
        """Return the slave that was sent the checkpoint, unless it is another process by now."""
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
        """The groups that are known."""
        return list(self._groups)


def _can_sync(group: _Group) -> bool:
    return group.roles.master is not None and any(not slave.is_busy for slave in group.present())
