"""Holds delayed messages against T1 to T4 and S6: by the log alone, and by what the clients were told."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from popwheel_broker.consume.quarantine_entry import decode_end
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import NONE, TIMER_QUEUE, TIMER_TOPIC, Delay, decode_delay, fired_timer
from popwheel_common.errors import CorruptDataError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from tests.sim.checker import Verdict, loss_s_max
from tests.sim.history import History, Recalled, Sent
from tests.sim.passing_topic import TOPIC
from tests.sim.process import START_MS
from tests.sim.swarm import Swarm

_LATE_S_MAX = 1.5
_SYNCS_AT_ONCE = 20
_CHAIN_READ = 100


@dataclass(frozen=True, slots=True)
class TimerSnapshot:
    """What a broker's timer holds.

    Args:
        pending: how many messages, by topic.
        total: how many in all.
        recalled: roots of those that were revoked.
        held: positions of the records that are in the wheel or still to be put there.
        broken: chains that are not what their slots say.
        fired_until_ms: what was due by then is done with, though the clock may have been set back since.
    """

    pending: dict[str, int]
    total: int
    recalled: frozenset[int]
    held: frozenset[int]
    broken: tuple[str, ...]
    fired_until_ms: int


def state_of(core: BrokerCore) -> TimerSnapshot:
    """Read everything, unit by unit."""
    state = core.timer.state
    held: set[int] = set()
    broken: list[str] = []
    wheel = state.wheel
    for index in np.flatnonzero(wheel._counts):
        slot_ms = int(wheel._times[index])
        slot = wheel.slot(slot_ms)
        assert slot is not None
        positions: list[int] = []
        at = slot.last
        while at != NONE:
            units, at = state.log.read_chain(at, _CHAIN_READ)
            positions += [position for position, _ in units]
            held.update(unit.position for _, unit in units)
        if (positions[0], positions[-1], len(positions)) != (slot.last, slot.first, slot.count):
            broken.append(f"slot {slot_ms} says {slot} and leads to {positions}")
    queue = core.store.queue(TIMER_TOPIC, TIMER_QUEUE)
    if queue is not None:
        at = max(state.commit_queue_offset, queue.min_offset)
        held.update(entry.position for entry in queue.read(at, queue.max_offset - at))
    pending = state.pending
    return TimerSnapshot(
        pending.by_topic(),
        pending.total,
        frozenset(state.recalled),
        frozenset(held),
        tuple(broken),
        state.fired_until_ms,
    )


def is_readable(core: BrokerCore) -> bool:
    """Whether no unit of the timer log has rotted."""
    try:
        state_of(core)
    except CorruptDataError:
        return False
    return True


@dataclass(slots=True)
class _Timer:
    """One delayed message in the log.

    Args:
        record: its first.
        delay: what that says.
        positions: of its records, first to last.
        fired: the messages that it became.
        recalled: whether there is a record that takes it back.
        aside: from when to when it was quarantined, virtual seconds.
    """

    record: StoredRecord
    delay: Delay
    positions: list[int]
    fired: list[StoredRecord] = field(default_factory=list)
    recalled: bool = False
    aside: list[tuple[float, float]] = field(default_factory=list)

    @property
    def message_id(self) -> str:
        """The sender's."""
        return SystemProperties.FromString(self.record.system_properties).message_id


class Timers:
    """Judges the delayed messages of one run.

    Args:
        swarm: what was drawn.
        history: what clients saw.
        records: all of the log in the end, in its order.
        appends: when each was appended, by position: wall clock, virtual seconds.
        topic_ids: of the topics there are in the end.
        verdict: where it goes.
        fails: whether a message is one that fails by itself: it may be late, or be quarantined.
    """

    def __init__(
        self,
        swarm: Swarm,
        history: History,
        records: list[StoredRecord],
        appends: Mapping[int, tuple[int, float]],
        topic_ids: Mapping[str, int],
        verdict: Verdict,
        fails: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._swarm = swarm
        self._history = history
        self._appends = appends
        self._topic_ids = topic_ids
        self._fails = fails
        self._verdict = verdict
        self._timers: dict[int, _Timer] = {}
        self._by_id: dict[str, list[_Timer]] = defaultdict(list)
        self._direct: dict[str, int] = defaultdict(int)
        """Messages that were due as they came, and are in their topics at once."""
        self._read(records)

    def _read(self, records: list[StoredRecord]) -> None:
        owners: dict[int, _Timer] = {}
        for found in records:
            self._note_aside(found, owners)
            if found.kind == RecordKind.TIMER:
                delay = decode_delay(found.origin)
                if delay.predecessor == NONE:
                    timer = self._timers[found.position] = _Timer(found, delay, [found.position])
                    self._by_id[timer.message_id].append(timer)
                else:
                    if delay.root not in self._timers:
                        self._verdict.broke(
                            "T4", f"the record at {found.position} goes on from {delay.root}, no message"
                        )
                        continue
                    timer = self._continued(found, delay)
                owners[found.position] = timer
            elif found.kind == RecordKind.RECALL:
                root = decode_delay(found.origin).root
                if root in self._timers:
                    self._timers[root].recalled = True
                else:
                    self._verdict.broke("T4", f"the record at {found.position} recalls {root}, which is no message")
            elif found.kind == RecordKind.MESSAGE and (position := fired_timer(found)) != NONE:
                if position in owners and position == owners[position].positions[-1]:
                    owners[position].fired.append(found)
                else:
                    self._verdict.broke("T2", f"the message at {found.position} comes from {position}, which is done")
            elif found.kind == RecordKind.MESSAGE and not found.origin:
                self._direct[SystemProperties.FromString(found.system_properties).message_id] += 1

    def _note_aside(self, found: StoredRecord, owners: Mapping[int, _Timer]) -> None:
        """A timer is quarantined until it goes its way after all, or an operator is done with it."""
        if found.kind == RecordKind.QUARANTINE:
            timer = owners.get(fired_timer(found))
            if timer is not None:
                timer.aside.append((self._appended_s(found, -math.inf), math.inf))
            return
        ended = NONE
        if found.kind == RecordKind.QUARANTINE_END:
            ended = int.from_bytes(decode_end(found.payload), "big")
        elif found.kind == RecordKind.TIMER:
            ended = decode_delay(found.origin).predecessor
        elif found.kind == RecordKind.MESSAGE:
            ended = fired_timer(found)
        timer = owners.get(ended)
        if timer is not None and timer.aside:
            begin_s, end_s = timer.aside[-1]
            timer.aside[-1] = begin_s, min(end_s, self._appended_s(found, math.inf))

    def _appended_s(self, found: StoredRecord, unknown_s: float) -> float:
        """When a record was appended, virtual seconds; it is not known if the process died in the middle of that."""
        appended = self._appends.get(found.position)
        return unknown_s if appended is None else appended[1]

    def _continued(self, found: StoredRecord, delay: Delay) -> _Timer:
        timer = self._timers[delay.root]
        if timer.positions[-1] != delay.predecessor or timer.fired:
            self._verdict.broke(
                "T2", f"{timer.message_id} goes on at {found.position} behind {delay.predecessor}, which is done"
            )
        before = timer.record
        if (found.payload, found.system_properties, delay.due_ms, delay.topic) != (
            before.payload,
            before.system_properties,
            timer.delay.due_ms,
            timer.delay.topic,
        ):
            self._verdict.broke("S1", f"{timer.message_id} was changed as it rolled to {found.position}")
        timer.positions.append(found.position)
        return timer

    def judge(self, now_ms: int) -> None:
        """Check everything but what a broker holds of it.

        Args:
            now_ms: wall clock in the end.
        """
        for timer in self._timers.values():
            self._judge_timer(timer, now_ms)
        by_message: dict[str, list[Recalled]] = defaultdict(list)
        for recalled in self._history.recalls:
            by_message[recalled.message_id].append(recalled)
            if recalled.kind != "recall" and recalled.outcome not in ("refused", "unknown"):
                self._verdict.broke("T4", f"a {recalled.kind} handle of {recalled.message_id}: {recalled.said}")
        for message_id, sent in self._history.sent.items():
            if sent.due_ms:
                self._judge_sent(message_id, sent)
                self._judge_recalls(message_id, sent, by_message[message_id])

    def _is_alive(self, timer: _Timer) -> bool:
        return self._topic_ids.get(timer.delay.topic) == timer.delay.topic_id

    def _judge_timer(self, timer: _Timer, now_ms: int) -> None:
        verdict, due_ms, what = self._verdict, timer.delay.due_ms, timer.message_id
        if not timer.delay.topic_id:
            verdict.broke("P4", f"{what} does not say which topic of its name it is for")
        for fired in timer.fired:
            appended = self._appends.get(fired.position)  # none: the process died in the middle of the write
            if appended is not None and appended[0] < due_ms:
                verdict.broke("T1", f"{what} was due at {due_ms} and was delivered at {appended[0]}")
            if (fired.topic, fired.queue_id, fired.payload, fired.system_properties) != (
                timer.delay.topic,
                timer.delay.queue_id,
                timer.record.payload,
                timer.record.system_properties,
            ):
                verdict.broke("S1", f"{what} was delivered to another place, or with other bytes")
            if appended is not None and timer.record.position in self._appends:
                self._judge_lateness(timer, appended[1])
        if len(timer.fired) > 1:
            verdict.broke("T2", f"{what} was delivered {len(timer.fired)} times: {_places(timer.fired)}")
        if timer.recalled and timer.fired:
            verdict.broke("T4", f"{what} was taken back and is delivered: {_places(timer.fired)}")
        is_quarantined = ("", what) in self._history.set_aside
        if not timer.fired and not timer.recalled and not is_quarantined and due_ms <= now_ms and self._is_alive(timer):
            verdict.broke("T3", f"{what} was due at {due_ms}, it is {now_ms}, and it was not delivered")

    def _judge_lateness(self, timer: _Timer, fired_s: float) -> None:
        if self._swarm.clocks_differ or self._fails(timer.message_id) or _is_slow(self._swarm):
            return
        from_s = max((timer.delay.due_ms - START_MS) / 1000, self._appends[timer.record.position][1])
        allowed_s = _LATE_S_MAX + _SYNCS_AT_ONCE * self._swarm.sync_s_max
        if fired_s - from_s > allowed_s and not any(
            begin <= fired_s and end >= from_s for begin, end in self._history.troubles
        ):
            self._verdict.broke(
                "T3", f"{timer.message_id} was delivered {fired_s - from_s:.3f} s late at {fired_s:.6f}"
            )

    def _judge_sent(self, message_id: str, sent: Sent) -> None:
        """T2, S1, S2: it is stored once if it was accepted, and not at all if it was refused."""
        verdict = self._verdict
        count = len(self._by_id[message_id]) + self._direct[message_id]
        bad_ways = "bad ways" in self._swarm.faults
        if sent.outcome == "refused" and count and not bad_ways:
            verdict.broke("S2", f"{message_id} was refused ({sent.said}) and is stored")
        if sent.outcome != "ok":
            return
        if not count:
            if not self._may_be_lost(sent.began_s, sent.position):
                verdict.lost.append(message_id)
                verdict.broke("T2", f"{message_id} was accepted at {sent.ended_s:.6f} and is not there")
                return
            verdict.excused.append(message_id)
            disaster = self._history.lost_by(sent.began_s, sent.position)
            assert disaster is not None
            age_s = disaster.ran_s(sent.ended_s)
            if age_s > loss_s_max(self._swarm) and "slow device" not in self._swarm.faults:
                verdict.broke("S1", f"{message_id} was lost {age_s:.3f} s after it was accepted")
        if count > 1 and not bad_ways:
            verdict.broke("T2", f"{message_id} is stored {count} times")
        for timer in self._by_id[message_id]:
            if timer.delay.due_ms != sent.due_ms:
                verdict.broke("T1", f"{message_id} was sent for {sent.due_ms} and waits until {timer.delay.due_ms}")

    def _judge_recalls(self, message_id: str, sent: Sent, recalls: list[Recalled]) -> None:
        """T4: what was said of each try is what has become of the message."""
        verdict, timers = self._verdict, self._by_id[message_id]
        tries = [each for each in recalls if each.kind == "recall"]
        if len(timers) + self._direct[message_id] != 1:
            return  # lost, or sent twice by the proxy: the handle is of one of them
        delivered = self._direct[message_id] or any(timer.fired for timer in timers)
        for each in tries:
            certain = not self._may_be_lost(each.began_s, each.position)
            if each.outcome == "ok" and delivered and certain:
                verdict.broke("T4", f"{message_id} was taken back at {each.ended_s:.6f} and is delivered")
            if each.outcome == "ok" and certain and not any(timer.recalled for timer in timers):
                verdict.broke("T4", f"{message_id} was taken back at {each.ended_s:.6f}, and the log does not say so")
            if each.outcome == "missing" and self._is_alive(timers[0]) and not self._was_aside(timers[0], each):
                verdict.broke("T4", f"{message_id} was not known as it was to be taken back at {each.ended_s:.6f}")
        said_late = any(each.outcome == "late" for each in tries)
        if said_late and all(each.outcome in ("late", "refused") for each in tries) and timers and timers[0].recalled:
            verdict.broke("T4", f"{message_id} was never taken back, as was said, and is")
        taken_back = any(each.outcome in ("ok", "unknown") for each in tries)
        for delivery in self._history.deliveries:
            if delivery.message_id != message_id or not timers or not timers[0].recalled or not taken_back:
                continue
            if not self._may_be_lost(delivery.got_s, delivery.position):
                verdict.broke("T4", f"{message_id} was taken back and came at {delivery.got_s:.6f}")

    def _was_aside(self, timer: _Timer, recalled: Recalled) -> bool:
        """Whether it was quarantined at some time of a try to take it back, or a disaster has taken what says so."""
        if any(begin_s <= recalled.ended_s and end_s >= recalled.began_s for begin_s, end_s in timer.aside):
            return True
        return self._fails(timer.message_id) and self._may_be_lost(recalled.began_s, recalled.position)

    def _may_be_lost(self, began_s: float, position: int) -> bool:
        """Whether a disaster may have taken what was answered then."""
        lossy = self._swarm.is_lossy
        return lossy and self._history.lost_by(began_s, position) is not None

    def compare(self, what: str, state: TimerSnapshot, now_ms: int) -> None:
        """S6: what a broker's timer holds is what follows from the log.

        Args:
            what: which broker, in words.
            state: what it holds.
            now_ms: wall clock in the end.
        """
        verdict = self._verdict
        live = [
            each
            for each in self._timers.values()
            if not each.fired and each.delay.topic != TOPIC and ("", each.message_id) not in self._history.set_aside
        ]
        pending: dict[str, int] = defaultdict(int)
        for timer in live:
            if not timer.recalled and self._is_alive(timer):
                pending[timer.delay.topic] += 1
                if timer.positions[-1] not in state.held:
                    verdict.broke("S6", f"{what} does not hold {timer.message_id}, due at {timer.delay.due_ms}")
            elif not timer.recalled or timer.record.position in state.recalled:
                continue
            elif timer.delay.due_ms > max(now_ms, state.fired_until_ms) and timer.positions[-1] in state.held:
                verdict.broke("S6", f"{what} does not know that {timer.message_id} was taken back")
        counted = {topic: count for topic, count in state.pending.items() if topic != TOPIC}
        if counted != dict(pending):
            verdict.broke("S6", f"{what} counts {counted} pending, there are {dict(pending)}")
        if state.total != sum(state.pending.values()):
            verdict.broke("S6", f"{what} counts {state.total} pending in all, {state.pending} by topic")
        for sentence in state.broken:
            verdict.broke("S6", f"{what}: {sentence}")


def _is_slow(swarm: Swarm) -> bool:
    """Whether more messages may be due than the timer can deal with: it takes them one by one, and for each asks the
    device some seven times. That is thirty messages a second.
    """
    return swarm.memory == 0 and swarm.options.broker.timer.stage_entries_max == 1


def _places(records: list[StoredRecord]) -> str:
    return ", ".join(f"{each.topic}/{each.queue_id}@{each.queue_offset}" for each in records)
