"""State that the records of the log make up.

`Fold.apply` is the one place that changes such state: live, as a record is appended, and as the log is read again. So
what a restart or a slave rebuilds is what the master had (S6), by construction. The model is the coordinator's
`replay` in Kafka (KIP-848).
"""

from collections.abc import Callable
from typing import Protocol

from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record import Record, RecordKind, StoredRecord, stored


class Fold(Protocol):
    """State that follows the log."""

    @property
    def kinds(self) -> frozenset[RecordKind]:
        """Kinds of records that may change it."""

    def concerns(self, kind: int, origin: bytes) -> bool:
        """Return whether a record of one of these kinds, with this origin, may change it now. It spares most records
        the way through `apply`.
        """

    def apply(self, found: StoredRecord) -> None:
        """Follow one record, live or replayed.

        Raises:
            UnknownFormatError: it was written by a newer release.
        """


def _not_folded(found: StoredRecord, fault: RecordFaultError) -> None:
    raise fault


class Folds:
    """State that follows one log, in the order in which it was added.

    Attributes:
        on_fault: called with a record that was appended and cannot be applied. A replay fails in the same way.
    """

    def __init__(self) -> None:
        self._by_kind: dict[int, tuple[Fold, ...]] = {}
        self.on_fault: Callable[[StoredRecord, RecordFaultError], None] = _not_folded

    def add(self, fold: Fold) -> None:
        """Have some state follow the log from now on."""
        for kind in fold.kinds:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), fold)

    def replay(self, found: StoredRecord) -> None:
        """Apply a record that was read from the log. It raises as `Fold.apply` does."""
        for fold in self._by_kind.get(found.kind, ()):
            if fold.concerns(found.kind, found.origin):
                fold.apply(found)

    def appended(
        self, record: Record, position: int, length: int, epoch: int, store_time_ms: int, queue_offset: int
    ) -> None:
        """Apply a record that was appended just now. It stays in the log also if that fails.

        Args:
            record: it.
            position, length, epoch, store_time_ms, queue_offset: as in `StoredRecord`.
        """
        found = None
        for fold in self._by_kind.get(record.kind, ()):
            if fold.concerns(record.kind, record.origin):
                if found is None:  # most messages concern no fold
                    found = stored(record, position, length, epoch, store_time_ms, queue_offset)
                try:
                    with RECORD_STEP:
                        fold.apply(found)
                except RecordFaultError as fault:
                    self.on_fault(found, fault)
