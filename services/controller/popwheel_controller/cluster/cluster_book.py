"""Layout of topics and groups in the store: immutable pages, and a head that names the valid ones (pure).

Topics and groups are stored in the order of their creation or change: the latest in the head, which moves many of them
at once to a new page. The head lists the entries deleted from each page. A changed entry is deleted from its page and
added to the head under its old id. When many entries are deleted, the page that has lost most is rewritten under a new
name. So a change writes the head and seldom a page, for any number of topics. Pages that the head names are always
complete, even if a writer crashes.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from popwheel_common.contract import names
from popwheel_common.contract.cluster_id import checked_cluster_id
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.errors import StatusError, UnknownFormatError
from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.deleted_names import DeletedNames
from popwheel_controller.store.state_store import PAGED_FORMAT, Document, damaged

Entry = Topic | Group

_TOPIC_BYTES: Final = 70
_GROUP_BYTES: Final = 85
_EXPONENTIAL_BYTES: Final = 110
_NUMBER_BYTES: Final = 10
_ID_BYTES: Final = 16
_HEAD_SHARE: Final = 4
_NOT_SO: Final = (StatusError, KeyError, TypeError, ValueError, AttributeError)
"""Errors that reading a malformed document raises."""


@dataclass(frozen=True, slots=True)
class Page:
    """Page of topics and groups, stored as one document.

    Args:
        name: of the document, never reused.
        entries: those that still exist, by id.
        deleted: ids of the others.
    """

    name: str
    entries: Mapping[int, Entry]
    deleted: frozenset[int] = frozenset()
    topics: int = field(init=False, compare=False)
    """Number of topics among the entries; the others are groups."""

    def __post_init__(self) -> None:
        count = sum(isinstance(entry, Topic) for entry in self.entries.values())
        object.__setattr__(self, "topics", count)

    def without(self, gone: Iterable[int]) -> "Page":
        """Return the page without some of its entries."""
        gone = self.deleted.union(gone)
        return Page(self.name, {id_: entry for id_, entry in self.entries.items() if id_ not in gone}, gone)


@dataclass(frozen=True, slots=True)
class ClusterBook:
    """Immutable layout of all stored topics and groups.

    Args:
        pages: in the order of their creation.
        recent: entries in the head, which are in no page yet, by id.
    """

    pages: tuple[Page, ...] = ()
    recent: Mapping[int, Entry] = field(default_factory=dict)

    def changed(
        self, come: Iterable[Entry], gone: Iterable[Entry], page_bytes: int, new_name: Callable[[], str]
    ) -> "ClusterBook":
        """Return the book after a change.

        Args:
            come: created entries, and changed ones as they are now.
            gone: deleted entries, and changed ones as they were before.
            page_bytes: approximate size limit of a page; that of the head's entries is a quarter of it.
            new_name: returns unused names for pages.
        """
        gone_ids = {entry.id for entry in gone}
        recent = {id_: entry for id_, entry in self.recent.items() if id_ not in gone_ids}
        gone_ids -= self.recent.keys()
        recent.update((entry.id, entry) for entry in come)
        left = (page.without(lost) if (lost := gone_ids & page.entries.keys()) else page for page in self.pages)
        pages = [page for page in left if page.entries]
        if _bytes_of(recent) > page_bytes // _HEAD_SHARE:
            _write_anew(pages, len(pages), recent, page_bytes, new_name)
            recent = {}
        while sum(len(page.deleted) for page in pages) * _ID_BYTES > page_bytes // _HEAD_SHARE:
            worst = max(range(len(pages)), key=lambda number: len(pages[number].deleted))
            _write_anew(pages, worst, pages.pop(worst).entries, page_bytes, new_name)
        assert len({page.name for page in pages}) == len(pages), "two pages have the same name"
        return ClusterBook(tuple(pages), recent)


def _write_anew(
    pages: list[Page], place: int, entries: Mapping[int, Entry], page_bytes: int, new_name: Callable[[], str]
) -> None:
    """Put entries into pages at an index, merged with the previous page if both fit into one."""
    if place and _bytes_of(entries) + _bytes_of(pages[place - 1].entries) <= page_bytes:
        place -= 1
        entries = {**pages.pop(place).entries, **entries}
    made: list[dict[int, Entry]] = []
    left = 0
    for id_, entry in sorted(entries.items()):
        size = bytes_of(entry)
        if size > left:
            made.append({})
            left = max(page_bytes, size)
        left -= size
        made[-1][id_] = entry
    pages[place:place] = [Page(new_name(), each) for each in made]


def bytes_of(entry: Entry) -> int:
    """Return an upper estimate of an entry's size in a document, in bytes."""
    if isinstance(entry, Topic):
        return _TOPIC_BYTES + len(entry.name)
    backoff = _EXPONENTIAL_BYTES if entry.HasField("exponential_backoff") else _NUMBER_BYTES * len(entry.backoff_ms)
    return _GROUP_BYTES + len(entry.name) + backoff


def _bytes_of(entries: Mapping[int, Entry]) -> int:
    return sum(map(bytes_of, entries.values()))


def cluster_document(state: ClusterState, book: ClusterBook) -> Document:
    """Return the head of the cluster, without brokers, which register anew. All releases can read a head without pages.

    Args:
        state: the cluster.
        book: layout of its topics and groups.
    """
    document = {
        "name": state.name,
        "receipt_key": base64.b64encode(state.receipt_key).decode(),
        "version": state.version,
        **({"id": state.id} if state.id else {}),
        **({"deleted_topics": state.deleted_topics.document()} if state.deleted_topics else {}),
        **({"deleted_groups": state.deleted_groups.document()} if state.deleted_groups else {}),
        **_entries_document(book.recent),
    }
    if book.pages:
        document["format"] = PAGED_FORMAT
        document["pages"] = [
            {
                "name": page.name,
                "topics": page.topics,
                "groups": len(page.entries) - page.topics,
                "deleted": sorted(page.deleted),
            }
            for page in book.pages
        ]
    return document


def page_document(page: Page) -> Document:
    """Return the document of a page of topics and groups."""
    return _entries_document(page.entries)


def cluster_of(document: Document, source: str) -> tuple[ClusterState, ClusterBook]:
    """Read the head of a cluster.

    Args:
        document: made by `cluster_document`.
        source: name of its place, for errors.

    Returns:
        The cluster without topics and groups, and the book, whose pages have only the ids of deleted entries.

    Raises:
        CorruptDataError: the document is malformed.
        UnknownFormatError: it is of a later release.
    """
    if document.get("format", PAGED_FORMAT) != PAGED_FORMAT:
        raise UnknownFormatError(
            f"{source} is of format {document['format']!r}, this release knows none after {PAGED_FORMAT}; "
            "run the release that wrote it, or a newer one"
        )
    try:
        pages = tuple(
            Page(names.page(page["name"]), {}, frozenset(page["deleted"])) for page in document.get("pages", ())
        )
        state = ClusterState(
            name=names.cluster(document["name"]),
            receipt_key=base64.b64decode(document["receipt_key"], validate=True),
            version=document["version"],
            named=document["version"],
            id=checked_cluster_id(document.get("id", "")),
            deleted_topics=DeletedNames.of_document(document.get("deleted_topics", {})),
            deleted_groups=DeletedNames.of_document(document.get("deleted_groups", {})),
        )
    except _NOT_SO as error:
        raise damaged(source, error) from error
    return state, ClusterBook(pages, entries_of(document, source))


def _entries_document(entries: Mapping[int, Entry]) -> dict[str, Any]:
    topics = [entry for entry in entries.values() if isinstance(entry, Topic)]
    groups = [entry for entry in entries.values() if isinstance(entry, Group)]
    return {
        "topics": [
            {
                "name": topic.name,
                "type": TopicType.Name(topic.type),
                "queues": topic.queues,
                "id": topic.id,
                **{each.name: value for each in TOPIC_SETTINGS if (value := each.of(topic)) != each.default},
                **({"lane_queues": topic.message_group_queues} if topic.message_group_queues else {}),
                **({"paused_ms": topic.paused_ms} if topic.paused_ms else {}),
            }
            for topic in topics
        ],
        "groups": [
            {
                "name": group.name,
                "max_attempts": group.max_attempts,
                "fifo": group.fifo,
                "backoff_ms": list(group.backoff_ms),
                "id": group.id,
                **_exponential(group),
                **({"paused_ms": group.paused_ms} if group.paused_ms else {}),
            }
            for group in groups
        ],
    }


def _exponential(group: Group) -> dict[str, Any]:
    """Return a group's exponential back-off; nothing for other groups, which all releases can read."""
    if not group.HasField("exponential_backoff"):
        return {}
    policy = group.exponential_backoff
    facts = {"initial_ms": policy.initial_ms, "max_ms": policy.max_ms, "multiplier": policy.multiplier}
    return {"exponential_backoff": facts}


def entries_of(document: Document, source: str) -> dict[int, Entry]:
    """Read the topics and groups of a head or page, in the order of their ids.

    Args:
        document: made by `cluster_document` or `page_document`.
        source: name of its place, for errors.

    Raises:
        CorruptDataError: the document is malformed.
    """
    try:
        topics = [
            Topic(
                name=topic["name"],
                type=TopicType.Value(topic["type"]),
                queues=topic["queues"],
                id=topic["id"],
                message_group_queues=topic.get("lane_queues", 0),
                paused_ms=topic.get("paused_ms", 0),
                **{each.name: topic[each.name] for each in TOPIC_SETTINGS if each.name in topic},
            )
            for topic in document["topics"]
        ]
        groups = [
            Group(
                name=group["name"],
                max_attempts=group["max_attempts"],
                fifo=group["fifo"],
                backoff_ms=group["backoff_ms"],
                id=group["id"],
                exponential_backoff=group.get("exponential_backoff"),
                paused_ms=group.get("paused_ms", 0),
            )
            for group in document["groups"]
        ]
    except _NOT_SO as error:
        raise damaged(source, error) from error
    entries: list[Entry] = [*topics, *groups]
    return {entry.id: entry for entry in sorted(entries, key=lambda entry: entry.id)}
