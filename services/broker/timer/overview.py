"""What an operator is shown of the timers: counts by horizon and topic, and the messages that are due soon."""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from services.broker.store.consume_queue import Entry
from services.broker.store.message_store import MessageStore
from services.broker.store.record import RecordKind
from services.broker.timer.delay import NONE, Delay, decode_delay
from services.broker.timer.message_timer import MessageTimer
from services.broker.timer.timer_state import SLOT_MS, TimerState
from services.broker.timer.unit import UnitFlag, hash_topic
from services.common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.common.series import bounded

_HORIZONS_MS = (60_000, 600_000, 3_600_000, 24 * 3_600_000)
_TOPICS_TOLD_MAX = 1_000
_UNITS_LOOKED_AT_MAX = 200_000
_CHAIN_READ = 256


class PendingMessage(NamedTuple):
    """A delayed message that has not fired.

    Args:
        delay: where it goes and when.
        root: by which it is known.
        properties: its system properties.
    """

    delay: Delay
    root: int
    properties: SystemProperties


def stats(timer: MessageTimer, now_ms: int) -> pb.TimerStatsResponse:
    """How many messages are pending, and how far the timer is behind."""
    state = timer.state
    pending = state.pending
    answer = pb.TimerStatsResponse(
        read_time_ms=state.commit_read_time_ms,
        write_time_ms=state.curr_write_time_ms,
        behind_ms=timer.dequeue_behind_ms(),
        pending=pending.total,
        recalled=len(state.recalled),
    )
    before = 0
    for within_ms in _HORIZONS_MS:
        until = pending.within(now_ms, within_ms)
        answer.horizons.add(within_ms=within_ms, count=until - before)
        before = until
    answer.horizons.add(within_ms=0, count=pending.total - before)
    by_topic: dict[tuple[str, ...], int] = {(topic,): count for topic, count in pending.by_topic().items()}
    for (topic,), count in sorted(bounded(by_topic, _TOPICS_TOLD_MAX).items()):
        answer.topics.add(topic=topic, count=count)
    return answer


def pending_messages(
    timer: MessageTimer, store: MessageStore, topic: str, now_ms: int, within_ms: int, limit: int
) -> tuple[list[PendingMessage], bool]:
    """The messages of a topic that are due within a time, the first ones first; and whether there are more.

    It looks at a bounded number of timers, so on a busy broker there may be more than it finds.

    Raises:
        CorruptDataError: the timer log, or a message, is damaged.
    """
    state = timer.state
    until_ms = now_ms + within_ms
    messages: list[PendingMessage] = []
    looked_at = 0
    topic_hash = hash_topic(topic)
    for slot_ms in _slots(state, until_ms):
        if looked_at > _UNITS_LOOKED_AT_MAX or len(messages) > limit:
            break
        found: list[tuple[int, int, int]] = []
        slot = state.wheel.slot(slot_ms)
        position = NONE if slot is None else slot.last
        while position != NONE:
            units, position = state.log.read_chain(position, _CHAIN_READ)
            looked_at += len(units)
            found += [
                (unit.due_ms, unit.position, unit.length)
                for _, unit in units
                if unit.topic_hash == topic_hash and unit.flags & UnitFlag.TIMER and now_ms < unit.due_ms <= until_ms
            ]
        for _, record_position, length in sorted(found):
            if len(messages) > limit:
                break
            stored = store.read(Entry(record_position, length, 0))
            delay = decode_delay(stored.origin)
            root = delay.root_at(record_position)
            if stored.kind == RecordKind.TIMER and delay.topic == topic and root not in state.recalled:
                messages.append(PendingMessage(delay, root, system_properties(stored.system_properties)))
    messages.sort(key=lambda message: message.delay.due_ms)
    return messages[:limit], len(messages) > limit or looked_at > _UNITS_LOOKED_AT_MAX


def system_properties(data: bytes) -> SystemProperties:
    """System properties of a stored message; empty ones if they cannot be read."""
    try:
        return SystemProperties.FromString(data)
    except DecodeError:
        return SystemProperties()


def _slots(state: TimerState, until_ms: int) -> Iterator[int]:
    """The slots that are not done, up to a time."""
    yield from list(state.opened_slots)
    slot_ms = state.wheel.next_occupied(state.curr_read_time_ms + SLOT_MS, until_ms + SLOT_MS)
    while slot_ms is not None:
        yield slot_ms
        slot_ms = state.wheel.next_occupied(slot_ms + SLOT_MS, until_ms + SLOT_MS)
