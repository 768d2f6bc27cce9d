"""Lite topics at the broker: sent to, read in order, expired, in some of the seeds (P1, P5, P6, L2).

The workload speaks to the broker as a proxy does, with a topic, a group and a history of its own.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun
from popwheel_common.contract.send_id import encode_send_id
from popwheel_common.errors import StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_rpc import methods
from popwheel_rpc.status import RpcError
from tests.sim.history import History
from tests.sim.network import Network
from tests.sim.trace import Trace
from tests.sim.workload import OwnTopic, Workload

NAME = "lite topics"
TOPIC = "sessions"
GROUP = "sitters"
ATTEMPTS_MAX = 3
EXPIRATION_MS = 1500

_SHARE = 0.25
_TIMEOUT_S = 2.0
_TRIES_MAX = 60
_SLACK_MS = 5
_LATE_S = 30.0
"""A poll that was given up may still be served for so long."""


def is_on(seed: int, only: tuple[str, ...] | None) -> bool:
    """Whether a seed has the workload."""
    return random.Random(f"{seed}/lite topics").random() < _SHARE if only is None else NAME in only


@dataclass(slots=True)
class _Sent:
    """A message.

    Args:
        lite_topic: where it was sent to.
        ended_s, position: when that was answered OK, and where the log ended then; -1 if it was not.
    """

    lite_topic: str
    began_s: float
    ended_s: float = -1.0
    position: int = -1


@dataclass(slots=True)
class _Got:
    """A message as a client got it, and what the client said of it.

    Args:
        message_id, offset, attempt: which.
        asked_s, got_s, position: when the poll began and ended, and where the log ended then.
        done_s: when it began to say that it was done with; infinite if it never did.
        acked_s, acked_position: when that was answered OK, and where the log ended then; -1 if it was not.
        suspended: whether it was asked that its delivery does not count.
        suspended_s, suspended_position: when that was answered OK, and where the log ended then; it does not count
            from then on, unless a power loss took that record.
        forwarded: whether it was asked that the message be a dead letter.
    """

    message_id: str
    offset: int
    attempt: int
    asked_s: float
    got_s: float
    position: int
    done_s: float = float("inf")
    acked_s: float = -1.0
    acked_position: int = -1
    suspended: bool = False
    suspended_s: float = -1.0
    suspended_position: int = -1
    forwarded: bool = False


@dataclass(slots=True)
class _Kept:
    """What the log says of one lite topic: of its last life the messages, and which it had before."""

    there: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset and position of each, by id."""
    gone: set[str] = field(default_factory=set)
    last_ms: int = 0


class LiteWorkload(Workload):
    """Senders and clients of lite topics.

    Args:
        network: the way to the broker.
        trace: what happens goes there.
        loop: the time.
        log_end: where the log ends now.
        chance: its random source.
        fails: whether a message of an id fails by itself: this one sends none of those.
    """

    def __init__(
        self,
        network: Network,
        trace: Trace,
        loop: asyncio.AbstractEventLoop,
        log_end: Callable[[], int],
        chance: random.Random,
        fails: Callable[[str], bool],
    ) -> None:
        self.groups = {GROUP: ATTEMPTS_MAX}
        self._network = network
        self._trace = trace
        self._loop = loop
        self._log_end = log_end
        self._chance = chance
        self._fails = fails
        self._expiration_ms = chance.choice((0, 0, EXPIRATION_MS))
        self.topics = {TOPIC: OwnTopic(TopicType.LITE, 1, {"lite_expiration_ms": self._expiration_ms})}
        self._lite_topics = [f"user-{number}" for number in range(chance.choice((1, 3, 6)))]
        self._sent: dict[str, _Sent] = {}
        self._got: list[_Got] = []
        self._lost_polls_s: list[float] = []
        """The times of polls of which no answer came: messages may have been delivered by them."""
        self._count = 0
        self.is_over = False

    async def run(self) -> None:
        """Send and read until asked to stop."""
        loop = self._loop
        sending = [loop.create_task(self._send_on(each)) for each in self._lite_topics]
        self._reading = [loop.create_task(self._read_on(f"cl{number}")) for number in range(2)]
        await asyncio.wait(sending)
        for each in sending:
            each.result()

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self.is_over = True
        await asyncio.wait(self._reading)
        for each in self._reading:
            each.result()

    async def _call(self, method: Any, request: Any) -> Any:
        """The answer; None if what was done is not known."""
        try:
            return await self._network.call(method, request, {}, _TIMEOUT_S)
        except RpcError as error:
            self._trace.add("lite", method.name, error.status.name)
            return None

    # Senders

    async def _send_on(self, lite_topic: str) -> None:
        """One message of a lite topic after the other: the next when it is known that the one before is stored."""
        chance = self._chance
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(3.0 if chance.random() < 0.8 else 0.3))
            self._count += 1
            while self._fails(f"pl-{self._count}"):
                self._count += 1
            message_id = f"pl-{self._count}"
            await self._send(lite_topic, message_id, chance.randbytes(chance.choice((1, 100, 3000))))

    async def _send(self, lite_topic: str, message_id: str, body: bytes) -> None:
        properties = d.SystemProperties(message_id=message_id, lite_topic=lite_topic)
        run = MessageRun(
            TOPIC,
            0,
            [d.Message(topic=d.Resource(name=TOPIC), body=body).SerializeToString()],
            [properties.SerializeToString() + encode_send_id(self._chance.getrandbits(63))],
            [""],
            lite_topic=lite_topic,
        )
        sent = self._sent[message_id] = _Sent(lite_topic, self._loop.time())
        for _ in range(_TRIES_MAX):
            code, offset = 0, -1
            try:
                results = await self._call(methods.PUT, [run])
                if results is not None:
                    code, offset = results[0].code, results[0].queue_offset
            except StatusError as error:
                code = error.code
            self._trace.add("lite", "send", lite_topic, message_id, code_name(code) if code else "unknown", offset)
            if code == d.Code.OK:
                sent.ended_s, sent.position = self._loop.time(), self._log_end()
                return
            run.is_retry = True
            await asyncio.sleep(0.2)

    # Clients

    async def _read_on(self, client: str) -> None:
        """Read some lite topics, now and then others; in the end all."""
        chance = self._chance
        names_wanted = self._draw()
        is_known = False
        while not self.is_over:
            try:
                if self.stopping and names_wanted != self._lite_topics:
                    names_wanted, is_known = self._lite_topics, False
                elif chance.random() < 0.05 and not self.stopping:
                    names_wanted, is_known = self._draw(), False
                if not is_known:
                    is_known = await self._sync(client, pb.LITE_SET, names_wanted)
                elif chance.random() < 0.1:
                    is_known = await self._sync(
                        client, pb.LITE_ADD, chance.sample(names_wanted, min(1, len(names_wanted)))
                    )
                if is_known:
                    is_known = await self._poll(client)
            except StatusError as error:
                self._trace.add("lite", client, code_name(error.code), error.message[:60])
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.02 + 0.1 * chance.random())

    def _draw(self) -> list[str]:
        return self._chance.sample(self._lite_topics, self._chance.randint(0, len(self._lite_topics)))

    async def _sync(self, client: str, action: pb.LiteAction.ValueType, lite_topics: list[str]) -> bool:
        request = pb.SyncLiteRequest(group=GROUP, topic=TOPIC, client_id=client, action=action, lite_topics=lite_topics)
        answer = await self._call(methods.SYNC_LITE, request)
        self._trace.add("lite", client, "sync", pb.LiteAction.Name(action), *lite_topics)
        return answer is not None and not answer.unknown_client

    async def _poll(self, client: str) -> bool:
        """Take messages and deal with them; whether the broker knows the client."""
        chance, asked_s = self._chance, self._loop.time()
        request = pb.PopRequest(
            group=GROUP,
            topic=TOPIC,
            queue_id=-1,
            max_messages=chance.choice((1, 2, 16)),
            invisible_ms=chance.choice((300, 2000)),
            client_id=client,
        )
        request.lite = True
        answer = await self._call(methods.POP, request)
        if answer is None:
            self._lost_polls_s.append(asked_s)
            return False
        if answer.is_unknown_client:
            return False
        dealing = []
        for data, handle in zip(answer.messages, answer.handles, strict=True):
            properties = d.Message.FromString(data).system_properties
            got = _Got(
                *(properties.message_id, properties.queue_offset, properties.delivery_attempt),
                *(asked_s, self._loop.time(), self._log_end()),
            )
            self._got.append(got)
            self._trace.add("lite", client, "got", properties.lite_topic, got.message_id, got.attempt)
            dealing.append(self._loop.create_task(self._deal_with(got, handle)))
        if dealing:
            await asyncio.wait(dealing)
            for each in dealing:
                each.result()
        return True

    async def _deal_with(self, got: _Got, handle: str) -> None:
        chance = self._chance
        await asyncio.sleep(chance.random() * chance.choice((0.0, 0.1, 0.5)))
        kind = chance.choice(("forget", "change", "suspend", "forward")) if chance.random() < 0.4 else "ack"
        if kind == "forget":
            return
        call = chance.getrandbits(60)
        try:
            if kind in ("change", "suspend"):
                handle = await self._hide(got, handle, suspends=kind == "suspend")
                if not handle or chance.random() < 0.7:
                    return
                kind = "ack"
            got.forwarded = kind == "forward"
            got.done_s = self._loop.time()
            for number in range(_TRIES_MAX):
                if await self._is_done(kind, handle, call, again=number > 0):
                    got.acked_s, got.acked_position = self._loop.time(), self._log_end()
                    return
                await asyncio.sleep(0.1)
        except StatusError as error:
            self._trace.add("lite", kind, got.message_id, code_name(error.code))

    async def _hide(self, got: _Got, handle: str, *, suspends: bool) -> str:
        """Change the invisible time of a message, once or again and again; its last handle, empty if it is not known.

        Raises:
            StatusError: that was refused.
        """
        chance = self._chance
        for number in range(chance.choice((1, 1, 2, 4))):
            suspends = suspends if number == 0 else chance.random() < 0.7
            got.suspended |= suspends
            call = chance.getrandbits(60)
            request = pb.ChangeInvisibleRequest(group=GROUP, topic=TOPIC, receipt_handle=handle, call=call)
            request.invisible_ms, request.suspend = chance.choice((0, 200, 1000)), suspends
            answer = await self._call(methods.CHANGE_INVISIBLE, request)
            self._trace.add("lite", "suspend" if suspends else "change", got.message_id, request.invisible_ms)
            if answer is None:
                return ""
            if suspends and got.suspended_s < 0:
                got.suspended_s, got.suspended_position = self._loop.time(), self._log_end()
            handle = answer.receipt_handle
            await asyncio.sleep(chance.choice((0.0, 0.05, 0.3)))
        return handle

    async def _is_done(self, kind: str, handle: str, call: int, *, again: bool) -> bool:
        """Acknowledge a message, or have it be a dead letter. Raises StatusError: that was refused."""
        if kind == "forward":
            request = pb.DeadLetterRequest(group=GROUP, topic=TOPIC, receipt_handle=handle, is_retry=again, call=call)
            return await self._call(methods.DEAD_LETTER, request) is not None
        ack = pb.AckRequest(group=GROUP, topic=TOPIC, receipt_handles=[handle], is_retry=again, call=call)
        answer = await self._call(methods.ACK, ack)
        if answer is not None and answer.results and answer.results[0].code != d.Code.OK:
            raise StatusError(answer.results[0].code, answer.results[0].error)
        return answer is not None

    # What is to hold

    def left(self, core: BrokerCore) -> str:
        """What is not done yet, in words."""
        return left_in(core, TOPIC, GROUP)

    def judge(
        self, log: Iterable[StoredRecord], disasters: History, *, is_lossy: bool, clocks_differ: bool
    ) -> list[str]:
        """Hold what was seen against the log.

        Args:
            log: all records in their order.
            disasters: the history that has them.
            is_lossy: whether a disaster may take what was acknowledged.
            clocks_differ: whether times of records can't be compared.
        """
        kept: dict[str, _Kept] = defaultdict(_Kept)
        dead: dict[str, int] = {}
        broken: list[str] = []
        for record in log:
            if record.kind == RecordKind.FORGET_TOPIC and names.lite_parent(record.payload.decode()) == TOPIC:
                lite_topic = names.lite_of(record.payload.decode())
                broken += self._ended(lite_topic, kept[lite_topic], record.store_time_ms, clocks_differ)
            elif record.kind == RecordKind.MESSAGE:
                message_id = d.SystemProperties.FromString(record.system_properties).message_id
                if record.topic == names.dead_letter_topic(GROUP):
                    dead[message_id] = record.position
                elif names.lite_of(record.topic) and names.lite_parent(record.topic) == TOPIC:
                    if message_id in kept[names.lite_of(record.topic)].there:
                        broken.append(f"S2: {message_id} is stored twice")
                    kept[names.lite_of(record.topic)].there[message_id] = record.queue_offset, record.position
                    kept[names.lite_of(record.topic)].last_ms = record.store_time_ms
        by_id: dict[str, list[_Got]] = defaultdict(list)
        for got in self._got:
            by_id[got.message_id].append(got)
        broken += self._missing(kept, by_id, dead, disasters, is_lossy=is_lossy)
        for lite_topic, each in kept.items():
            broken += self._out_of_order(lite_topic, each, by_id, dead, disasters)
        broken += self._repeated(by_id, disasters)
        broken += self._miscounted(by_id, dead, disasters)
        return broken

    def _ended(self, lite_topic: str, kept: _Kept, now_ms: int, clocks_differ: bool) -> list[str]:
        """A lite topic has ended: whether it was time."""
        found = []
        if kept.there and not clocks_differ:
            idle_ms = now_ms - kept.last_ms
            if not self._expiration_ms or idle_ms < self._expiration_ms - _SLACK_MS:
                found.append(f"S1: {lite_topic} has ended {idle_ms} ms after its last message")
        kept.gone.update(kept.there)
        kept.there.clear()
        return found

    def _missing(
        self,
        kept: Mapping[str, _Kept],
        by_id: Mapping[str, list[_Got]],
        dead: Mapping[str, int],
        disasters: History,
        *,
        is_lossy: bool,
    ) -> list[str]:
        found = []
        for message_id, sent in self._sent.items():
            of = kept.get(sent.lite_topic, _Kept())
            if sent.ended_s >= 0 and message_id not in of.there and message_id not in of.gone:
                if not (is_lossy and disasters.lost_by(sent.began_s, sent.position)):
                    found.append(f"S1: {message_id} of {sent.lite_topic} was accepted and is not stored")
            elif message_id in of.there and message_id not in by_id and message_id not in dead:
                # Dead is also one of which every answer was lost on its way.
                found.append(f"P1: {message_id} of {sent.lite_topic} is stored and nobody got it")
        return found

    def _out_of_order(
        self,
        lite_topic: str,
        kept: _Kept,
        by_id: Mapping[str, list[_Got]],
        dead: Mapping[str, int],
        disasters: History,
    ) -> list[str]:
        found = []
        stored = sorted(kept.there.items(), key=lambda each: each[1][0])
        sent_s = [self._sent[message_id].began_s for message_id, _ in stored]
        if sent_s != sorted(sent_s):
            found.append(f"P6: messages of {lite_topic} are stored in another order than they were sent in")
        before: list[str] = []
        for message_id, (offset, _) in stored:
            for got in by_id.get(message_id, ()):
                if got.offset != offset or disasters.lost_by(got.asked_s, got.position):
                    continue
                late = next((each for each in before if not _was_done(by_id.get(each, ()), got, dead.get(each))), None)
                if late is not None:
                    found.append(f"P6: {message_id} of {lite_topic} came at {got.got_s:.6f}, before {late} was done")
            before.append(message_id)
        return found

    def _repeated(self, by_id: Mapping[str, list[_Got]], disasters: History) -> list[str]:
        found = []
        for message_id, all_got in by_id.items():
            if message_id not in self._sent:
                found.append(f"S2: {message_id} came and nobody sent it")
            for got in all_got:
                if got.attempt > ATTEMPTS_MAX or got.attempt < 1:
                    found.append(f"P5: {message_id} came as {got.attempt} of {ATTEMPTS_MAX}")
            acked = [got for got in all_got if got.acked_s >= 0]
            for got in acked:
                again = [each for each in all_got if each.asked_s > got.acked_s]
                if again and not disasters.lost_by(got.done_s, got.acked_position):
                    found.append(f"P1: {message_id} came at {again[0].got_s:.6f}, done with at {got.acked_s:.6f}")
        return found

    def _miscounted(
        self, by_id: Mapping[str, list[_Got]], dead: Mapping[str, int], disasters: History
    ) -> Iterator[str]:
        """Attempts: one more for each delivery that failed, none for one that was suspended, however often (P5)."""
        for message_id, all_got in by_id.items():
            if any(disasters.lost_by(each.asked_s, each.position) for each in all_got):
                continue
            for later in all_got:
                others = [each for each in all_got if each is not later and each.offset == later.offset]
                if any(each.asked_s < later.got_s and each.got_s >= later.asked_s for each in others):
                    continue  # nothing shows which of them was first
                earlier = [each for each in others if each.got_s < later.asked_s]
                made = max((each.attempt for each in earlier), default=0)
                # Of several that came as the same attempt all but the last were suspended.
                latest = [each for each in earlier if each.attempt == made]
                least = made + any(not each.suspended for each in latest) if latest else 1
                most = made + any(_counts(each, disasters) for each in latest) if latest else 1
                most += self._lost(min((each.asked_s for each in latest), default=0.0), later.got_s)
                if not least <= later.attempt <= most:
                    yield (
                        f"P5: {message_id} came as {made}, then as {later.attempt} at {later.got_s:.6f}, where {least} "
                        f"to {most} could be"
                    )
            if message_id in dead and not any(each.forwarded for each in all_got):
                failed = sum(_counts(each, disasters) for each in all_got)
                failed += self._lost(
                    min(each.asked_s for each in all_got), max(each.got_s for each in all_got) + _LATE_S
                )
                if failed < ATTEMPTS_MAX:
                    yield f"P5: {message_id} is a dead letter, of which {failed} deliveries may have failed"

    def _lost(self, since_s: float, until_s: float) -> int:
        """The number of polls without an answer that may have given something out in a time."""
        return sum(since_s - _LATE_S <= each <= until_s for each in self._lost_polls_s)


def _counts(got: _Got, disasters: History) -> bool:
    """Return whether a delivery may be an attempt: its suspension was not answered OK, or was lost."""
    return got.suspended_s < 0 or disasters.lost_by(got.suspended_s, got.suspended_position) is not None


def _was_done(earlier: Iterable[_Got], later: _Got, dead: int | None) -> bool:
    """Whether the group may have been done with a message when it got another one."""
    return any(each.done_s <= later.got_s for each in earlier) or (dead is not None and dead < later.position)


def left_in(core: BrokerCore, topic: str, group: str) -> str:
    """Return which lite topic has messages at a broker that a group has not done with, in words; empty for none."""
    lines, buffer = core.state.table.message_group_queues, core.state.merge_buffer
    for queue in core.store.queues.lite_of(topic):
        if buffer.of(group, queue).available_at_most or lines.has(group, queue.topic):
            return f"messages of {queue.topic} wait"
    return ""
