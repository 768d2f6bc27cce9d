"""Epochs of a log by position: by them two replicas find where their logs diverge.

Each epoch has one writer (S5), and its followers have a prefix of its records (S4). So two logs with records of the
same epoch are equal up to the end of that epoch in the shorter one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from popwheel_common.errors import CorruptDataError

EPOCHS_MAX = 512
"""Limit of epochs known, the latest.

A log that parts from another in an older one is copied anew; its records of then cannot be repaired.
"""


class EpochStart(NamedTuple):
    """An epoch, and where in the log its first record stands or is to stand."""

    epoch: int
    position: int


class EpochHistory:
    """The epochs of one log, oldest first, at most `EPOCHS_MAX`; both their numbers and their starts grow.

    An epoch that wrote nothing starts where the one after it starts.

    Args:
        starts: the epochs.

    Raises:
        ValueError: they are not in order.
    """

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._epochs: list[int] = []
        self._positions: list[int] = []
        for epoch, position in starts:
            self.begin(epoch, position)

    def __iter__(self) -> Iterator[EpochStart]:
        return map(EpochStart, self._epochs, self._positions)

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EpochHistory({', '.join(f'{epoch} from {position}' for epoch, position in self)})"

    @property
    def latest(self) -> int:
        """Last epoch that began, also one without records; 0 if there is none."""
        return self._epochs[-1] if self._epochs else 0

    @property
    def latest_position(self) -> int:
        """Position where the latest epoch began; 0 if there is none."""
        return self._positions[-1] if self._positions else 0

    def begin(self, epoch: int, position: int) -> None:
        """An epoch begins at the log's end.

        Raises:
            ValueError: it is not later than the last one, or `position` is before that one's start.
        """
        if epoch <= self.latest or position < self.latest_position:
            raise ValueError(f"epoch {epoch} can't begin at {position} after {self!r}")
        self._epochs.append(epoch)
        self._positions.append(position)
        del self._epochs[:-EPOCHS_MAX], self._positions[:-EPOCHS_MAX]

    def record(self, epoch: int, position: int) -> bool:
        """Record the epoch of a record at the log's end; return whether it is new.

        Raises:
            CorruptDataError: a later epoch has written before it, which can't be.
        """
        if epoch == self.latest:
            return False
        if epoch < self.latest:
            raise CorruptDataError(
                f"the record at {position} is of epoch {epoch}, though epoch {self.latest} began before it"
            )
        self.begin(epoch, position)
        return True

    def cut(self, position: int) -> bool:
        """Remove the epochs that begin at `position` or later, after a cut; return whether there were any."""
        kept = bisect_left(self._positions, position)
        gone = kept < len(self._epochs)
        del self._epochs[kept:], self._positions[kept:]
        return gone

    def up_to(self, position: int) -> "EpochHistory":
        """Return the history of a log that ends at `position`."""
        history = EpochHistory(self)
        history.cut(position)
        return history

    def last_epoch(self, end_position: int) -> int:
        """Return the epoch of the last record of a log that ends at `end_position`; 0 if that is not known."""
        return self.epoch_at(end_position - 1)

    def epoch_at(self, position: int) -> int:
        """Return the epoch that wrote the byte at `position`; 0 if that is before the known epochs."""
        index = bisect_right(self._positions, position) - 1
        return self._epochs[index] if index >= 0 else 0

    def end_of(self, epoch: int, end_position: int) -> int | None:
        """Return where an epoch's records end in a log that ends at `end_position`; None if the epoch is not known."""
        index = bisect_left(self._epochs, epoch)
        if index == len(self._epochs) or self._epochs[index] != epoch:
            return None
        return self._positions[index + 1] if index + 1 < len(self._positions) else end_position


@dataclass(frozen=True, slots=True)
class LogOutline:
    """Outline of a log, for a comparison with another.

    Args:
        start_position: of the oldest record.
        end_position: behind the newest one.
        epochs: epochs of its records.
    """

    start_position: int
    end_position: int
    epochs: EpochHistory


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Plan of how a follower joins its master's log.

    Args:
        position: where its log goes on. All that it has from there on it drops.
        anew: nothing that it has is of use: it drops all, begins with the master's checkpoint, and takes the whole log
            that the master has.
    """

    position: int
    anew: bool


def join_plan(master: LogOutline, follower: LogOutline) -> JoinPlan:
    """Return where a follower's log parts from its master's, and whether it can go on from there."""
    position = _parting(master, follower)
    if position is None or not follower.start_position <= position or position < master.start_position:
        return JoinPlan(master.start_position, anew=True)
    return JoinPlan(position, anew=False)


def _parting(master: LogOutline, follower: LogOutline) -> int | None:
    """Return the position up to which both logs are certainly equal; None if they have nothing in common."""
    for epoch, _ in reversed(list(follower.epochs)):
        theirs = master.epochs.end_of(epoch, master.end_position)
        ours = follower.epochs.end_of(epoch, follower.end_position)
        if theirs is not None and ours is not None:
            return min(theirs, ours)
    return 0 if follower.start_position == 0 else None
