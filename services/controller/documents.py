"""The controller's values as the documents that a store keeps (`StateStore`), and back: plain JSON objects."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from services.common.errors import CorruptDataError
from services.common.pb.popwheel.v1.controller_pb2 import Group, Topic, TopicType
from services.controller.broker_group import GroupState, IllegalStepError, ReplicaRecord, check_state
from services.controller.cluster_state import ClusterState
from services.controller.lease import Lease

CLUSTER = "cluster"
LEASE = "lease"
_GROUP_PREFIX = "group-"

Document = Mapping[str, Any]

_NOT_SO = (KeyError, TypeError, ValueError, AttributeError, binascii.Error, IllegalStepError)


def group_document_name(group: str) -> str:
    """The document of a broker group."""
    return _GROUP_PREFIX + group


def group_of_document(name: str) -> str | None:
    """The broker group that a document is of; None if it is of none."""
    return name.removeprefix(_GROUP_PREFIX) if name.startswith(_GROUP_PREFIX) else None


def cluster_document(state: ClusterState) -> Document:
    """The cluster without its brokers, which register anew."""
    return {
        "name": state.name,
        "receipt_key": base64.b64encode(state.receipt_key).decode(),
        "version": state.version,
        "topics": [
            {"name": topic.name, "type": TopicType.Name(topic.type), "queues": topic.queues, "id": topic.id}
            for topic in state.topics.values()
        ],
        "groups": [
            {
                "name": group.name,
                "max_attempts": group.max_attempts,
                "fifo": group.fifo,
                "backoff_ms": list(group.backoff_ms),
                "id": group.id,
            }
            for group in state.groups.values()
        ],
    }


def cluster_of(document: Document, source: str) -> ClusterState:
    """Read a cluster back.

    Args:
        document: what `cluster_document` made.
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
        return ClusterState(
            name=document["name"],
            receipt_key=base64.b64decode(document["receipt_key"], validate=True),
            version=document["version"],
            topics={topic.name: topic for topic in topics},
            groups={group.name: group for group in groups},
            named=document["version"],
        )
    except _NOT_SO as error:
        raise _damaged(source, error) from error


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
