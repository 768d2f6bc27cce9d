"""The checkpoint file: what is saved comes back, and damage is seen."""

import json
import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker import checkpoint as checkpoint_file
from services.broker.checkpoint import Checkpoint
from services.broker.known_names import SavedNames
from services.broker.pop.pop_state import PopSnapshot
from services.broker.store.message_store import StoreCheckpoint
from services.common.errors import CorruptDataError, UnknownFormatError

NAMES = st.text(min_size=1, max_size=20)
NUMBERS = st.integers(0, 2**63)
PAIRS = st.dictionaries(st.integers(0, 2**16), st.tuples(NUMBERS, NUMBERS), max_size=3)
CHECKPOINTS = st.builds(
    Checkpoint,
    store=st.builds(StoreCheckpoint, NUMBERS, NUMBERS, NUMBERS, st.dictionaries(NAMES, PAIRS, max_size=3)),
    pop=st.builds(
        PopSnapshot,
        st.dictionaries(NAMES, st.dictionaries(NAMES, PAIRS, max_size=3), max_size=3),
        st.tuples(*[NUMBERS] * 8),
        NUMBERS,
    ),
    names=st.builds(
        SavedNames,
        st.dictionaries(NAMES, NUMBERS, max_size=3),
        st.dictionaries(NAMES, NUMBERS, max_size=3),
        st.dictionaries(NAMES, st.lists(NUMBERS, max_size=3), max_size=3),
        NUMBERS,
    ),
)
EXAMPLE = Checkpoint(StoreCheckpoint(100, 90, 1, {"t": {0: (1, 5)}}), PopSnapshot(), SavedNames({"t": 3}, {"g": 4}))


@given(checkpoint=CHECKPOINTS)
def test_what_is_saved_comes_back(checkpoint: Checkpoint) -> None:
    assert checkpoint_file.decode(checkpoint_file.encode(checkpoint)) == checkpoint


def test_the_first_one_comes_back() -> None:
    found = checkpoint_file.decode(checkpoint_file.encode(Checkpoint()))
    assert (found.store.position, found.pop, found.store.queues) == (0, PopSnapshot(), {})


def test_one_of_an_older_release_does_not_say_what_was_heard() -> None:
    body = json.loads(checkpoint_file.encode(EXAMPLE)[10:])
    for later in ("heard", "former_topic_ids"):
        del body[later]
    old = json.dumps(body).encode()
    found = checkpoint_file.decode(struct.pack(">4sHI", b"PWCP", 1, google_crc32c.value(old)) + old)
    assert found.names == SavedNames({"t": 3}, {"g": 4})


def test_every_garbled_byte_is_found() -> None:
    good = checkpoint_file.encode(EXAMPLE)
    for at in range(len(good)):
        for change in (1, 0x20, 0x80, 0xFF):
            garbled = bytearray(good)
            garbled[at] ^= change
            with pytest.raises((CorruptDataError, UnknownFormatError)):
                checkpoint_file.decode(bytes(garbled))


def test_every_cut_is_found() -> None:
    good = checkpoint_file.encode(EXAMPLE)
    for length in range(len(good)):
        with pytest.raises(CorruptDataError):
            checkpoint_file.decode(good[:length])


def test_an_unknown_version_is_refused_and_said() -> None:
    good = bytearray(checkpoint_file.encode(EXAMPLE))
    struct.pack_into(">H", good, 4, 2)
    with pytest.raises(UnknownFormatError, match="format version 2, this release knows 1"):
        checkpoint_file.decode(bytes(good))
