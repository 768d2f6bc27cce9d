"""Storage of topics and groups (`cluster_book`): reads, writes and creates their documents."""

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
    """Access of one controller to the documents.

    A change is committed by the compare-and-swap of the head. Its pages are written before, each under an unused name.
    A page is deleted only after a later head without it was written: a head that names it would be based on an earlier
    one, and so is refused.

    Args:
        store: of the documents.
        alone: whether this controller is the only writer.
        random_source: draws a new cluster's key, and the names of pages.
        clock: measures how long saves take.
        metrics: of the cluster's state.
        page_bytes: approximate size limit of a page.
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
        """Pages that may exist and that the head does not name: to be deleted after its next write."""
        self.version: str | None = None
        """Version of the head when it was last read or written (`Stored.version`)."""

    @property
    def pages(self) -> int:
        """Number of pages of the cluster."""
        return len(self._book.pages)

    async def load_or_make(self, name: str) -> ClusterState:
        """Return the stored cluster, or a new one of that name if none is stored; raise as `load` does."""
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
            _logger.info("another controller has created the cluster", cluster=state.name, reason=str(conflict))
        return await self.load(self._known_at_first)

    async def load(self, known: float) -> ClusterState:
        """Load the stored cluster. A read may return an older state, for example from a cache.

        A state older than `known` counts only if it can be written back in place. Else deleted topics would reappear.

        Args:
            known: version that was certainly stored.

        Raises:
            OSError: the store is unavailable, or returns outdated documents.
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
        raise OSError(f"{place} was read {_READS_MAX} times, and changed during each read")

    async def save(self, state: ClusterState) -> None:
        """Replace the state that was read or written last.

        Raises:
            ConflictError: another controller has changed it.
            OSError: the outcome is unknown.
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
        await asyncio.sleep(0)  # encoding a page takes as long as all of the above
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
        """Delete some of the unused pages; the others follow after later writes."""
        for name in list(islice(self._spare, _DELETED_AT_ONCE)):
            try:
                with suppress(ConflictError):  # another controller was first
                    await self._store.delete(page_document_name(name), None)
            except OSError as error:
                _logger.warning("an unused page could not be deleted", page=name, reason=str(error))
                return
            del self._spare[name]

    async def _read_pages(self, pages: Sequence[Page]) -> list[Page | None]:
        """Read pages, except known ones; None for a missing page."""
        known = {page.name: page for page in self._book.pages}
        found: list[Page | None] = []
        for first in range(0, len(pages), _PAGES_AT_ONCE):
            some = pages[first : first + _PAGES_AT_ONCE]
            found += await asyncio.gather(*(self._page(page, known.get(page.name)) for page in some))
        return found

    async def _page(self, page: Page, known: Page | None) -> Page | None:
        """Read a page, without the entries that the head lists as deleted."""
        if known is not None and page.deleted >= known.deleted:
            return known if page.deleted == known.deleted else known.without(page.deleted)
        name = page_document_name(page.name)
        stored = await self._store.read(name)
        if stored is None:
            return None
        await asyncio.sleep(0)  # applying it takes as long as reading it
        return Page(page.name, entries_of(stored.document, self._store.where(name))).without(page.deleted)

    async def _take_up(self, head: ClusterState, book: ClusterBook) -> None:
        """Apply what was read; unchanged names share their data with the previous state."""
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
        if strange:  # not dropped, as brokers would delete their messages
            few = [shown(name) for name in strange[:_SHOWN_MAX]]
            _logger.warning("stored names are invalid; they can only be deleted", count=len(strange), names=few)
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
    """Return a map after some of its entries were added or removed."""
    if there:
        return named.changed({entry.name: entry for entry in entries}, ())
    return named.changed({}, [entry.name for entry in entries])


def _is_legal(entry: Entry) -> bool:
    return is_topic(entry.name) if isinstance(entry, Topic) else is_group(entry.name)
