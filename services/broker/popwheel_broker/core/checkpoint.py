"""The checkpoint file: the saved progress of the broker, so that recovery reads only what came after.

Each save adds the changes; now and then the file is rewritten with the whole state. Two slots of 4 KiB are followed by
frames. A slot: magic `PWCP`, version 2 bytes, CRC-32C 4 bytes of the rest, then the end of what is on the device, 8
bytes; they are written in turns. A frame: length 4 bytes, CRC-32C 4 bytes of all frames' bodies up to here, then JSON.
Frames with rows are followed by one that has a `head`: a save without it never finished.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NoReturn

from google_crc32c import extend, value

from popwheel_broker.consume.merge_buffer import ProgressChanges, pair_of
from popwheel_broker.consume.pop_clock import LogTime
from popwheel_broker.consume.pop_state import PopSnapshot
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.log.queues import QueueChanges
from popwheel_broker.topics.topic_registry import SavedNames
from popwheel_common.clock import Uptime
from popwheel_common.errors import CorruptDataError, UnknownFormatError

_SLOT = struct.Struct(">4sHIQ")
_END = struct.Struct(">Q")
_FRAME = struct.Struct(">II")
_MAGIC = b"PWCP"
_VERSION = 2
SLOT_BYTES = 4096
SLOTS = 2
BEGIN = SLOTS * SLOT_BYTES
"""Position of the first frame."""

_ROWS_PER_FRAME = 2000
_GONE = -1

Row = tuple[Any, ...]
"""Row of a frame: its kind, which is a field of the frame's JSON, then its content."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State that a broker saves besides its log.

    Args:
        store: of the message store.
        pop: of the pop state, at the same position of the log.
        names: the topics and groups that were known there.
        quarantine: poison messages there (`popwheel_broker.consume.quarantine_table`).
        halves: transactions, by the positions of their half messages (`popwheel_broker.transactions.table`).
    """

    store: StoreCheckpoint = field(default_factory=StoreCheckpoint)
    pop: PopSnapshot = field(default_factory=PopSnapshot)
    names: SavedNames = field(default_factory=SavedNames)
    quarantine: list[list[Any]] = field(default_factory=list)
    halves: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def head(self) -> "Checkpoint":
        """Return the same without queues, offsets, names and transactions, of which there may be many."""
        names = SavedNames(applied_version=self.names.applied_version, former_states=self.names.former_states)
        return Checkpoint(replace(self.store, queues=None), replace(self.pop, offsets={}), names, self.quarantine)

    def rows(self) -> Iterator[Row]:
        """Yield all rows but the head."""
        for topic, queues in (self.store.queues or {}).items():
            for queue_id, bounds in queues.items():
                yield ("queues", topic, queue_id, *bounds)
        for group, topics in self.pop.offsets.items():
            for topic, queues in topics.items():
                for queue_id, offsets in queues.items():
                    yield ("offsets", group, topic, queue_id, *offsets)
        for topic in {**self.names.topic_ids, **self.names.former_topic_ids}:
            yield ("topics", topic, self.names.topic_ids.get(topic), self.names.former_topic_ids.get(topic, []))
        for group, identity in self.names.group_ids.items():
            yield ("groups", group, identity)
        for group, topics_read in self.names.reads.items():
            yield ("reads", [group, *topics_read])
        for group, former in self.names.former_group_ids.items():
            yield ("former_groups", [group, *former])
        known = self.names
        for kind, all_settings, all_former in (
            ("topic_settings", known.topic_settings, known.former_topic_settings),
            ("group_settings", known.group_settings, known.former_group_settings),
        ):
            for name, settings in all_settings.items():
                yield (kind, [name, settings, *([all_former[name]] if name in all_former else [])])
        for position, row in self.halves.items():
            yield ("halves", position, row)


@dataclass(frozen=True, slots=True)
class CheckpointChanges:
    """Changes since the save before; they do not change any more.

    Args:
        head: the checkpoint without its rows.
        queues: of the store.
        progress: of the groups.
        others: changed topics, groups and transactions; rows.
    """

    head: Checkpoint
    queues: QueueChanges
    progress: ProgressChanges
    others: list[Row]

    def rows(self) -> Iterator[Row]:
        """Yield all rows but the head, in the order in which they are restored."""
        for topic in self.queues.gone:
            yield ("gone_topics", topic)
        for row in self.queues.rows():
            yield ("queues", *row)
        for group in self.progress.gone_groups:
            yield ("gone_groups", group)
        for group, offsets_in in self.progress.offsets.items():
            for queue, offsets in offsets_in.items():
                pair = (_GONE, _GONE) if offsets is None else pair_of(offsets)
                yield ("offsets", group, queue.topic, queue.queue_id, *pair)
        yield from self.others


def _body(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the body of a frame with these rows."""
    body: dict[str, Any] = {}
    queues: dict[str, list[int]] = {}
    offsets: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        kind = row[0]
        if kind == "queues":
            of_topic = queues.get(row[1])
            if of_topic is None:
                of_topic = queues[row[1]] = []
            of_topic += row[2:]
        elif kind == "offsets":
            offsets.setdefault(row[1], {}).setdefault(row[2], []).extend(row[3:])
        elif kind in ("topics", "groups", "halves"):
            body.setdefault(kind, {})[row[1]] = row[2:]
        else:
            body.setdefault(kind, []).append(row[1])
    return body | {kind: values for kind, values in (("queues", queues), ("offsets", offsets)) if values}


def _head(head: Checkpoint) -> dict[str, Any]:
    store, pop = head.store, head.pop
    return {
        "position": store.position,
        "synced_position": store.synced_position,
        "epoch": store.epoch,
        "offsets_from": store.offsets_from,
        "remade": store.remade,
        "reached": store.reached,
        "revive_offsets": pop.revive_offsets,
        "next_number": pop.next_number,
        "pop_time_ms": pop.time.ms,
        "pop_uptime": pop.time.uptime,
        "heard": head.names.applied_version,
        "former_states": head.names.former_states,
        "quarantine": head.quarantine,
    }


class CheckpointFrames:
    """Makes frames, one behind the other.

    Args:
        end: offset of the next one in the file.
        checksum: of all before it.
    """

    def __init__(self, end: int = BEGIN, checksum: int = 0) -> None:
        self.end = end
        self.checksum = checksum

    def of(self, rows: Iterable[Row]) -> Iterator[bytes]:
        """Yield frames of rows, of a bounded number each."""
        rest = iter(rows)
        while body := _body(islice(rest, _ROWS_PER_FRAME)):
            yield self._frame(body)

    def last(self, head: Checkpoint) -> bytes:
        """Return the frame that makes a save valid."""
        return self._frame({"head": _head(head)})

    def _frame(self, body: dict[str, Any]) -> bytes:
        data = json.dumps(body, separators=(",", ":")).encode()
        self.checksum = extend(self.checksum, data)
        self.end += _FRAME.size + len(data)
        return _FRAME.pack(len(data), self.checksum) + data


def slot(end: int) -> bytes:
    """Return the slot that marks all before `end` as on the device."""
    return _SLOT.pack(_MAGIC, _VERSION, value(_END.pack(end)), end).ljust(SLOT_BYTES, b"\0")


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the contents of a file that is rewritten."""
    frames = CheckpointFrames()
    rows = b"".join(frames.of(checkpoint.rows()))  # before the last frame, whose checksum goes on from theirs
    data = rows + frames.last(checkpoint)
    return slot(frames.end) * SLOTS + data


def decode(data: bytes) -> Checkpoint:
    """Read the contents of a file. Raises as `CheckpointReader.steps`."""
    reader = CheckpointReader(data)
    for _ in reader.steps():
        pass
    return reader.checkpoint


class CheckpointReader:
    """Reads the contents of a file.

    Args:
        data: what is in it.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._queues: dict[str, dict[int, tuple[int, int]]] = {}
        self._offsets: dict[str, dict[str, dict[int, tuple[int, int]]]] = {}
        self._names = SavedNames()
        self._halves: dict[int, list[Any]] = {}
        self.checkpoint = Checkpoint()
        """Checkpoint that was saved last."""
        self.frames: CheckpointFrames | None = None
        """Frames that the next save continues; None for an old version, which is to be rewritten."""

    def steps(self) -> Iterator[None]:
        """Read the whole file, one frame for each step.

        Raises:
            CorruptDataError: it is damaged. An incomplete frame behind the end in the slots is a save that never
                finished, and no damage.
            UnknownFormatError: it was written by a newer release.
        """
        ends = [end for at in range(0, BEGIN, SLOT_BYTES) if (end := _slot_end(self._data, at)) is not None]
        if not ends:
            _refuse(self._data)
        end_of_slots = max(ends)
        waiting: list[dict[str, Any]] = []
        head: dict[str, Any] | None = None
        frames = CheckpointFrames()
        while (body := self._next(frames)) is not None:
            # Rows of a save are void without its head; for those before the end in the slots, it is there.
            if frames.end > end_of_slots and "head" not in body:
                waiting.append(body)
                continue
            for each in (*waiting, body):
                self._take(each)
                yield
            waiting.clear()
            if "head" in body:
                head = body["head"]
                self.frames = CheckpointFrames(frames.end, frames.checksum)
        if head is None or self.frames is None or self.frames.end < end_of_slots:
            raise _damaged()
        self.checkpoint = self._checkpoint(head)

    def _next(self, frames: CheckpointFrames) -> dict[str, Any] | None:
        """Return the next frame if it is whole."""
        begin = frames.end + _FRAME.size
        if len(self._data) < begin:
            return None
        length, checksum = _FRAME.unpack_from(self._data, frames.end)
        data = self._data[begin : begin + length]
        if not data or len(data) < length or extend(frames.checksum, data) != checksum:
            return None
        frames.end, frames.checksum = begin + length, checksum
        body: dict[str, Any] = json.loads(data)
        return body

    def _take(self, body: dict[str, Any]) -> None:
        for topic in body.get("gone_topics", ()):
            self._queues.pop(topic, None)
        for topic, row in body.get("queues", {}).items():
            self._queues.setdefault(topic, {}).update(_by_queue(row))
        for group in body.get("gone_groups", ()):
            self._offsets.pop(group, None)
        for group, topics in body.get("offsets", {}).items():
            for topic, row in topics.items():
                self._take_offsets(group, topic, _by_queue(row))
        names = self._names
        for topic, (identity, former) in body.get("topics", {}).items():
            _put(names.topic_ids, topic, identity)
            _put(names.former_topic_ids, topic, former or None)
        for group, (identity,) in body.get("groups", {}).items():
            _put(names.group_ids, group, identity)
        for group, *topics_read in body.get("reads", ()):
            _put(names.reads, group, topics_read or None)
        for group, *former_ids in body.get("former_groups", ()):
            _put(names.former_group_ids, group, former_ids or None)
        for topic, settings, *former in body.get("topic_settings", ()):
            _put(names.topic_settings, topic, settings)
            _put(names.former_topic_settings, topic, former[0] if former else None)
        for group, settings, *former in body.get("group_settings", ()):
            _put(names.group_settings, group, settings)
            _put(names.former_group_settings, group, former[0] if former else None)
        for position, (row,) in body.get("halves", {}).items():
            self._halves.pop(int(position), None)  # what has changed last stands last
            if row is not None:
                self._halves[int(position)] = row

    def _take_offsets(self, group: str, topic: str, offsets: dict[int, tuple[int, int]]) -> None:
        topics = self._offsets.setdefault(group, {})
        queues = topics.setdefault(topic, {})
        queues.update(offsets)
        for queue_id in [queue_id for queue_id, pair in offsets.items() if pair[0] == _GONE]:
            del queues[queue_id]
        if not queues:
            del topics[topic]
        if not topics:
            del self._offsets[group]

    def _checkpoint(self, head: dict[str, Any]) -> Checkpoint:
        return Checkpoint(
            StoreCheckpoint(
                position=head["position"],
                synced_position=head["synced_position"],
                epoch=head["epoch"],
                queues=self._queues,
                offsets_from=head["offsets_from"],
                remade=head["remade"],
                reached=head.get("reached", head["synced_position"]),  # an older release saved only what was synced
            ),
            PopSnapshot(
                self._offsets,
                tuple(head["revive_offsets"]),
                head["next_number"],
                LogTime(head["pop_time_ms"], Uptime(*head["pop_uptime"])),
            ),
            replace(
                self._names,
                applied_version=head["heard"],
                former_states=[(version, applied) for version, applied in head.get("former_states", ())],
            ),
            head["quarantine"],
            self._halves,
        )


def _put(names: dict[str, Any], name: str, known: object) -> None:
    if known is None:
        names.pop(name, None)
    else:
        names[name] = known


def _by_queue(row: list[int]) -> dict[int, tuple[int, int]]:
    return dict(zip(row[::3], zip(row[1::3], row[2::3], strict=True), strict=True))


def _slot_end(data: bytes, at: int) -> int | None:
    """Return the end that a slot has; None if it is damaged."""
    if len(data) < at + _SLOT.size:
        return None
    magic, version, checksum, end = _SLOT.unpack_from(data, at)
    return end if (magic, version) == (_MAGIC, _VERSION) and value(_END.pack(end)) == checksum else None


def _damaged() -> CorruptDataError:
    return CorruptDataError("the checkpoint file is damaged; restore it from a replica or a backup")


def _refuse(data: bytes) -> NoReturn:
    """Raise the reason why a file has no valid slot."""
    if len(data) < BEGIN:
        raise CorruptDataError("the checkpoint file is cut off; restore it from a replica or a backup")
    magic, version, *_ = _SLOT.unpack_from(data)
    if magic == _MAGIC and version != _VERSION:
        raise UnknownFormatError(
            f"the checkpoint file has format version {version}, this release knows those up to {_VERSION}"
        )
    raise _damaged()
