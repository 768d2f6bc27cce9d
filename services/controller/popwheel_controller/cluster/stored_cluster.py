"""The documents in the store that hold topics and groups (`cluster_book`): reading them, writing them, and making them
for a new cluster.
"""

import asyncio
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import structlog

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import STORE_IDS, VERSIONS_PER_STORE
from popwheel_common.contract.names import is_group, is_topic, shown
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic
from popwheel_controller.cluster.cluster_book import (
    ClusterBook,
    Entry,
    Page,
    cluster_document,
    cluster_of,
    entries_of,
    page_document,
)
from popwheel_controller.cluster.cluster_state import ClusterState, Named
from popwheel_controller.cluster.metrics import ClusterMetrics
from popwheel_controller.cluster.name_map import NameMap
from popwheel_controller.store.state_store import CLUSTER, ConflictError, StateStore, page_document_name

_RECEIPT_KEY_BYTES = 32
_PAGE_NAME_BYTES = 8
_READS_MAX = 16
_READ_AGAIN_S = 0.1
_PAGES_AT_ONCE = 4
_ENTRIES_AT_ONCE = 500
_DELETED_AT_ONCE = 4
_SHOWN_MAX = 10

_logger = structlog.get_logger()


class StoredCluster:
    """One controller's hold on them.

    A change takes place with the write of the head, by compare-and-swap. Pages are written before it, each under a name
    that no page had before. A page is deleted only after a later write of the head that does not name it: a head that
    names it would have to be made from an earlier one, and so is refused.

    Args:
        store: where they are.
        alone: whether nobody else writes there.
        random_source: draws a new cluster's key, and the names of pages.
        clock: measures how long saves take.
        metrics: what is counted.
        page_bytes: about so many bytes a page has at the most.
    """

    def __init__(
        self,
        store: StateStore,
        *,
        alone: bool,
        random_source: random.Random,
        clock: Clock,
        metrics: ClusterMetrics,
        page_bytes: int,
    ) -> None:
        self._store = store
        self._known_at_first = 0 if alone else math.inf
        self._random_source = random_source
        self._clock = clock
        self._metrics = metrics
        self._page_bytes = page_bytes
        self._state = ClusterState("", b"")
        self._book = ClusterBook()
        self._spare: dict[str, None] = {}
        """Pages that may be there and that the head does not name: to be deleted after its next write."""
        self.version: str | None = None
        """Version of the head when it was last read or written (`Stored.version`)."""

    @property
    def pages(self) -> int:
        """Number of pages of the cluster."""
        return len(self._book.pages)

    async def load_or_make(self, name: str) -> ClusterState:
        """Return the stored cluster, or a new one of that name if none is stored. Raises as `load` does."""
        if (await self._store.read(CLUSTER)) is not None:
            state = await self.load(self._known_at_first)
            self._spare.update(dict.fromkeys(await self._store.pages()))
            return state
        begin = self._random_source.randrange(1, STORE_IDS) * VERSIONS_PER_STORE
        state = ClusterState(name, self._random_source.randbytes(_RECEIPT_KEY_BYTES), begin, named=begin)
        try:
            await self._store.write(CLUSTER, cluster_document(state, ClusterBook()), None)
            _logger.info("new cluster", cluster=state.name, place=self._store.where(CLUSTER))
        except ConflictError as conflict:
            _logger.info("another controller was first to make the cluster", cluster=state.name, reason=str(conflict))
        return await self.load(self._known_at_first)

    async def load(self, known: float) -> ClusterState:
        """Load the stored cluster. A read may return an older state, for example from a cache.

        A state older than `known` counts only if it can be written back in its own place. Else deleted topics would
        come back.

        Args:
            known: version of the state that was certainly stored.

        Raises:
            OSError: the store is away, or gives what is not there any more.
            CorruptDataError, UnknownFormatError: it is damaged, or of another release.
        """
        place = self._store.where(CLUSTER)
        stored = missing = None
        for attempt in range(_READS_MAX):
            if attempt:
                await asyncio.sleep(_READ_AGAIN_S)
            stored = await self._store.read(CLUSTER)
            if stored is None:
                continue
            head, book = cluster_of(stored.document, place)
            version = stored.version
            if head.version < known:
                try:
                    version = await self._store.write(CLUSTER, stored.document, stored.version)
                except ConflictError:
                    continue
            pages = await self._read_pages(book.pages)
            missing = next((page.name for page, found in zip(book.pages, pages, strict=True) if found is None), None)
            if missing is None:
                await self._take_up(head, ClusterBook(tuple(page for page in pages if page), book.recent))
                self.version = version
                return self._state
        if stored is None:
            raise FileNotFoundError(f"{place} is gone; stop all controllers and start them again to make a new one")
        if missing is not None:
            where = self._store.where(page_document_name(missing))
            raise CorruptDataError(f"{where} is gone, which {place} names; restore both from one backup")
        raise OSError(f"{place} was read {_READS_MAX} times, and each time it held something else by then")

    async def save(self, state: ClusterState) -> None:
        """Replace the state that was last read or written.

        Raises:
            ConflictError: another controller has changed that.
            OSError: it is not known whether it was saved.
        """
        began = self._clock.monotonic()
        new_topics, gone_topics = state.topics.difference(self._state.topics)
        new_groups, gone_groups = state.groups.difference(self._state.groups)
        come: list[Entry] = [*new_topics.values(), *new_groups.values()]
        book = self._book.changed(
            sorted(come, key=lambda entry: entry.id),
            (*gone_topics.values(), *gone_groups.values()),
            self._page_bytes,
            lambda: self._random_source.randbytes(_PAGE_NAME_BYTES).hex(),
        )
        there = {page.name for page in self._book.pages}
        await asyncio.sleep(0)  # to encode a page takes as long as all this did
        try:
            for page in book.pages:
                if page.name not in there:
                    self._spare[page.name] = None
                    await self._store.write(page_document_name(page.name), page_document(page), None)
            self.version = await self._store.write(CLUSTER, cluster_document(state, book), self.version)
        except OSError:
            self._metrics.save_failures.inc()
            raise
        self._metrics.saves.observe(self._clock.monotonic() - began)
        self._spare.update(dict.fromkeys(there))
        for page in book.pages:
            self._spare.pop(page.name, None)
        self._state, self._book = state, book
        await self._delete_spare()

    async def _delete_spare(self) -> None:
        """Delete some of the pages that nothing names any more; those that are left come after later writes."""
        for name in list(islice(self._spare, _DELETED_AT_ONCE)):
            try:
                with suppress(ConflictError):  # somebody else was first
                    await self._store.delete(page_document_name(name), None)
            except OSError as error:
                _logger.warning("a page that is not needed any more could not be deleted", page=name, reason=str(error))
                return
            del self._spare[name]

    async def _read_pages(self, pages: Sequence[Page]) -> list[Page | None]:
        """Read pages, but those that are known; None for one that is not there."""
        known = {page.name: page for page in self._book.pages}
        found: list[Page | None] = []
        for first in range(0, len(pages), _PAGES_AT_ONCE):
            some = pages[first : first + _PAGES_AT_ONCE]
            found += await asyncio.gather(*(self._page(page, known.get(page.name)) for page in some))
        return found

    async def _page(self, page: Page, known: Page | None) -> Page | None:
        """A page of which the head says what is deleted."""
        if known is not None and page.deleted >= known.deleted:
            return known if page.deleted == known.deleted else known.without(page.deleted)
        name = page_document_name(page.name)
        stored = await self._store.read(name)
        if stored is None:
            return None
        await asyncio.sleep(0)  # to take it up takes as long as to read it
        return Page(page.name, entries_of(stored.document, self._store.where(name))).without(page.deleted)

    async def _take_up(self, head: ClusterState, book: ClusterBook) -> None:
        """Apply what was read: unchanged names share their data with the state before."""
        old = {id_: entry for entries in _entries(self._book, book) for id_, entry in entries.items()}
        come: list[Entry] = []
        for some in _entries(book, self._book):
            for id_, entry in some.items():
                if old.get(id_) == entry:
                    del old[id_]
                else:
                    come.append(entry)
            await asyncio.sleep(0)
        gone = list(old.values())
        strange: list[str] = []
        topics, groups = self._state.topics, self._state.groups
        for entries, there in ((gone, False), (come, True)):
            for first in range(0, len(entries), _ENTRIES_AT_ONCE):
                part = entries[first : first + _ENTRIES_AT_ONCE]
                strange += [entry.name for entry in part if there and not _is_legal(entry)]
                topics = _changed(topics, [entry for entry in part if isinstance(entry, Topic)], there)
                groups = _changed(groups, [entry for entry in part if isinstance(entry, Group)], there)
                await asyncio.sleep(0)
        if strange:  # they stay, so that no broker drops what it holds of them
            few = [shown(name) for name in strange[:_SHOWN_MAX]]
            _logger.warning("names are stored that can't be used, only deleted", count=len(strange), names=few)
        self._state = replace(head, topics=topics, groups=groups)
        self._book = book


def _entries(book: ClusterBook, other: ClusterBook) -> Iterator[Mapping[int, Entry]]:
    """Yield the entries of a book page by page, without the pages that another book shares."""
    shared = {id(page) for page in other.pages}
    for page in book.pages:
        if id(page) not in shared:
            yield page.entries
    yield book.recent


def _changed(named: NameMap[Named], entries: Sequence[Named], there: bool) -> NameMap[Named]:
    """A map after some of its entries have come, or gone."""
    if there:
        return named.changed({entry.name: entry for entry in entries}, ())
    return named.changed({}, [entry.name for entry in entries])


def _is_legal(entry: Entry) -> bool:
    return is_topic(entry.name) if isinstance(entry, Topic) else is_group(entry.name)
