"""All that is stored as packed numbers, at the limits of each field and past them.

What a record can hold comes back as it was, so that memory and log say the same (S6). What it can't hold is refused by
whoever packs it, before anything is appended or changed; nothing is cut off silently, or becomes another number.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.consume import delivery as delivery_codec
from popwheel_broker.consume import quarantine_entry as quarantine
from popwheel_broker.consume.delivery import Delivery, OffsetCommit, Origin
from popwheel_broker.consume.quarantine_entry import EntryFlag, QuarantineEntry, Step
from popwheel_broker.delay import timer_checkpoint, unit
from popwheel_broker.log import consume_queue, index_file
from popwheel_broker.log import record as records
from popwheel_broker.log import timer_record as delay
from popwheel_broker.log.fault import REASON_LENGTH_MAX, RecordFaultError
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.replication import superblock
from popwheel_broker.replication.epochs import EPOCHS_MAX, EpochStart
from popwheel_broker.transactions import half
from popwheel_common.contract import send_id

SERVICES = Path(__file__).resolve().parents[3] / "services"

U1, U2, U4, U8 = ((0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
I8 = (-(1 << 63), (1 << 63) - 1)
TIMER_FIELDS = [field.name for field in fields(timer_checkpoint.TimerCheckpoint)]
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to pack something.

    Args:
        fields: what it says: numbers by their least and greatest value, or other values that it may have.
        encode: packs them.
        decode: the same fields, as they are read.
    """

    fields: Mapping[str, tuple[int, int] | list[Any]]
    encode: Callable[[Fields], bytes]
    decode: Callable[[bytes], Fields]


def stored(payload: bytes = b"", origin: bytes = b"", **fields: Any) -> StoredRecord:
    """A record as it is read."""
    known: Fields = {
        "kind": 1,
        "topic": "t",
        "queue_id": 0,
        "system_properties": b"",
        "tag_hash": 0,
        "attempts": 0,
        "position": 0,
        "length": 0,
        "epoch": 1,
        "store_time_ms": 0,
        "queue_offset": 0,
    }
    return StoredRecord(payload=payload, origin=origin, **(known | fields))


def encode_record(fields: Fields) -> bytes:
    place = {name: fields[name] for name in ("position", "epoch", "store_time_ms", "queue_offset")}
    said = {name: value for name, value in fields.items() if name not in place}
    _, buffers = records.encode(Record(kind=RecordKind.MESSAGE, payload=b"body", **said), **place)
    return b"".join(buffers)


def decode_record(data: bytes) -> Fields:
    (position,) = struct.unpack_from(">Q", data, 12)
    found = records.decode(data, 0, position)
    assert (found.payload, found.length, found.kind) == (b"body", len(data), RecordKind.MESSAGE)
    return found._asdict()


def encode_delivery(fields: Fields) -> bytes:
    start = fields["start_offset"]
    return Delivery(
        fields["id"],
        *("g" * 255, "t" * 255, fields["origin"], fields["queue_id"], start, fields["next_offset"]),
        *(fields["pop_time_ms"], fields["invisible_ms"], fields["due_ms"], fields["first_position"]),
        (start,),
        replaces=Origin(fields["replaces"], fields["index"]),
        call=fields["call"],
        copies={0: fields["copy"]},
        renewed={0: fields["renewed"]},
        lines=(fields["line"],),
        attempts=(fields["attempts"],),
        is_suspended=fields["is_suspended"],
    ).encode()


def decode_delivery(data: bytes) -> Fields:
    found = Delivery.decode(data, 0)
    assert (found.group, found.topic, found.open_bits, found.sources) == ("g" * 255, "t" * 255, 1, ())
    assert found.replaces is not None
    return {name: getattr(found, name) for name in Delivery.__slots__} | {
        "replaces": found.replaces.delivery_id,
        "index": found.replaces.index,
        "copy": found.copies[0],
        "renewed": found.due_of(0),
        "line": found.lines[0],
        "attempts": found.attempts[0],
    }


def encode_members(fields: Fields) -> bytes:
    difference = fields["difference"]
    return Delivery(
        *(8, "g", "t", 0, 0, 5, 5 + difference + 1, 1, 2, 3, 4, (5, 5 + difference)),
        open_bits=fields["open_bits"],
        lines=(1, fields["line"]),
        attempts=(fields["attempts"], 0),
        sources=(Origin(fields["source"], fields["index"]), Origin(1, 0)),
        is_blocked=fields["is_blocked"],
    ).encode()


def decode_members(data: bytes) -> Fields:
    found = Delivery.decode(data, 0)
    assert not found.is_suspended
    return {
        "difference": found.offsets[1] - found.offsets[0],
        "open_bits": found.open_bits,
        "line": found.lines[1],
        "attempts": found.attempts[0],
        "source": found.sources[0].delivery_id,
        "index": found.sources[0].index,
        "is_blocked": found.is_blocked,
    }


def encode_entry(fields: Fields) -> bytes:
    origin, kind = fields.pop("inner_origin"), fields.pop("kind")
    entry = QuarantineEntry(Step.ANSWER, EntryFlag(3), b"", **fields)
    return entry.encode(kind, origin, b"body")


def decode_entry(data: bytes) -> Fields:
    kept = quarantine.decode_stored_entry(stored(data))
    assert (kept.payload, kept.entry.step, kept.entry.flags) == (b"body", Step.ANSWER, EntryFlag(3))
    said = {name: getattr(kept.entry, name) for name in QuarantineEntry.__slots__}
    return said | {"kind": kept.kind, "inner_origin": kept.inner_origin}


def encode_superblock(fields: Fields) -> bytes:
    contents = superblock.Contents(
        bytes(range(16)),
        b"g" * fields["group"],
        (EpochStart(fields["epoch"], fields["start"]),) * fields["epochs"],
        fields["log_start"],
        *(fields["is_installing"], fields["is_suspect"]),
    )
    return superblock.encode(contents, fields["sequence"])


def decode_superblock(data: bytes) -> Fields:
    found = superblock.decode(data)
    assert found is not None and found[1].identity == bytes(range(16))
    sequence, contents = found
    return {name: getattr(contents, name) for name in superblock.Contents.__slots__} | {
        "sequence": sequence,
        "group": len(contents.group),
        "epochs": len(contents.epochs),
        "epoch": contents.epochs[-1][0],
        "start": contents.epochs[-1][1],
    }


def encode_unit(fields: Fields) -> bytes:
    write_ms = fields["write_time_ms"]
    said = {name: fields[name] for name in ("previous", "flags", "position", "length", "topic_hash")}
    due_ms, slot_ms = write_ms + fields["delay_ms"], (write_ms // 1000 + fields["slot"]) * 1000
    return unit.encode(write_time_ms=write_ms, due_ms=due_ms, slot_ms=slot_ms, **said)


def decode_unit(data: bytes) -> Fields:
    found = unit.decode(data, 0)
    delay_ms, slot = found.due_ms - found.write_time_ms, found.slot_ms // 1000 - found.write_time_ms // 1000
    return found._asdict() | {"delay_ms": delay_ms, "slot": slot}


BOOLS = [False, True]

CODECS = {
    "record": Codec(
        {
            "topic": ["t", "t" * 255],
            "origin": [b"", b"o" * 255],
            "system_properties": [b"", b"p" * 70_000],
            "queue_id": U2,
            "tag_hash": U8,
            "attempts": U2,
            "position": U8,
            "epoch": U4,
            "store_time_ms": U8,
            "queue_offset": U8,
        },
        encode_record,
        decode_record,
    ),
    "delivery": Codec(
        {
            "id": U8,
            "origin": U1,
            "queue_id": U2,
            "start_offset": (0, (1 << 64) - 2),
            "next_offset": ((1 << 64) - 1, (1 << 64) - 1),
            "pop_time_ms": U8,
            "invisible_ms": U8,
            "due_ms": U8,
            "first_position": U8,
            "replaces": U8,
            "index": U2,
            "call": U8,
            "copy": (0, (1 << 64) - 2),
            "renewed": U8,
            "line": U8,
            "attempts": (0, (1 << 15) - 1),
            "is_suspended": BOOLS,
        },
        encode_delivery,
        decode_delivery,
    ),
    "members of a delivery": Codec(
        {
            "difference": (1, (1 << 32) - 1),
            "open_bits": [0, 1, 2, 3],
            "line": U8,
            "attempts": (0, (1 << 15) - 1),
            "source": (1, (1 << 64) - 1),
            "index": U2,
            "is_blocked": BOOLS,
        },
        encode_members,
        decode_members,
    ),
    "origin": Codec(
        {"delivery_id": U8, "index": U2},
        lambda fields: Origin(**fields).encode(),
        lambda data: {name: getattr(Origin.decode(data), name) for name in Origin.__slots__},
    ),
    "offset": Codec(
        {"group": ["g", "g" * 255], "topic": ["t", "t" * 255], "queue_id": U2, "offset": U8},
        lambda fields: OffsetCommit(**fields).encode(),
        lambda data: {name: getattr(OffsetCommit.decode(data), name) for name in OffsetCommit.__slots__},
    ),
    "acknowledgement": Codec(
        {"id": U8, "bits": (1, (1 << 65_535) - 1)},
        lambda fields: delivery_codec.encode_ack(fields["id"], fields["bits"]),
        lambda data: dict(zip(("id", "bits"), delivery_codec.decode_ack(data), strict=True)),
    ),
    "renewal": Codec(
        {"id": U8, "bits": (1, (1 << 65_535) - 1), "due_ms": U8},
        lambda fields: delivery_codec.encode_renewal(fields["id"], fields["bits"], fields["due_ms"]),
        lambda data: dict(zip(("id", "bits", "due_ms"), delivery_codec.decode_renewal(data), strict=True)),
    ),
    "call": Codec(
        {"call": U8},
        lambda fields: delivery_codec.encode_call(fields["call"]),
        lambda data: {"call": delivery_codec.decode_call(data)},
    ),
    "redriven": Codec(
        {"offset": U8},
        lambda fields: delivery_codec.redriven_origin(fields["offset"]),
        lambda data: {"offset": delivery_codec.decode_redriven(data)},
    ),
    "quarantine entry": Codec(
        {
            "position": U8,
            "root": U8,
            "group": ["", "g" * 255],
            "topic": ["", "t" * 255, "\\xff"],
            "queue_id": U2,
            "queue_offset": U8,
            "reason": ["", "r" * REASON_LENGTH_MAX, str(RecordFaultError("é\udc80€" * REASON_LENGTH_MAX))],
            "kind": U1,
            "inner_origin": [b"", b"o" * 255],
        },
        encode_entry,
        decode_entry,
    ),
    "delay": Codec(
        {
            "topic": ["t", "t" * 127],
            "queue_id": U2,
            "topic_id": I8,
            "due_ms": I8,
            "root": I8,
            "predecessor": I8,
        },
        lambda fields: delay.Delay(**fields).encode(),
        lambda data: delay.decode_delay(data)._asdict(),
    ),
    "fired": Codec(
        {"position": U8},
        lambda fields: delay.fired_origin(fields["position"]),
        lambda data: {"position": delay.fired_timer(stored(origin=data))},
    ),
    "unit": Codec(
        {
            "previous": (-1, I8[1]),
            "flags": (0, 7),
            "write_time_ms": (0, 1 << 60),
            "delay_ms": U4,
            "slot": (-(1 << 31), (1 << 31) - 1),
            "position": I8,
            "length": U4,
            "topic_hash": U4,
        },
        encode_unit,
        decode_unit,
    ),
    "timer checkpoint": Codec(
        dict.fromkeys(TIMER_FIELDS, I8),
        lambda fields: timer_checkpoint.encode(timer_checkpoint.TimerCheckpoint(**fields)),
        lambda data: {name: getattr(timer_checkpoint.decode(data), name) for name in TIMER_FIELDS},
    ),
    "half message": Codec(
        {"topic": ["t", "t" * 127], "queue_id": U2, "topic_id": I8, "first_check_ms": I8},
        lambda fields: half.HalfTarget(**fields).encode(),
        lambda data: half.decode_half(data)._asdict(),
    ),
    "committed half": Codec(
        {"position": U8},
        lambda fields: half.committed_record(half.HalfTarget("t", 0, 1, 0), stored(**fields)).origin,
        lambda data: {"position": half.committed_half(stored(origin=data))},
    ),
    "check of a half": Codec(
        {"position": U8, "checks": U2},
        lambda fields: half.check_record(fields["position"], fields["checks"]).payload,
        lambda data: dict(zip(("position", "checks"), half.decode_check(data), strict=True)),
    ),
    "end of a half": Codec(
        {"position": U8, "resolution": list(half.Resolution)},
        lambda fields: half.end_record(fields["position"], fields["resolution"]).payload,
        lambda data: dict(zip(("position", "resolution"), half.decode_end(data), strict=True)),
    ),
    "superblock": Codec(
        {
            "group": [0, 16_000],
            "epochs": [1, EPOCHS_MAX],
            "epoch": U8,
            "start": U8,
            "log_start": U8,
            "sequence": U8,
            "is_installing": BOOLS,
            "is_suspect": BOOLS,
        },
        encode_superblock,
        decode_superblock,
    ),
    "entry of a queue": Codec(
        {"position": U8, "length": U4, "tag_hash": U8},
        lambda fields: consume_queue.packed_entry(fields["position"], fields["length"], fields["tag_hash"]),
        lambda data: consume_queue.unpacked_entries(data)[0]._asdict(),
    ),
    "row of an index file": Codec(
        {"first": U8, "size": U4, "place": U8},
        lambda fields: index_file._ROW.pack(b"k" * 16, fields["first"], fields["size"], fields["place"]),
        lambda data: index_file.Row._make(index_file._ROW.unpack(data))._asdict(),
    ),
    "id of a send": Codec(
        {"number": U8},
        lambda fields: send_id.encode_send_id(fields["number"]),
        lambda data: {"number": send_id.send_id_of(data)},
    ),
}

ELSEWHERE = {
    "services/broker/popwheel_broker/consume/progress_record.py": "broker/test_passed_offsets.py",
    "services/broker/popwheel_broker/log/raw_records.py": "broker/replica/test_raw_records.py",
    "services/broker/popwheel_broker/core/checkpoint.py": "broker/test_checkpoint_file.py",
    "services/broker/popwheel_broker/delay/wheel.py": "broker/test_timer_wheel.py",
    "services/common/popwheel_common/contract/record_block.py": "common/test_record_block.py",
    "services/common/popwheel_common/contract/wire_format.py": "broker/test_delivered_message.py",
}
"""Modules with frames around something else, or numbers of any length, and the tests that bring those back."""

PASSING = {
    "services/rpc": "what is sent, and not stored",
}


@st.composite
def values_of(draw: st.DrawFn, codec: Codec) -> Fields:
    def value(limits: tuple[int, int] | list[Any]) -> Any:
        if isinstance(limits, list):
            return draw(st.sampled_from(limits))
        least, most = limits
        return draw(st.sampled_from((least, most)) | st.integers(least, most))

    return {name: value(limits) for name, limits in codec.fields.items()}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
@settings(max_examples=15)
def test_what_can_be_said_comes_back(name: str, data: st.DataObject) -> None:
    codec = CODECS[name]
    fields = data.draw(values_of(codec))
    found = codec.decode(codec.encode(dict(fields)))
    assert {each: found[each] for each in fields} == fields


@pytest.mark.parametrize("name", CODECS)
def test_each_field_comes_back_at_its_limits_and_is_refused_past_them(name: str) -> None:
    codec = CODECS[name]
    middle = {
        each: limits[0] if isinstance(limits, list) else max(limits[0], min(limits[1], 1))
        for each, limits in codec.fields.items()
    }
    for field, limits in codec.fields.items():
        for value in limits:
            found = codec.decode(codec.encode(middle | {field: value}))
            assert found[field] == value, field
        if isinstance(limits, list):
            continue
        least, most = limits
        for past in () if least == most else (least - 1, most + 1):
            try:
                found = codec.decode(codec.encode(middle | {field: past}))
            except (struct.error, OverflowError, ValueError, AssertionError):
                continue
            assert found[field] == past, f"{field}: {past} became {found[field]}"


def test_every_module_that_packs_numbers_has_such_a_test() -> None:
    """A new codec is added here, or named with the test that brings its bytes back."""
    paths = {packer.__name__.replace(".", "/") for packer in _modules()}
    tested = {next(SERVICES.glob(f"*/{path}.py")) for path in paths}
    found = {path for path in SERVICES.rglob("*.py") if _packs(path.read_text())}
    root = SERVICES.parent
    for path in sorted(found - tested):
        name = path.relative_to(root).as_posix()
        if name in ELSEWHERE:
            assert (root / "tests/unit" / ELSEWHERE[name]).exists(), ELSEWHERE[name]
        else:
            assert name.startswith(tuple(PASSING)), f"{name} packs numbers that no test brings back"
    gone = {name for name in (*ELSEWHERE, *PASSING) if not (root / name).exists()}
    assert not gone, "they are not there any more"


def _modules() -> list[Any]:
    return [
        *(records, delivery_codec, quarantine, delay, unit, timer_checkpoint, half),
        *(superblock, consume_queue, index_file, send_id),
    ]


def _packs(source: str) -> bool:
    """Return whether a module packs numbers."""
    return any(word in source for word in ("Struct(", ".to_bytes(", "struct.pack", ".tobytes("))


def test_a_reason_is_the_same_in_memory_and_in_the_log() -> None:
    """Whatever an error says, and in whichever alphabet (S6)."""
    for text in ("é" * 1000, "\ud800", "a\nb", "€" * 299 + "xyz"):
        fault = RecordFaultError(text)
        assert len(str(fault)) <= REASON_LENGTH_MAX
        entry = QuarantineEntry(Step.ANSWER, EntryFlag(0), b"", 1, 1, "g", "t", 0, 0, str(fault))
        assert quarantine.decode_stored_entry(stored(entry.encode(0, b"", b""))).entry.reason == entry.reason
