"""Half messages at a core: taken, ended, asked about, folded anew after crashes (X2, S6)."""

from collections import Counter
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.log.record import HEADER_BYTES, Record, RecordKind, stored
from popwheel_broker.options import BrokerOptions, LogOptions, TransactionOptions
from popwheel_broker.transactions import table as table_module
from popwheel_broker.transactions.half import (
    HALF_QUEUE,
    HALF_TOPIC,
    HalfTarget,
    Resolution,
    decode_check,
    decode_end,
    decode_half,
    end_record,
)
from popwheel_broker.transactions.table import OpenHalf, TransactionTable
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.unit.broker.core_world import metrics
from tests.unit.broker.world import World, wire_message

COMMIT, ROLLBACK, EXPIRED = Resolution.COMMITTED, Resolution.ROLLED_BACK, Resolution.EXPIRED
TOPIC, GROUP = "t", "g"


def world_of(**transaction: int) -> World:
    options = BrokerOptions(
        log=LogOptions(segment_bytes=4096, index_entries_max=16), transaction=TransactionOptions(**transaction)
    )
    world = World(0, options)
    world.add_topic(TOPIC)
    world.add_group(GROUP)
    return world


def send(world: World, body: bytes = b"half", first_check_ms: int = 0, topic: str = TOPIC) -> OpenHalf:
    """Store a half message, durably."""
    payload, properties = wire_message(topic, body)
    run = MessageRun(topic, 0, [payload], [properties], [""], PutKind.HALF, [first_check_ms])
    transactions = world.core.transactions
    records = transactions.accept(run, Counter())
    appended = world.core.store.put(records)
    transactions.schedule_checks(appended.positions)
    world.flush()
    half = transactions.table.get(appended.positions[0])
    assert half is not None
    return half


def end(world: World, half: OpenHalf, resolution: Resolution) -> None:
    transactions = world.core.transactions
    record = transactions.end(half.position, half.epoch, resolution)
    if record is not None:
        world.core.store.put([record])
        transactions.resolved[resolution] += 1
    world.flush()


def refusal(world: World, half: OpenHalf, resolution: Resolution) -> int:
    with pytest.raises(StatusError) as caught:
        end(world, half, resolution)
    return caught.value.code


def bodies(world: World) -> list[bytes]:
    return [message.body for message in world.pop(GROUP, TOPIC)]


def ask(world: World) -> list[OpenHalf]:
    _, asked = world.core.transactions.ask(64)
    world.flush()
    return asked


def test_a_half_message_is_seen_once_it_is_committed() -> None:
    world = world_of()
    half = send(world)
    assert bodies(world) == []
    assert world.core.store.queue(TOPIC, 0) is None
    end(world, half, COMMIT)
    assert bodies(world) == [b"half"]
    assert len(world.core.transactions.table) == 0


def test_one_that_is_rolled_back_is_never_seen() -> None:
    world = world_of()
    half = send(world)
    end(world, half, ROLLBACK)
    assert bodies(world) == []


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_ending_it_again_changes_nothing_and_the_other_way_is_refused(resolution: Resolution) -> None:
    world = world_of()
    half = send(world)
    for _ in range(3):
        end(world, half, resolution)
    assert refusal(world, half, ROLLBACK if resolution == COMMIT else COMMIT) == Code.PRECONDITION_FAILED
    assert len(bodies(world)) == (resolution == COMMIT)


def test_what_is_not_known_is_refused() -> None:
    world = world_of()
    half = send(world)
    assert refusal(world, half._replace(position=half.position + 1), COMMIT) == Code.INVALID_TRANSACTION_ID
    assert refusal(world, half._replace(epoch=half.epoch + 1), COMMIT) == Code.INVALID_TRANSACTION_ID
    end(world, half, COMMIT)
    assert refusal(world, half._replace(epoch=half.epoch + 1), COMMIT) == Code.INVALID_TRANSACTION_ID


@pytest.mark.parametrize("kind", ["process", "power"])
@pytest.mark.parametrize("saves", [0, 1, 2])
def test_what_is_open_and_what_has_ended_outlives_a_crash(kind: Literal["process", "power"], saves: int) -> None:
    world = world_of()
    halves = {body: send(world, body) for body in (b"kept", b"dropped", b"open", b"later")}
    if saves > 1:
        world.save()
    end(world, halves[b"kept"], COMMIT)
    end(world, halves[b"dropped"], ROLLBACK)
    if saves:
        world.save()
    for _ in range(2):
        world.crash(kind)
        assert [half.position for half in world.core.transactions.table] == [
            halves[body].position for body in (b"open", b"later")
        ]
        end(world, halves[b"kept"], COMMIT)
        assert refusal(world, halves[b"dropped"], COMMIT) == Code.PRECONDITION_FAILED
    end(world, halves[b"later"], COMMIT)
    world.crash(kind)
    assert bodies(world) == [b"kept", b"later"]


def test_senders_are_asked_after_six_seconds_then_every_thirty_and_fifteen_times() -> None:
    world = world_of()
    half = send(world)
    waits_ms: list[int] = []
    since_ms = world.clock.wall_ms()
    while len(world.core.transactions.table):
        world.clock.advance(1000)
        if ask(world):
            waits_ms.append(world.clock.wall_ms() - since_ms)
            since_ms = world.clock.wall_ms()
    assert waits_ms == [6000, *[30_000] * 14]
    assert world.clock.wall_ms() - since_ms == 30_000
    assert refusal(world, half, COMMIT) == Code.INVALID_TRANSACTION_ID
    assert refusal(world, half, ROLLBACK) == Code.INVALID_TRANSACTION_ID
    assert bodies(world) == []


def test_a_sender_may_say_when_it_is_first_asked() -> None:
    world = world_of()
    send(world, b"late", 20_000)
    send(world, b"soon", 1000)
    world.clock.advance(1000)
    assert [half.target.first_check_ms for half in ask(world)] == [1000]
    world.clock.advance(19_000)
    assert [half.target.first_check_ms for half in ask(world)] == [20_000]


def test_checks_count_on_after_a_restart_and_none_is_made_while_nobody_leads() -> None:
    world = world_of(checks_max=2)
    send(world)
    world.clock.advance(6000)
    assert [half.checks for half in ask(world)] == [1]
    world.crash("process")
    world.clock.advance(29_000)
    assert ask(world) == []
    world.clock.advance(1000)
    assert [half.checks for half in ask(world)] == [2]
    world.save()
    world.clock.advance(3_600_000)  # while the broker is away, nobody can answer
    world.crash("process")
    (half,) = world.core.transactions.table
    assert half.checks == 2
    ask(world)
    assert len(world.core.transactions.table) == 0


def test_a_clock_that_was_set_back_delays_a_check_by_no_more_than_its_wait() -> None:
    world = world_of()
    send(world)
    world.clock.set_wall_ms(world.clock.wall_ms() - 24 * 3_600_000)
    world.crash("process")
    world.clock.advance(6000)
    assert len(ask(world)) == 1


def test_what_has_ended_is_not_asked_about_and_takes_no_room() -> None:
    world = world_of()
    for number in range(1200):
        end(world, send(world, b"%d" % number), ROLLBACK)
    assert len(world.core.transactions.schedule._due) <= 1001
    world.clock.advance(60_000)
    assert ask(world) == []


def test_open_transactions_have_a_limit_of_which_each_topic_has_its_share() -> None:
    world = world_of(open_max=4)
    world.add_topic("other")
    halves = [send(world, b"%d" % number) for number in range(2)]
    with pytest.raises(StatusError, match=r"broker\.transaction\.open_max") as caught:
        send(world, b"too many")
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    send(world, b"of another", topic="other")
    end(world, halves[0], COMMIT)
    send(world, b"one more")


def test_half_messages_go_with_their_topic() -> None:
    world = world_of()
    half = send(world)
    world.delete_topic(TOPIC)
    world.add_topic(TOPIC)
    world.flush()
    for _ in range(2):
        assert refusal(world, half, COMMIT) == Code.INVALID_TRANSACTION_ID
        assert bodies(world) == []
        world.crash("process")
    assert world.core.transactions.table.shares.total == 0


def test_the_log_stays_from_the_oldest_open_half_message_on() -> None:
    world = world_of()
    first, second = send(world, b"1"), send(world, b"2")
    assert world.core.expiry.needed_from() == first.position
    end(world, first, COMMIT)
    assert world.core.expiry.needed_from() == second.position
    end(world, second, ROLLBACK)
    assert world.core.expiry.needed_from() is None


def test_only_that_many_that_have_ended_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "ENDED_MAX", 2)
    world = world_of()
    halves = [send(world, b"%d" % number) for number in range(3)]
    for half in halves:
        end(world, half, COMMIT)
    world.save()
    for _ in range(2):
        assert refusal(world, halves[0], COMMIT) == Code.INVALID_TRANSACTION_ID
        end(world, halves[1], COMMIT)
        world.crash("process")
    assert len(bodies(world)) == 3


def test_a_damaged_half_message_is_not_committed() -> None:
    world = world_of()
    half = send(world)
    file = world.core.store.log._files[-1]
    at = half.position + HEADER_BYTES + 5
    file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
    with pytest.raises(Exception, match="checksum"):
        end(world, half, COMMIT)
    assert world.core.transactions.table.get(half.position) is not None
    assert half.position in world.core.store.log.damaged
    end(world, half, ROLLBACK)


def test_metrics_report_how_many_are_open_and_how_old() -> None:
    world = world_of()
    half = send(world)
    world.clock.advance(6500)
    ask(world)
    text = metrics(world)
    assert "popwheel_transactions_open 1.0" in text
    assert "popwheel_transactions_oldest_seconds 6.5" in text
    assert "popwheel_transactions_checks_total 1.0" in text
    end(world, half, COMMIT)
    text = metrics(world)
    assert "popwheel_transactions_oldest_seconds 0.0" in text
    assert 'popwheel_transactions_ended_total{resolution="committed"} 1.0' in text


def test_records_of_a_newer_release_are_not_guessed_at() -> None:
    origin = HalfTarget(TOPIC, 3, 7, 500).encode()
    assert decode_half(origin) == HalfTarget(TOPIC, 3, 7, 500)
    for decode, data in ((decode_half, origin), (decode_check, bytes(11)), (decode_end, bytes(10))):
        with pytest.raises(UnknownFormatError):
            decode(b"\2" + data[1:])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send", "commit", "rollback", "ask", "save", "process", "power", "wait")), st.integers(0, 7)
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_whatever_happens_the_fold_says_what_the_master_knew(steps: list[tuple[str, int]]) -> None:
    world = world_of(checks_max=1, check_interval_ms=1000, first_check_ms=1000)
    halves: list[OpenHalf] = []
    committed: set[bytes] = set()
    for step, number in steps:
        half = halves[number % len(halves)] if halves else None
        if step == "send":
            halves.append(send(world, b"%d" % len(halves)))
        elif step in ("commit", "rollback") and half is not None:
            resolution = COMMIT if step == "commit" else ROLLBACK
            is_open = world.core.transactions.table.get(half.position) is not None
            try:
                end(world, half, resolution)
            except StatusError:
                assert not is_open
            else:
                if step == "commit":
                    committed.add(b"%d" % halves.index(half))
        elif step == "ask":
            ask(world)
        elif step == "save":
            world.save()
        elif step == "wait":
            world.clock.advance(1000)
        elif step in ("process", "power"):
            before = list(world.core.transactions.table)
            world.crash(step)  # type: ignore[arg-type]
            assert list(world.core.transactions.table) == before
    queue = world.core.store.queue(HALF_TOPIC, HALF_QUEUE)
    assert (0 if queue is None else queue.max_offset) == len(halves)
    got = bodies(world)
    assert sorted(got) == sorted(committed)


def test_rows_of_a_checkpoint_say_what_has_changed() -> None:
    table = TransactionTable()
    half = Record(RecordKind.HALF, HALF_TOPIC, HALF_QUEUE, b"", origin=HalfTarget(TOPIC, 0, 1, 0).encode())
    for position in (10, 20):
        table.apply(stored(half, position, 1, 1, 5, 0))
    assert [position for position, _ in table.take_changes()] == [10, 20]
    assert table.get(10) == OpenHalf(10, 1, HalfTarget(TOPIC, 0, 1, 0), 5, 0, 5)
    table.apply(stored(end_record(10, COMMIT), 30, 1, 1, 5, 0))
    table.apply(stored(Record(RecordKind.FORGET_TOPIC, "revive", 0, TOPIC.encode()), 40, 1, 1, 5, 0))
    changes = table.take_changes()
    assert changes == [(10, [1, int(COMMIT)]), (20, None)]
    assert table.take_changes() == []
    again = TransactionTable()
    again.restore({position: row for position, row in table.rows() if row is not None})
    assert again.ended(10) == table.ended(10)
    assert list(again) == list(table) == []
