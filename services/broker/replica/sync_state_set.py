"""Which replicas must have a message before it is acknowledged, and how far they all are. Told the time, pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from services.broker.replica.options import ReplicationOptions


@dataclass(frozen=True, slots=True)
class SetChange:
    """What the controller is to be asked (`Controller.ChangeSyncStateSet`).

    Args:
        version: of the group's state that this is based on.
        members: the set that is wanted.
    """

    version: int
    members: frozenset[int]


class SyncStateSet:
    """The sync-state set as its master has it, for one epoch.

    Positions are of the log, times are milliseconds of a clock that never jumps (`Clock.steady_ms`).

    Args:
        me: the master's number.
        version: of the group's state that made it master.
        members: of the set, by that state.
        position: where its log ends, all of it synced, when it begins to lead.
        options: settings.
        on_watermark: called whenever a watermark, or `enough`, has changed; it must not raise.
    """

    confirmed_position: int
    """What is before it may be acknowledged to senders, and be read: the set has it on its devices. Never falls."""
    held_position: int
    """What is before it outlives the process of the master: the set has received it. Never falls."""
    replicated_position: int
    """As `confirmed_position`, but with `ack_mode: master` still what the whole set has: what slaves are told."""
    members: frozenset[int]
    """By the controller's word."""
    enough: bool
    """Whether the set is as large as `min_in_sync_replicas` says. If not, sends are refused; those that were waiting
    when the set shrank are to be answered as refused, too, though they may come to be read."""

    def __init__(
        self,
        me: int,
        version: int,
        members: Iterable[int],
        position: int,
        options: ReplicationOptions,
        on_watermark: Callable[[], None],
    ) -> None:
        raise NotImplementedError

    def appended(self, end_position: int, now_ms: int) -> None:
        """The master has appended."""
        raise NotImplementedError

    def synced(self, position: int) -> None:
        """The master has synced."""
        raise NotImplementedError

    def decided(self, version: int, members: Iterable[int]) -> None:
        """The controller's state of the group has become known, by an answer or by the registration stream; passed
        over if it is not newer."""
        raise NotImplementedError
