"""The checkpoint file: what is saved comes back, changes upon changes are the whole, and damage is seen."""

import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume.pop_clock import LogTime
from popwheel_broker.consume.pop_state import PopSnapshot
from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import (
    BEGIN,
    SLOT_BYTES,
    SLOTS,
    Checkpoint,
    CheckpointFrames,
    CheckpointReader,
    Row,
)
from popwheel_broker.log.message_store import StoreCheckpoint
from popwheel_broker.topics.topic_registry import SavedNames
from popwheel_common.clock import Uptime
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from tests.unit.broker.world import saved_after

NAMES = st.text(min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**63)
PAIRS = st.dictionaries(st.integers(0, 2**16), st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=3)
BY_TOPIC = st.dictionaries(NAMES, PAIRS, max_size=3)
CHECKPOINTS = st.builds(
    Checkpoint,
    store=st.builds(StoreCheckpoint, NUMBERS, NUMBERS, NUMBERS, BY_TOPIC, NUMBERS, st.booleans(), NUMBERS),
    pop=st.builds(
        PopSnapshot,
        st.dictionaries(NAMES, st.dictionaries(NAMES, PAIRS, min_size=1, max_size=3), max_size=3),
        st.tuples(*[NUMBERS] * 8),
        NUMBERS,
        st.builds(LogTime, NUMBERS, st.builds(Uptime, NAMES, NUMBERS)),
    ),
    names=st.builds(
        SavedNames,
        st.dictionaries(NAMES, NUMBERS, max_size=3),
        st.dictionaries(NAMES, NUMBERS, max_size=3),
        st.dictionaries(NAMES, st.lists(NUMBERS, min_size=1, max_size=3), max_size=3),
        NUMBERS,
        st.just({}),
        st.dictionaries(NAMES, st.lists(NUMBERS, min_size=1, max_size=3), max_size=3),
        st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3),
        st.dictionaries(NAMES, NAMES, max_size=3),
        st.dictionaries(NAMES, NAMES, max_size=3),
    ),
)
EXAMPLE = Checkpoint(
    StoreCheckpoint(100, 90, 1, {"t": {0: (1, 5)}}),
    PopSnapshot({"g": {"t": {0: (3, 4)}}}),
    SavedNames({"t": 3}, {"g": 4}),
)
LATER = EXAMPLE.head.__class__(
    StoreCheckpoint(200, 190, 1, {"t": {0: (1, 9)}}), PopSnapshot({"g": {"t": {0: (9, 9)}}}), EXAMPLE.names
)
SAVED = checkpoint_file.encode(EXAMPLE)
TWICE = saved_after(SAVED, [("queues", "t", 0, 1, 9), ("offsets", "g", "t", 0, 9, 9)], LATER.head)


@given(checkpoint=CHECKPOINTS)
def test_what_is_saved_comes_back(checkpoint: Checkpoint) -> None:
    assert checkpoint_file.decode(checkpoint_file.encode(checkpoint)) == checkpoint


def test_the_first_one_comes_back() -> None:
    found = checkpoint_file.decode(checkpoint_file.encode(Checkpoint()))
    assert (found.store.position, found.pop, found.store.queues) == (0, PopSnapshot(), {})


def test_what_an_older_release_saved_may_show_all_that_was_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    head_of = checkpoint_file._head

    def of_older(head: Checkpoint) -> dict[str, Any]:
        return {key: value for key, value in head_of(head).items() if key != "reached"}

    monkeypatch.setattr(checkpoint_file, "_head", of_older)
    found = checkpoint_file.decode(checkpoint_file.encode(Checkpoint(StoreCheckpoint(90, 100))))
    assert (found.store.position, found.store.reached) == (90, 100)


TOPICS, GROUPS, QUEUES = st.sampled_from("tu"), st.sampled_from("gh"), st.integers(0, 2)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("queues"), TOPICS, QUEUES, NUMBERS, NUMBERS),
        st.tuples(st.just("gone_topics"), TOPICS),
        st.tuples(st.just("offsets"), GROUPS, TOPICS, QUEUES, st.integers(-1, 9), st.integers(0, 9)),
        st.tuples(st.just("gone_groups"), GROUPS),
        st.tuples(st.just("topics"), TOPICS, st.none() | NUMBERS, st.lists(NUMBERS, max_size=2)),
        st.tuples(st.just("groups"), GROUPS, st.none() | NUMBERS),
    ),
    max_size=12,
)
ORDER = ("gone_topics", "queues", "gone_groups", "offsets", "topics", "groups")


def changed(state: dict[tuple[object, ...], object], rows: list[Row]) -> None:
    """What rows change, by the simplest means."""
    for row in rows:
        kind = row[0]
        if kind == "gone_topics":
            gone = [key for key in state if key[:2] == ("queues", row[1])]
        elif kind == "gone_groups":
            gone = [key for key in state if key[:2] == ("offsets", row[1])]
        else:
            gone = []
            at = {"queues": 3, "offsets": 4, "topics": 2, "groups": 2}[kind]
            state[row[:at]] = row[at:]
            if row[at] == -1 or row[at:] in ((None,), (None, [])):
                gone = [row[:at]]
        for key in gone:
            del state[key]


@given(saves=st.lists(CHANGES, max_size=4))
def test_changes_upon_changes_are_the_whole(saves: list[list[Row]]) -> None:
    data, state = checkpoint_file.encode(Checkpoint()), dict[tuple[object, ...], object]()
    for number, changes in enumerate(saves):
        rows = sorted(changes, key=lambda row: ORDER.index(row[0]))
        data = saved_after(data, rows, Checkpoint(StoreCheckpoint(number)))
        changed(state, rows)
        found = checkpoint_file.decode(data)
        assert found.store.position == number
        again: dict[tuple[object, ...], object] = {}
        changed(again, list(found.rows()))
        assert again == state


def test_many_rows_are_many_frames() -> None:
    rows = [("queues", f"t{number}", 0, 0, number) for number in range(5000)]
    frames = CheckpointFrames()
    made = list(frames.of(rows))
    assert len(made) == 3 and frames.end == BEGIN + sum(map(len, made))


def test_every_garbled_byte_is_found_or_says_the_same() -> None:
    expected = checkpoint_file.decode(TWICE)
    places = {*range(24), *range(SLOT_BYTES, SLOT_BYTES + 24), *range(BEGIN, len(TWICE))}
    for at in places:
        for change in (1, 0x20, 0x80, 0xFF):
            garbled = bytearray(TWICE)
            garbled[at] ^= change
            if at < BEGIN:
                assert checkpoint_file.decode(bytes(garbled)) == expected, "the other slot says it, too"
            else:
                with pytest.raises(CorruptDataError):
                    checkpoint_file.decode(bytes(garbled))


def test_every_cut_of_what_was_reported_is_found() -> None:
    for length in range(len(TWICE)):
        with pytest.raises(CorruptDataError):
            checkpoint_file.decode(TWICE[:length])


@pytest.mark.parametrize("tear", ["cut", "zeros", "garbled"])
def test_a_save_that_never_finished_is_none(tear: str) -> None:
    reported = checkpoint_file.slot(len(SAVED)) * SLOTS
    for at in range(len(SAVED), len(TWICE)):
        torn = reported + TWICE[BEGIN:at]
        if tear == "zeros":
            torn += bytes(len(TWICE) - at)
        elif tear == "garbled":
            torn += bytes([TWICE[at] ^ 0x55]) + TWICE[at + 1 :]
        reader = CheckpointReader(torn)
        for _ in reader.steps():
            pass
        assert reader.checkpoint == EXAMPLE
        assert reader.frames is not None and reader.frames.end == len(SAVED)
    assert checkpoint_file.decode(reported + TWICE[BEGIN:]) == replace(LATER), "whole, though it was not told"


def test_a_mixture_of_two_saves_is_none() -> None:
    """Pages of a save that never finished may lie behind those of one that was begun in its place."""
    one, other = CheckpointFrames(len(SAVED), _checksum(SAVED)), CheckpointFrames(len(SAVED), _checksum(SAVED))
    first = [*one.of([("queues", "t", 0, 1, 6)]), *one.of([("queues", "t", 1, 1, 6)]), one.last(LATER.head)]
    second = [*other.of([("queues", "t", 0, 1, 7)]), *other.of([("queues", "t", 1, 1, 7)]), other.last(LATER.head)]
    assert list(map(len, first)) == list(map(len, second))
    for mixed in ((0, 1, 0), (1, 0, 1), (0, 0, 1), (1, 1, 0), (1, 0, 0), (0, 1, 1)):
        data = SAVED + b"".join((first, second)[which][at] for at, which in enumerate(mixed))
        assert checkpoint_file.decode(data) == EXAMPLE


def _checksum(data: bytes) -> int:
    reader = CheckpointReader(data)
    for _ in reader.steps():
        pass
    assert reader.frames is not None
    return reader.frames.checksum


def test_settings_of_before_a_name_was_made_again_come_back_until_it_is_gone() -> None:
    names = SavedNames({"t": 3}, {"g": 4}, topic_settings={"t": "b"}, group_settings={"g": "d"})
    names = replace(names, former_topic_settings={"t": "a"}, former_group_settings={"g": "c"})
    saved = checkpoint_file.encode(replace(EXAMPLE, names=names))
    assert checkpoint_file.decode(saved).names == names
    reader = CheckpointReader(saved)
    for _ in reader.steps():
        pass
    reader._take({"topic_settings": [["t", None]], "group_settings": [["g", "d"]], "groups": {"g": [5]}})
    assert (reader._names.topic_settings, reader._names.former_topic_settings) == ({}, {})
    assert (reader._names.group_settings, reader._names.former_group_settings) == ({"g": "d"}, {})


def test_a_file_without_a_good_slot_is_damaged() -> None:
    garbled = bytearray(SAVED)
    for at in (8, SLOT_BYTES + 8):
        garbled[at] ^= 0x20
    with pytest.raises(CorruptDataError, match="is damaged"):
        checkpoint_file.decode(bytes(garbled))
    with pytest.raises(CorruptDataError, match="is cut off"):
        checkpoint_file.decode(SAVED[:10])


def test_an_unknown_version_is_refused_and_said() -> None:
    unknown = bytearray(SAVED)
    for at in (4, SLOT_BYTES + 4):
        struct.pack_into(">H", unknown, at, 3)
    with pytest.raises(UnknownFormatError, match="format version 3, this release knows those up to 2"):
        checkpoint_file.decode(bytes(unknown))
