"""Registered replicas and their latest reports (pure: it is passed the time)."""

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import GroupState
from popwheel_controller.broker_groups.failure_detector import FailureDetector, Liveness
from popwheel_controller.broker_groups.group_policy import ObservedReplica, ReplicaViews

NUMBER_MAX = 63
_IDENTITY_LENGTH_MAX = 64
_ADDRESS = re.compile(r"[^\s:]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.%a-z]{2,64}\]:[0-9]{1,5}")
_ADDRESS_SHOWN = 80

Key = tuple[str, int]
"""Key of a replica: its group and its number."""


@dataclass(slots=True, eq=False)
class Session:
    """Stream on which a replica is registered.

    Args:
        report: the latest one.
        since_ms: start of the stream, wall clock.
        earlier_epoch: result of `find_earlier_epoch` at registration.
        wake: called when there is a new state for it, or it has to end.
        refusal: why the stream has to end; None while it is valid.
    """

    report: ReplicaReport
    since_ms: int
    earlier_epoch: int | None
    wake: Callable[[], None]
    refusal: StatusError | None = None

    @property
    def key(self) -> Key:
        """Key of the replica that has this session."""
        return self.report.group, self.report.replica

    def end(self, refusal: StatusError) -> None:
        """End the stream."""
        self.refusal = refusal
        self.wake()


class Replicas:
    """Sessions and liveness of all replicas.

    Args:
        detection_s: silence after which a replica is dead, in seconds.
        silent_s: silence after which it is not elected.
    """

    def __init__(self, detection_s: float, silent_s: float) -> None:
        self._detector: FailureDetector[Key] = FailureDetector(detection_s, silent_s)
        self._sessions: dict[str, dict[int, Session]] = {}
        self._last: dict[Key, Session] = {}

    def expect(self, state: GroupState, now: float) -> None:
        """Wait for the recorded replicas of a group to connect."""
        for number in state.replicas:
            self._detector.expect((state.name, number), now)

    def register(self, session: Session, now: float) -> Session | None:
        """Record a registration; return the older session of the same number, which is over."""
        group, number = session.key
        of_group = self._sessions.setdefault(group, {})
        older = of_group.get(number)
        of_group[number] = self._last[session.key] = session
        self._detector.reported(session.key, now)
        return older

    def reported(self, session: Session, report: ReplicaReport, now: float) -> bool:
        """Record a further report; return whether it may change something for its group."""
        before, session.report = session.report, report
        if self.session(*session.key) is not session:
            return False
        was = self._detector.liveness(session.key, now)
        self._detector.reported(session.key, now)
        return was is not Liveness.LIVING or _matters(before) != _matters(report)

    def left(self, session: Session) -> int | None:
        """Record the end of a stream; return the number of the probe that is due, None if none is needed."""
        group, number = session.key
        if self.session(group, number) is not session:
            return None
        del self._sessions[group][number]
        if not self._sessions[group]:
            del self._sessions[group]
        if session.report.leaving:
            self._detector.left(session.key)
            return None
        return self._detector.broke(session.key)

    def answered(self, key: Key, probe: int, now: float) -> None:
        """Record an answer to a probe."""
        self._detector.answered(key, probe, now)

    def refused(self, key: Key, probe: int) -> None:
        """Record that a probe was refused."""
        self._detector.refused(key, probe)

    def replica_views(self, group: str, numbers: Iterable[int], now: float) -> ReplicaViews:
        """Return the current views of a group's replicas; to be called for some group several times a second.

        Args:
            group: its name.
            numbers: of the recorded replicas; registered ones are added.
            now: the time.
        """
        self._detector.time_passed(now)
        wanted = {*numbers, *self._sessions.get(group, ())}
        return {number: self._seen((group, number), now) for number in wanted}

    def session(self, group: str, number: int) -> Session | None:
        """Return the stream on which a replica is registered; None if it is not."""
        return self._sessions.get(group, {}).get(number)

    def last(self, group: str, number: int) -> Session | None:
        """Return the latest stream on which it was registered, also if it is over."""
        return self._last.get((group, number))

    def sessions(self, group: str) -> list[Session]:
        """Return the sessions of a group."""
        return list(self._sessions.get(group, {}).values())

    def all_sessions(self) -> list[Session]:
        """Return the sessions of all groups."""
        return [session for of_group in self._sessions.values() for session in of_group.values()]

    def groups(self) -> list[str]:
        """Return all groups with a registered replica."""
        return list(self._sessions)

    def silent_for_s(self, key: Key, now: float) -> float | None:
        """Return the seconds since the replica's last sign of life; None if it never registered."""
        return self._detector.silent_for_s(key, now) if key in self._last else None

    def forget(self, key: Key) -> None:
        """Forget a replica, unless it is registered."""
        if self.session(*key) is None:
            self._last.pop(key, None)
            self._detector.forget(key)

    def forget_others(self, known: Container[str]) -> None:
        """Forget the replicas of all other groups, unless one is registered: clients may send any name."""
        for key in [key for key in self._last if key[0] not in known and key[0] not in self._sessions]:
            del self._last[key]
            self._detector.forget(key)

    def forget_all(self) -> None:
        """Forget everything: this controller no longer leads."""
        self._sessions.clear()
        self._last.clear()
        self._detector.forget_all()

    def _seen(self, key: Key, now: float) -> ObservedReplica:
        session = self.session(*key)
        liveness = self._detector.liveness(key, now)
        if session is None:
            return ObservedReplica(liveness)
        return ObservedReplica(liveness, session.report, session.earlier_epoch)


def check_report(report: ReplicaReport) -> None:
    """Check that a replica may be registered with this report.

    Raises:
        StatusError: BAD_REQUEST for an invalid name, number, identity or address.
    """
    names.broker_group(report.group)
    if not _ADDRESS.fullmatch(report.address):
        raise StatusError(
            Code.BAD_REQUEST,
            f"broker {report.group} must say the host:port it serves on, not {report.address[:_ADDRESS_SHOWN]!r}",
        )
    if not 0 <= report.replica <= NUMBER_MAX:
        raise StatusError(
            Code.BAD_REQUEST, f"a replica of {report.group} has a number from 0 to {NUMBER_MAX}, not {report.replica}"
        )
    if len(report.identity) > _IDENTITY_LENGTH_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"a replica's identity has at most {_IDENTITY_LENGTH_MAX} bytes, not {len(report.identity)}",
        )


def _matters(report: ReplicaReport) -> tuple[object, ...]:
    """Return the fields of a report that matter for decisions; the log's length, which always grows, does not."""
    return report.address, report.identity, report.leaving, report.epoch, report.version, report.suspect
