"""The checkpoint file: how far the broker's progress is saved, so that recovery reads only what came after.

Magic `PWCP`, version 2 bytes, CRC-32C 4 bytes of the rest, then JSON.
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

from google_crc32c import value

from services.broker.known_names import SavedNames
from services.broker.old_names import OldNames
from services.broker.pop.pop_state import PopSnapshot
from services.broker.store.message_store import StoreCheckpoint
from services.common.errors import CorruptDataError, UnknownFormatError
from services.common.names import is_storable

_PREFIX = struct.Struct(">4sHI")
_MAGIC = b"PWCP"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a broker saves besides its log.

    Args:
        store: of the message store.
        pop: of the pop state, at the same position of the log.
        names: the topics and groups that were known there.
        quarantine: what was set aside there (`services.broker.quarantine.table`).
    """

    store: StoreCheckpoint = field(default_factory=StoreCheckpoint)
    pop: PopSnapshot = field(default_factory=PopSnapshot)
    names: SavedNames = field(default_factory=SavedNames)
    quarantine: list[list[Any]] = field(default_factory=list)


def encode(checkpoint: Checkpoint) -> bytes:
    """The contents of the file."""
    store, pop, names = checkpoint.store, checkpoint.pop, checkpoint.names
    body = json.dumps(
        {
            "position": store.position,
            "synced_position": store.synced_position,
            "epoch": store.epoch,
            "queues": store.queues or {},
            "offsets_from": store.offsets_from,
            "remade": store.remade,
            "offsets": pop.offsets,
            "revive_offsets": pop.revive_offsets,
            "next_number": pop.next_number,
            "pop_time_ms": pop.time_ms,
            "topic_ids": names.topic_ids,
            "group_ids": names.group_ids,
            "former_topic_ids": names.former_topic_ids,
            "heard": names.heard,
            "quarantine": checkpoint.quarantine,
        },
        separators=(",", ":"),
    ).encode()
    return _PREFIX.pack(_MAGIC, _VERSION, value(body)) + body


def decode(data: bytes) -> Checkpoint:
    """Read the contents of the file.

    Raises:
        CorruptDataError: it is damaged.
        UnknownFormatError: it was written by a release that this one does not know.
    """
    if len(data) < _PREFIX.size:
        raise CorruptDataError("the checkpoint file is cut off; restore it from a replica or a backup")
    magic, version, checksum = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size :]
    if magic != _MAGIC or (version == _VERSION and value(body) != checksum):
        raise CorruptDataError("the checkpoint file is damaged; restore it from a replica or a backup")
    if version != _VERSION:
        raise UnknownFormatError(f"the checkpoint file has format version {version}, this release knows {_VERSION}")
    fields = json.loads(body)
    return Checkpoint(
        store=StoreCheckpoint(
            position=fields["position"],
            synced_position=fields["synced_position"],
            epoch=fields["epoch"],
            queues={topic: _by_queue(of_topic) for topic, of_topic in _storable(fields["queues"]).items()},
            offsets_from=fields.get("offsets_from", 0),
            remade=fields.get("remade", False),
        ),
        pop=PopSnapshot(
            offsets={
                group: {topic: _by_queue(of_topic) for topic, of_topic in _storable(topics).items()}
                for group, topics in fields["offsets"].items()
            },
            revive_offsets=tuple(fields["revive_offsets"]),
            next_number=fields["next_number"],
            time_ms=fields.get("pop_time_ms", 0),
        ),
        names=SavedNames(
            topic_ids=fields["topic_ids"],
            group_ids=fields["group_ids"],
            former_topic_ids=fields.get("former_topic_ids", {}),
            heard=fields.get("heard", 0),
        ),
        quarantine=fields.get("quarantine", []),
    )


def _storable(by_topic: dict[str, Any]) -> dict[str, Any]:
    """What is said of topics that a record can be of: an older release took note of others, which never held any."""
    if all(map(is_storable, by_topic)):
        return by_topic
    old_names = OldNames()
    for topic in by_topic:
        if not is_storable(topic):
            old_names.met(topic, "it holds nothing and is dropped")
    return {topic: said for topic, said in by_topic.items() if is_storable(topic)}


def _by_queue(queues: dict[str, list[int]]) -> dict[int, tuple[int, int]]:
    return {int(queue_id): (first, second) for queue_id, (first, second) in queues.items()}
