"""CK, ACK, renewal, origin and offset records: what is written comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume import check_point as codec
from popwheel_broker.consume.check_point import CheckPoint, OffsetCommit, Origin
from popwheel_common.contract import receipt

NAMES = st.text(alphabet="%abcXYZ_-019", min_size=1, max_size=60)
BIG = st.integers(0, 2**63)
IDS = st.integers(0, 2**62)


@st.composite
def check_points(draw: st.DrawFn) -> CheckPoint:
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
    check_point = CheckPoint(
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
        check_point.renewed[index] = draw(BIG)
    return check_point


def contents(check_point: CheckPoint) -> dict[str, object]:
    """All that it says, however it holds it."""
    count = len(check_point.offsets)
    said = {name: getattr(check_point, name) for name in CheckPoint.__slots__ if name not in ("offsets", "renewed")}
    return {
        **said,
        "offsets": tuple(check_point.offsets),
        "due": [check_point.due_of(index) for index in range(count)],
    }


@given(check_point=check_points())
def test_a_check_point_comes_back(check_point: CheckPoint) -> None:
    found = CheckPoint.decode(check_point.encode(), check_point.revive_offset)
    assert contents(found) == contents(check_point)


@given(check_point=check_points())
def test_a_check_point_finds_its_messages(check_point: CheckPoint) -> None:
    for index, offset in enumerate(check_point.offsets):
        assert check_point.index_of(offset) == index
    between = set(range(check_point.offsets[0] - 1, check_point.offsets[-1] + 2)) - set(check_point.offsets)
    for offset in list(between)[:20]:
        assert check_point.index_of(offset) == -1


def test_a_check_point_of_neighbours_is_small() -> None:
    """Every pop writes one."""
    check_point = CheckPoint(1, "group", "topic", 0, 0, 5, 37, 1, 2, 3, 4, range(5, 37))
    assert len(check_point.encode()) == 64 + len("group") + len("topic")


def test_a_new_check_point_is_all_open() -> None:
    check_point = CheckPoint(8, "g", "t", 0, 0, 5, 8, 1, 2, 3, 4, (5, 6, 7))
    assert (check_point.open_bits, check_point.open_indexes()) == (0b111, [0, 1, 2])


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
    check_point = CheckPoint(1, "g" * length, "t" * length, 0, 0, 5, 6, 1, 2, 3, 4, (5,))
    found = CheckPoint.decode(check_point.encode(), 0)
    assert (found.group, found.topic) == ("g" * length, "t" * length)
