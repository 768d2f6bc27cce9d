"""CK, ACK, renewal, origin and offset records: what is written comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume import delivery as codec
from popwheel_broker.consume.delivery import Delivery, OffsetCommit, Origin
from popwheel_common.contract import receipt

NAMES = st.text(alphabet="%abcXYZ_-019", min_size=1, max_size=60)
BIG = st.integers(0, 2**63)
IDS = st.integers(0, 2**62)


@st.composite
def deliveries(draw: st.DrawFn) -> Delivery:
    start = draw(st.integers(0, 2**40))
    count = draw(st.integers(1, 80))
    if draw(st.booleans()):
        offsets: tuple[int, ...] | range = range(start, start + count)
    else:
        gaps = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
        at, sparse = start, []
        for gap in gaps:
            sparse.append(at + gap)
            at += gap + 1
        offsets = tuple(sparse)
    delivery = Delivery(
        id=draw(IDS),
        group=draw(NAMES),
        topic=draw(NAMES),
        origin=draw(st.sampled_from((receipt.FROM_TOPIC, receipt.FROM_RETRY_TOPIC))),
        queue_id=draw(st.integers(0, 2**16 - 1)),
        start_offset=start,
        next_offset=offsets[-1] + 1 + draw(st.integers(0, 100)),
        pop_time_ms=draw(BIG),
        invisible_ms=draw(BIG),
        due_ms=draw(BIG),
        first_position=draw(BIG),
        offsets=offsets,
        replaces=draw(st.none() | st.builds(Origin, IDS, st.integers(0, 2**16 - 1))),
        open_bits=draw(st.integers(1, (1 << count) - 1)),
        revive_offset=draw(BIG),
        call=draw(BIG),
    )
    for index in draw(st.sets(st.integers(0, count - 1), max_size=5)):
        delivery.renewed[index] = draw(BIG)
    return delivery


def contents(delivery: Delivery) -> dict[str, object]:
    """All that it says, however it holds it."""
    count = len(delivery.offsets)
    said = {name: getattr(delivery, name) for name in Delivery.__slots__ if name not in ("offsets", "renewed")}
    return {
        **said,
        "offsets": tuple(delivery.offsets),
        "due": [delivery.due_of(index) for index in range(count)],
    }


@given(delivery=deliveries())
def test_a_delivery_comes_back(delivery: Delivery) -> None:
    found = Delivery.decode(delivery.encode(), delivery.revive_offset)
    assert contents(found) == contents(delivery)


@given(delivery=deliveries())
def test_a_delivery_finds_its_messages(delivery: Delivery) -> None:
    for index, offset in enumerate(delivery.offsets):
        assert delivery.index_of(offset) == index
    between = set(range(delivery.offsets[0] - 1, delivery.offsets[-1] + 2)) - set(delivery.offsets)
    for offset in list(between)[:20]:
        assert delivery.index_of(offset) == -1


def test_a_delivery_of_neighbours_is_small() -> None:
    """Every pop writes one."""
    delivery = Delivery(1, "group", "topic", 0, 0, 5, 37, 1, 2, 3, 4, range(5, 37))
    assert len(delivery.encode()) == 64 + len("group") + len("topic")


def test_a_new_delivery_is_all_open() -> None:
    delivery = Delivery(8, "g", "t", 0, 0, 5, 8, 1, 2, 3, 4, (5, 6, 7))
    assert (delivery.open_bits, delivery.open_indexes()) == (0b111, [0, 1, 2])


@given(identity=IDS, bits=st.integers(1, 2**300), due_ms=BIG)
def test_acks_and_renewals_come_back(identity: int, bits: int, due_ms: int) -> None:
    assert codec.decode_ack(codec.encode_ack(identity, bits)) == (identity, bits)
    assert codec.decode_renewal(codec.encode_renewal(identity, bits, due_ms)) == (identity, bits, due_ms)


@given(call=st.integers(0, 2**64 - 1))
def test_the_call_of_an_ack_comes_back(call: int) -> None:
    assert codec.decode_call(codec.encode_call(call)) == call


@given(origin=st.builds(Origin, IDS, st.integers(0, 2**16 - 1)))
def test_an_origin_comes_back(origin: Origin) -> None:
    assert Origin.decode(origin.encode()) == origin
    assert len(origin.encode()) == 10


@given(commit=st.builds(OffsetCommit, NAMES, NAMES, st.integers(0, 2**16 - 1), BIG))
def test_an_offset_comes_back(commit: OffsetCommit) -> None:
    assert OffsetCommit.decode(commit.encode()) == commit


@given(indexes=st.sets(st.integers(0, 500)))
def test_bits(indexes: set[int]) -> None:
    assert codec.bit_indexes(sum(1 << index for index in indexes)) == sorted(indexes)


@pytest.mark.parametrize("length", [255, 120])
def test_the_longest_names(length: int) -> None:
    delivery = Delivery(1, "g" * length, "t" * length, 0, 0, 5, 6, 1, 2, 3, 4, (5,))
    found = Delivery.decode(delivery.encode(), 0)
    assert (found.group, found.topic) == ("g" * length, "t" * length)
