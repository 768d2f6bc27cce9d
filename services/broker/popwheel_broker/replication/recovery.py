"""Recovery at a replica's start: it finds, repairs and folds the stored records."""

from collections import deque
from collections.abc import Awaitable, Callable, Container
from dataclasses import replace

import structlog

from popwheel_broker.core.checkpoint import Checkpoint
from popwheel_broker.core.core import BrokerCore, QueueDamagedError
from popwheel_broker.log.record import HEADER_BYTES, length_at
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.log_epochs import LogEpochs
from popwheel_broker.replication.saved_checkpoint import SavedCheckpoint
from popwheel_common.errors import CorruptDataError

_log = structlog.get_logger()


class Recovery:
    """Start of a replica.

    Args:
        core: a fresh one, on the log that is there.
        remake_core: puts another fresh one in its place, on the same log.
        saved: the checkpoint, to be loaded.
        epochs: who wrote the log, to be loaded or learned.
        mark_suspect: records that the log is about to be cut off at a position, though others may have the rest.
    """

    def __init__(
        self,
        core: BrokerCore,
        remake_core: Callable[[], BrokerCore],
        saved: SavedCheckpoint,
        epochs: LogEpochs,
        mark_suspect: Callable[[int], Awaitable[None]],
    ) -> None:
        self._core = core
        self._log = core.store.log
        self._remake_core = remake_core
        self._saved = saved
        self._epochs = epochs
        self._mark_suspect = mark_suspect
        self.records = 0
        """Number of records read again: those that the checkpoint does not cover."""

    async def run(
        self,
        *,
        alone: bool,
        repair: Callable[[int], Awaitable[bool]],
        is_nowhere: Callable[[int], Awaitable[bool]],
    ) -> None:
        """Leave a log that is whole, and a core that has folded what of it is known to stay (`ReplicaStore.start`)."""
        log = self._log
        saved = self._saved.load(log)
        knows_epochs = self._epochs.load(saved.store)
        log.check_contiguous(saved.store.synced_position)
        tried: set[int] = set()
        damaged_queue: CorruptDataError | None = None
        while True:
            try:
                if damaged_queue is not None and not saved.store.remade:
                    # A damaged record that no replica has would be missing in new queues, too: then nothing is changed.
                    deque(log.records(log.start_position, saved.store.synced_position), 0)
                    _log.error("the queues are made again from the commit log", why=str(damaged_queue))
                    saved = replace(saved, store=replace(saved.store, remade=True))
                    await self._saved.write(saved)
                if not knows_epochs:  # first: a record of an unknown epoch can't be repaired
                    self._epochs.learn(saved.store.synced_position)
                    knows_epochs = True
                begin = self._core.begin(saved)
                if self._epochs.begins_unknown(begin):
                    self._epochs.learn(saved.store.synced_position)
                self._scan(begin, saved, tried, alone=alone)
                break
            except CorruptDataError as error:
                synced = saved.store.synced_position
                by_queue = isinstance(error, QueueDamagedError)
                positions = {each for each in log.damaged - tried if each < synced or not by_queue}
                tried |= positions  # a tail that was not asked for now is, before it goes
                log.damaged.clear()
                mended = [position for position in positions if position < synced and await repair(position)]
                tails = [position for position in positions if position >= synced]
                for position in tails:
                    await self._mend_tail(position, repair, is_nowhere)
                if not mended and not tails:
                    if not by_queue or saved.store.remade:
                        raise
                    damaged_queue = error
            self._core = self._remake_core()
        known = self._epochs.history
        if any(each.position > log.end_position for each in known):
            self._epochs.set(EpochHistory(each for each in known if each.position <= log.end_position))

    async def _mend_tail(
        self, position: int, repair: Callable[[int], Awaitable[bool]], is_nowhere: Callable[[int], Awaitable[bool]]
    ) -> None:
        """Have the records from a damaged one to the end mended, as far as another replica has them. That the rest will
        be cut off is written down before, unless nobody can have it.
        """
        while position < self._log.end_position:
            if not await repair(position):
                if not await is_nowhere(position):
                    await self._mark_suspect(position)
                return
            position += length_at(self._log.read(position, HEADER_BYTES), 0)

    def _scan(self, begin: int, saved: Checkpoint, asked: Container[int], *, alone: bool) -> None:
        """Check the log from a position on, and fold what is known to stay. A tail goes only if no other replica was
        found to have it: this one may have said that it was synced, and be chosen for that.
        """
        for found in self._log.scan(begin, saved.store.synced_position, lambda position: alone or position in asked):
            self.records += 1
            self._epochs.record(found)
            if alone or found.position < saved.store.position:
                self._core.fold(found)
