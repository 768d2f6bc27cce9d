"""Overview of the timers for operators: counts by horizon and topic, and the messages themselves, some at a time."""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.timer_state import SLOT_MS, TimerState
from popwheel_broker.delay.unit import UnitFlag, hash_topic
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import RecordKind
from popwheel_broker.log.timer_record import NONE, Delay, decode_delay
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.series import bounded

_HORIZONS_MS = (60_000, 600_000, 3_600_000, 24 * 3_600_000)
_TOPICS_MAX = 1_000
_UNITS_AT_ONCE = 512
_UNITS_OF_A_SLOT = 8
"""Cost of finding the next slot, in units read."""
_MESSAGES_AT_ONCE = 64
_BYTES_AT_ONCE = 1 << 20
_CHAIN_READ = 64
_BODY_SHOWN_BYTES = 1024


class TimerPlace(NamedTuple):
    """Place where a list in the wheel continues. Within a slot the latest unit comes first, as they are chained.

    Args:
        slot_ms: at this slot, or the first behind it that has units.
        unit_position: of that very slot only units before this one of the timer log; `NONE` for all of it.
        record_position: of that unit's record in the commit log. Timer logs of replicas differ, and so may the one
            where the list continues.
    """

    slot_ms: int = 0
    unit_position: int = NONE
    record_position: int = NONE


class PendingMessage(NamedTuple):
    """A delayed message that has not fired.

    Args:
        delay: where it goes and when.
        root: by which it is known.
        properties: its system properties.
        place: where the list continues behind it.
        body: the beginning of it.
        body_bytes: length of all of it.
    """

    delay: Delay
    root: int
    properties: SystemProperties
    place: TimerPlace
    body: bytes
    body_bytes: int


def stats(timer: MessageTimer, now_ms: int) -> pb.TimerStatsResponse:
    """Return how many messages are pending, and how late the timer is."""
    state = timer.state
    pending = state.pending
    answer = pb.TimerStatsResponse(
        read_time_ms=state.commit_read_time_ms,
        write_time_ms=state.curr_write_time_ms,
        behind_ms=timer.dequeue_behind_ms(),
        pending=pending.total,
        recalled=len(state.recalled),
    )
    for within_ms, count in zip((*_HORIZONS_MS, 0), pending.histogram(now_ms, _HORIZONS_MS), strict=True):
        answer.horizons.add(within_ms=within_ms, count=count)
    by_topic: dict[tuple[str, ...], int] = {(topic,): count for topic, count in pending.by_topic().items()}
    for (topic,), count in sorted(bounded(by_topic, _TOPICS_MAX).items()):
        answer.topics.add(topic=topic, count=count)
    return answer


def pending_messages(
    timer: MessageTimer,
    store: MessageStore,
    topic: str,
    now_ms: int,
    until_ms: int,
    begin: TimerPlace,
    messages_max: int = _MESSAGES_AT_ONCE,
) -> tuple[list[PendingMessage], TimerPlace | None]:
    """Return some delayed messages in the order of their places, and where there may be more; None if that is all.

    It takes a few milliseconds, so it may find none and still return a place.

    Args:
        timer: whose they are.
        store: where their records are.
        topic: of the messages; empty for all topics.
        now_ms: wall clock; messages due by now are left out.
        until_ms: messages due later are left out.
        begin: the first place to return.
        messages_max: limit of the messages.

    Raises:
        CorruptDataError: the timer log, or a message, is damaged.
    """
    state = timer.state
    topic_hash = hash_topic(topic)
    budget, size = _UNITS_AT_ONCE, 0
    found: list[tuple[TimerPlace, int]] = []
    rest: TimerPlace | None = None
    for slot_ms in _slots(state, begin.slot_ms, until_ms):
        if budget <= 0:
            rest = TimerPlace(slot_ms)
            break
        budget -= _UNITS_OF_A_SLOT
        position, before_record = _head(state, slot_ms, begin)
        while position != NONE and rest is None:
            units, position = state.log.read_chain(position, _CHAIN_READ)
            budget -= len(units)
            for unit_position, unit in units:
                place = TimerPlace(slot_ms, unit_position, unit.position)
                if (
                    (not topic or unit.topic_hash == topic_hash)
                    and unit.flags & UnitFlag.TIMER
                    and now_ms < unit.due_ms <= until_ms
                    and (before_record == NONE or unit.position < before_record)
                ):
                    found.append((place, unit.length))
                    size += unit.length
                    if len(found) >= min(messages_max, _MESSAGES_AT_ONCE) or size >= _BYTES_AT_ONCE:
                        rest = place
                        break
            if rest is None and budget <= 0 and position != NONE:
                rest = place
        if rest is not None:
            break
    return _read(state, store, topic, found), rest


def _head(state: TimerState, slot_ms: int, begin: TimerPlace) -> tuple[int, int]:
    """Return the unit with which reading a slot begins, and the record of the log before which its units have to
    stand.
    """
    slot = state.wheel.slot(slot_ms)
    head = NONE if slot is None else slot.last
    if head == NONE or begin.unit_position == NONE or slot_ms != begin.slot_ms:
        return head, NONE
    try:
        units, rest = state.log.read_chain(begin.unit_position, 1)
    except CorruptDataError:
        return head, begin.record_position  # it is of another replica's timer log, or of a rebuilt one
    _, unit = units[0]
    if unit.slot_ms == slot_ms and unit.position == begin.record_position:
        return rest, NONE
    return head, begin.record_position


def _read(
    state: TimerState, store: MessageStore, topic: str, found: list[tuple[TimerPlace, int]]
) -> list[PendingMessage]:
    """Return the messages at places, which have the lengths of their records; without those that were recalled."""
    places = sorted(found, key=lambda each: each[0].record_position)  # so that neighbours are read together
    records = store.records.read_many([Entry(place.record_position, length, 0) for place, length in places])
    stored_at = {stored.position: stored for stored in records}
    messages: list[PendingMessage] = []
    for place, _ in found:
        stored = stored_at[place.record_position]
        delay = decode_delay(stored.origin)
        root = delay.root_at(stored.position)
        if stored.kind == RecordKind.TIMER and (not topic or delay.topic == topic) and root not in state.recalled:
            body = _body(stored.payload)
            properties = system_properties(stored.system_properties)
            messages.append(PendingMessage(delay, root, properties, place, body[:_BODY_SHOWN_BYTES], len(body)))
    return messages


def _body(payload: bytes) -> bytes:
    """Return the body of a stored message; an empty one if that cannot be read."""
    try:
        return Message.FromString(payload).body
    except DecodeError:
        return b""


def system_properties(data: bytes) -> SystemProperties:
    """Return the system properties of a stored message; empty ones if they cannot be read."""
    try:
        return SystemProperties.FromString(data)
    except DecodeError:
        return SystemProperties()


def _slots(state: TimerState, from_ms: int, until_ms: int) -> Iterator[int]:
    """Yield the slots that are not done, from one time up to another."""
    yield from [slot_ms for slot_ms in state.opened_slots if slot_ms >= from_ms]
    slot_ms = state.wheel.next_occupied(max(from_ms, state.curr_read_time_ms + SLOT_MS), until_ms + SLOT_MS)
    while slot_ms is not None:
        yield slot_ms
        slot_ms = state.wheel.next_occupied(slot_ms + SLOT_MS, until_ms + SLOT_MS)
