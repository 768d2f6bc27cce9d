"""The controller's values as the documents that a store keeps (`StateStore`), and back: plain JSON objects."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from services.common.contract import names
from services.common.errors import CorruptDataError, StatusError, UnknownFormatError
from services.common.pb.popwheel.v1.controller_pb2 import Group, Topic, TopicType
from services.controller.broker_groups.broker_group import GroupState, IllegalStepError, ReplicaRecord, check_state
from services.controller.cluster.cluster_book import ClusterBook, Entry, Page
from services.controller.cluster.cluster_state import ClusterState
from services.controller.leadership.lease import Lease

CLUSTER = "cluster"
LEASE = "lease"
PAGED_FORMAT = 2
_GROUP_PREFIX = "group-"
_PAGE_PREFIX = "page-"

Document = Mapping[str, Any]

_NOT_SO = (StatusError, KeyError, TypeError, ValueError, AttributeError, binascii.Error, IllegalStepError)


def group_document_name(group: str) -> str:
    """The document of a broker group."""
    return _GROUP_PREFIX + group


def group_of_document(name: str) -> str | None:
    """The broker group that a document is of; None if it is of none."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None


def page_document_name(page: str) -> str:
    """The document of a page of topics and groups."""
    return _PAGE_PREFIX + page


def page_of_document(name: str) -> str | None:
    """The page that a document is of; None if it is of none."""
    return name.removeprefix(_PAGE_PREFIX) if name.startswith(_PAGE_PREFIX) else None


def cluster_document(state: ClusterState, book: ClusterBook) -> Document:
    """The head of the cluster, without its brokers, which register anew. Without pages it is as all releases know it.

    Args:
        state: the cluster.
        book: its topics and groups as they are stored.
    """
    document = {
        "name": state.name,
        "receipt_key": base64.b64encode(state.receipt_key).decode(),
        "version": state.version,
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
    """A page of topics and groups."""
    return _entries_document(page.entries)


def cluster_of(document: Document, source: str) -> tuple[ClusterState, ClusterBook]:
    """Read the head of a cluster back.

    Args:
        document: what `cluster_document` made.
        source: where it was found, for the error's sentence.

    Returns:
        The cluster without topics and groups, and the book, whose pages know only what is deleted out of them.

    Raises:
        CorruptDataError: it is none.
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
        )
    except _NOT_SO as error:
        raise _damaged(source, error) from error
    return state, ClusterBook(pages, entries_of(document, source))


def _entries_document(entries: Mapping[int, Entry]) -> dict[str, Any]:
    topics = [entry for entry in entries.values() if isinstance(entry, Topic)]
    groups = [entry for entry in entries.values() if isinstance(entry, Group)]
    return {
        "topics": [
            {"name": topic.name, "type": TopicType.Name(topic.type), "queues": topic.queues, "id": topic.id}
            for topic in topics
        ],
        "groups": [
            {
                "name": group.name,
                "max_attempts": group.max_attempts,
                "fifo": group.fifo,
                "backoff_ms": list(group.backoff_ms),
                "id": group.id,
            }
            for group in groups
        ],
    }


def entries_of(document: Document, source: str) -> dict[int, Entry]:
    """Read the topics and groups of a head or page back, in the order of their ids.

    Args:
        document: what `cluster_document` or `page_document` made.
        source: where it was found, for the error's sentence.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        topics = [
            Topic(name=topic["name"], type=TopicType.Value(topic["type"]), queues=topic["queues"], id=topic["id"])
            for topic in document["topics"]
        ]
        groups = [
            Group(
                name=group["name"],
                max_attempts=group["max_attempts"],
                fifo=group["fifo"],
                backoff_ms=group["backoff_ms"],
                id=group["id"],
            )
            for group in document["groups"]
        ]
    except _NOT_SO as error:
        raise _damaged(source, error) from error
    entries: list[Entry] = [*topics, *groups]
    return {entry.id: entry for entry in sorted(entries, key=lambda entry: entry.id)}


def group_document(state: GroupState) -> Document:
    """A broker group."""
    return {
        "name": state.name,
        "version": state.version,
        "epoch": state.epoch,
        "master": state.master,
        "sync_state_set": sorted(state.sync_state_set),
        "replicas": [
            {"number": number, "address": record.address, "identity": record.identity.hex()}
            for number, record in sorted(state.replicas.items())
        ],
    }


def group_of(document: Document, source: str) -> GroupState:
    """Read a broker group back; `source` is where it was found.

    Raises:
        CorruptDataError: it is none, or one that must never be.
    """
    try:
        records = [
            ReplicaRecord(int(replica["number"]), str(replica["address"]), bytes.fromhex(replica["identity"]))
            for replica in document["replicas"]
        ]
        state = GroupState(
            name=str(document["name"]),
            version=int(document["version"]),
            epoch=int(document["epoch"]),
            master=int(document["master"]),
            sync_state_set=frozenset(map(int, document["sync_state_set"])),
            replicas={record.number: record for record in records},
        )
        check_state(state)
    except _NOT_SO as error:
        raise _damaged(source, error) from error
    return state


def lease_of(document: Document, source: str) -> Lease:
    """Read a lease back; `source` is where it was found.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return Lease.of(document)
    except _NOT_SO as error:
        raise _damaged(source, error) from error


def _damaged(source: str, error: Exception) -> CorruptDataError:
    return CorruptDataError(f"{source} is damaged: {error!r}; restore it from a backup")
