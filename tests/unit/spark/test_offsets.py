"""Offsets and their JSON."""

import json

from hypothesis import given
from hypothesis import strategies as st

from popwheel_spark.wire.offsets import Offsets, Queue, flat, nested, parse

queues = st.builds(Queue, st.text(), st.text(), st.integers(0, 2000))


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_json_brings_back_the_same_offsets(offsets: Offsets) -> None:
    assert parse(json.dumps(nested(offsets))) == offsets


@given(st.dictionaries(queues, st.integers(0, 2**62)))
def test_the_same_offsets_are_the_same_text(offsets: Offsets) -> None:
    backwards = dict(reversed(offsets.items()))
    assert json.dumps(nested(offsets)) == json.dumps(nested(backwards)) == json.dumps(nested(flat(nested(offsets))))
