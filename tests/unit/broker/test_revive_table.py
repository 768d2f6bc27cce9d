"""The revive table: what is due when, and how far back recovery has to read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.revive_table import ReviveTable


def delivery(identity: int, due_ms: int = 100, count: int = 1, revive_offset: int = 0) -> Delivery:
    offsets = range(10, 10 + count)
    return Delivery(
        identity, "g", "t", 0, 0, 10, 10 + count, 0, due_ms, due_ms, identity, offsets, revive_offset=revive_offset
    )


def due(table: ReviveTable, now_ms: int, messages_max: int = 1000) -> list[tuple[int, list[int]]]:
    return [(each.id, indexes) for each, indexes in table.take_due(now_ms, messages_max)]


@given(dues=st.lists(st.integers(0, 100), max_size=50), now_ms=st.integers(0, 100))
def test_what_is_due_comes_in_its_order(dues: list[int], now_ms: int) -> None:
    table = ReviveTable()
    for identity, due_ms in enumerate(dues):
        table.open(delivery(identity, due_ms))
    assert table.next_due_ms() == min(dues, default=None)
    taken = due(table, now_ms)
    assert [dues[identity] for identity, _ in taken] == sorted(each for each in dues if each <= now_ms)
    for identity, indexes in taken:
        table.close(identity, sum(1 << index for index in indexes))
    assert (due(table, now_ms), len(table)) == ([], len([each for each in dues if each > now_ms]))
    assert table.open_messages == len(table)


def test_it_is_due_at_its_millisecond() -> None:
    table = ReviveTable()
    table.open(delivery(1, due_ms=100))
    assert due(table, 99) == []
    assert due(table, 100) == [(1, [0])]


def test_single_messages_are_renewed() -> None:
    table = ReviveTable()
    table.open(delivery(1, due_ms=100, count=3))
    table.renew(1, 0b010, 300)
    table.renew(1, 0b100, 200)
    assert due(table, 100) == [(1, [0])]
    table.close(1, 0b001)
    assert table.next_due_ms() == 200
    assert due(table, 199) == []
    assert due(table, 200) == [(1, [2])]
    table.close(1, 0b100)
    assert due(table, 300) == [(1, [1])]


def test_all_messages_are_renewed() -> None:
    table = ReviveTable()
    table.open(delivery(1, due_ms=100, count=2))
    table.renew(1, 0b01, 150)
    table.renew(1, 0b11, 400)
    assert due(table, 399) == []
    assert due(table, 400) == [(1, [0, 1])]


def test_a_renewal_may_shorten_the_time() -> None:
    table = ReviveTable()
    table.open(delivery(1, due_ms=100))
    table.renew(1, 1, 50)
    assert table.next_due_ms() == 50
    assert due(table, 50) == [(1, [0])]


def test_a_renewal_of_what_is_closed_is_nothing() -> None:
    table = ReviveTable()
    table.renew(1, 1, 50)
    assert table.next_due_ms() is None


def test_what_could_not_be_dealt_with_comes_again_later() -> None:
    table = ReviveTable()
    table.open(delivery(1, due_ms=100))
    ((taken, _),) = table.take_due(100, 10)
    assert due(table, 5000) == []
    table.postpone(taken, 1100)
    assert table.next_due_ms() == 1100
    assert due(table, 1100) == [(1, [0])]


def test_no_more_is_taken_at_once_than_asked_for() -> None:
    table = ReviveTable()
    for identity in range(10):
        table.open(delivery(identity, count=2))
    assert len(due(table, 100, messages_max=5)) == 3
    assert len(due(table, 100)) == 7


def test_what_is_closed_early_leaves_no_pile_behind() -> None:
    table = ReviveTable()
    kept = delivery(0, due_ms=10_000_000)
    table.open(kept)
    for identity in range(1, 50_000):
        table.open(delivery(identity, due_ms=9_000_000))
        table.close(identity, 1)
    assert len(table._due) + len(table._leaving) < 20_000
    found: list[tuple[int, list[int]]] = []
    steps = 0
    while (next_ms := table.next_due_ms()) is not None and next_ms <= 10_000_000:
        found += due(table, 10_000_000)
        steps += 1
    assert found == [(0, [0])]
    assert steps > 10  # none of them has to pass over all


def test_no_step_drops_all_that_was_closed_early() -> None:
    table = ReviveTable()
    for identity in range(20_000):
        table.open(delivery(identity, due_ms=9_000_000 + identity))
        if identity % 10:
            table.close(identity, 1)
        else:
            table.renew(identity, 1, 9_500_000 + identity)
    assert len(table._due) + len(table._leaving) < 20_000
    found = [each for _ in range(200) for each, _ in due(table, 9_600_000)]
    assert found == list(range(0, 20_000, 10))


def test_a_delivery_that_takes_the_place_of_another_closes_it() -> None:
    table = ReviveTable()
    table.open(delivery(8, count=2))
    new = delivery(16)
    new.replaces = Origin(8, 1)
    assert table.open(new) is None
    assert (table.open_messages, [each.open_bits for each in table]) == (2, [0b01, 0b1])
    newer = delivery(24)
    newer.replaces = Origin(8, 0)
    closed = table.open(newer)
    assert closed is not None
    assert closed.id == 8
    assert {each.id for each in table} == {16, 24}
    assert table.in_flight == {("g", "t"): 2}
    table.close(16, 1)
    table.close(24, 1)
    assert table.in_flight == {}


def test_a_copy_takes_the_place_of_the_original() -> None:
    table = ReviveTable()
    table.open(delivery(8, count=3, revive_offset=0))
    table.close(8, 0b001)
    copy = Delivery.decode(next(iter(table)).encode(), 70)
    table.open(copy)
    assert (len(table), table.open_messages, table.oldest_offset(0, 99)) == (1, 2, 70)
    assert table.in_flight == {("g", "t"): 2}
    assert due(table, 100) == [(8, [1, 2])]


def test_the_oldest_open_one_says_how_far_back_recovery_reads() -> None:
    table = ReviveTable()
    for offset, identity in enumerate((8, 16, 24)):
        table.open(delivery(identity, revive_offset=offset))
    assert table.oldest_offset(0, 3) == 0
    assert table.oldest_offset(1, 5) == 5
    table.close(8, 1)
    assert (table.oldest_offset(0, 3), table.first_position()) == (1, 16)
    assert [each.id for each in table.lagging(0, 2, 10)] == [16]
    assert [each.id for each in table.lagging(0, 99, 1)] == [16]
    table.open(replace(next(iter(table)), revive_offset=3))
    assert [each.id for each in table] == [24, 16]
    assert table.oldest_offset(0, 4) == 2
    table.close(24, 1)
    table.close(16, 1)
    assert (table.oldest_offset(0, 4), table.first_position()) == (4, None)


POSITIONS = st.integers(0, 40).map(lambda number: number * 500_000)
"""Over several stretches, and several in each."""


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "close", "move", "relocate"]), st.sampled_from(range(0, 24, 5)), POSITIONS)
    ),
    position=POSITIONS,
    offsets=st.lists(st.integers(0, 50), min_size=8, max_size=8),
)
def test_what_stands_where_is_what_a_look_at_all_would_find(
    steps: list[tuple[str, int, int]], position: int, offsets: list[int]
) -> None:
    table = ReviveTable()
    for revive_offset, (step, identity, first_position) in enumerate(steps):
        found = table.get(identity)
        if step == "open":
            new = delivery(identity, count=1 + identity % 2, revive_offset=revive_offset)
            named = replace(new, group=f"g{identity % 3}", topic=f"t{identity % 3}", first_position=first_position)
            table.open(replace(named, copies={0: 1} if first_position % 3 == 0 else {}))
        elif step == "close":
            table.close(identity, 1 << first_position % 2)
        elif found is not None and step == "move":
            table.open(replace(found, revive_offset=revive_offset))
        elif found is not None:
            copies = {} if found.copies else {0: 1}
            table.open(replace(found, copies=copies, first_position=first_position, revive_offset=revive_offset))
            assert table.get(identity) is found, "a copy changes the CK that others have in their hands"
    assert table.first_position() == min((each.first_position for each in table), default=None)
    before = [
        each for each in table if each.first_position < position or each.revive_offset < offsets[each.revive_queue]
    ]
    assert sorted(each.id for each in table.standing_before(position, offsets)) == sorted(each.id for each in before)
    for group in ("g0", "g1", "g2"):
        of_group = sorted(each.id for each in table.of_group(group))
        assert of_group == sorted(each.id for each in table if each.group == group)
        copied = sorted(each.id for each in table.lasting_of(group.replace("g", "t")))
        assert copied == sorted(each.id for each in table if each.group == group and each.copies)


@pytest.mark.parametrize("revive_queue", [None, 5])
def test_ids_name_their_revive_queue_and_are_delivered_once(revive_queue: int | None) -> None:
    table = ReviveTable()
    ids = [table.make_id(revive_queue) for _ in range(100)]
    assert len(set(ids)) == 100
    assert {each % 8 for each in ids} == (set(range(8)) if revive_queue is None else {5})
    later = ReviveTable()
    later.open(delivery(max(ids)))
    later.restart_ids(table.next_number, 0)
    assert later.make_id() > max(ids) + 1_000_000


def test_ids_of_an_epoch_whose_log_was_given_up_are_not_delivered_again() -> None:
    """A client that still has one would end what another one was given."""
    ids: list[set[int]] = []
    for epoch in (5, 6):  # both go on from the same log
        table = ReviveTable()
        table.open(delivery(4_000_060 * 8))
        table.restart_ids(1, epoch)
        ids.append({table.make_id() for _ in range(100)})
    assert not ids[0] & ids[1]
    assert min(ids[0]) > 4_000_060 * 8
