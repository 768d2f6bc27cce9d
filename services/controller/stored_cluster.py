"""The document in the store that holds topics and groups: reading it, writing it, and making it for a new cluster."""

import asyncio
import math
import random
from contextlib import suppress

import structlog

from services.common.clock import Clock
from services.common.cluster import LIVES, VERSIONS_PER_LIFE
from services.controller.cluster_state import ClusterState
from services.controller.documents import CLUSTER, cluster_document, cluster_of
from services.controller.metrics import ControllerMetrics
from services.controller.state_store import ConflictError, StateStore

_RECEIPT_KEY_BYTES = 32
_READS_MAX = 16
_READ_AGAIN_S = 0.1

_logger = structlog.get_logger()


class StoredCluster:
    """One controller's hold on it.

    Args:
        store: where it is.
        alone: whether nobody else writes there.
        random_source: draws a new cluster's key.
        clock: measures how long saves take.
        metrics: what is counted.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        alone: bool,
        random_source: random.Random,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._store = store
        self._known_at_first = 0 if alone else math.inf
        self._random_source = random_source
        self._clock = clock
        self._metrics = metrics
        self.version: str | None = None
        """Of the document, as it was last read or written (`Stored.version`)."""

    async def load_or_make(self, name: str) -> ClusterState:
        """What is stored; if nothing is, a new cluster of that name. Raises as `load` does."""
        if (await self._store.read(CLUSTER)) is not None:
            return await self.load(self._known_at_first)
        begin = self._random_source.randrange(1, LIVES) * VERSIONS_PER_LIFE
        state = ClusterState(name, self._random_source.randbytes(_RECEIPT_KEY_BYTES), begin, named=begin)
        try:
            await self._store.write(CLUSTER, cluster_document(state), None)
            _logger.info("new cluster", cluster=state.name, place=self._store.where(CLUSTER))
        except ConflictError as conflict:
            _logger.info("another controller was first to make the cluster", cluster=state.name, reason=str(conflict))
        return await self.load(self._known_at_first)

    async def load(self, known: float) -> ClusterState:
        """What is stored. A read may give what was there before, as from a cache on its way: what is older than `known`
        counts only if it can be written again in its own place. Else topics would come back that are deleted.

        Args:
            known: version of the state that was certainly stored.

        Raises:
            OSError: the store is away, or gives what is not there any more.
            CorruptDataError, UnknownFormatError: it is damaged, or of another release.
        """
        place = self._store.where(CLUSTER)
        stored = None
        for attempt in range(_READS_MAX):
            if attempt:
                await asyncio.sleep(_READ_AGAIN_S)
            stored = await self._store.read(CLUSTER)
            if stored is None:
                continue
            state = cluster_of(stored.document, place)
            if state.version >= known:
                self.version = stored.version
                return state
            with suppress(ConflictError):
                self.version = await self._store.write(CLUSTER, stored.document, stored.version)
                return state
        if stored is None:
            raise FileNotFoundError(f"{place} is gone; stop all controllers and start them again to make a new one")
        raise OSError(f"{place} was read {_READS_MAX} times, and each time it held something else by then")

    async def save(self, state: ClusterState) -> None:
        """Put a state in place of the one that was last read or written.

        Raises:
            ConflictError: another controller has changed that.
            OSError: it is not known whether it was saved.
        """
        began = self._clock.monotonic()
        try:
            self.version = await self._store.write(CLUSTER, cluster_document(state), self.version)
        except OSError:
            self._metrics.save_failures.inc()
            raise
        self._metrics.saves.observe(self._clock.monotonic() - began)
