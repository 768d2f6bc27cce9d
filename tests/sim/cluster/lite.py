"""Lite topics in a cluster, in some of the seeds: readers whose syncs and polls come to any proxies, through all faults
(P1, P5, P6, S1, L2); and whether a waiting poll is woken when all is well again, and after a restart of a broker (L1).

It has a topic, a group and a history of its own.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from google.protobuf.duration_pb2 import Duration

from popwheel_broker.core.core import BrokerCore
from popwheel_common.contract import names
from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import LiteSubscriptionAction as Action
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim.cluster.clients import ClientNetwork
from tests.sim.cluster.swarm import ClusterSwarm
from tests.sim.lite import left_in
from tests.sim.loop import SimLoop
from tests.sim.stored import StoredMessage
from tests.sim.tools import headers
from tests.sim.trace import Trace
from tests.sim.workload import OwnTopic, Workload

NAME = "lite topics"
TOPIC = "sessions"
GROUP = "sitters"
ATTEMPTS_MAX = 16
_FEW_ATTEMPTS = 3
"""A message that came no more often than this has failed too seldom for a dead letter, whatever nobody saw (P5)."""
READERS = 3

_SHARE = 0.25
_ROOM = 1_000
"""Polls and interests that a proxy may have, at the least."""
_TIMEOUT_S = 5.0
_SYNC_EVERY_S = 30.0
_INVISIBLE_S = 2.0
_END_S = 6.0
"""So long after faults and a restart all is as it was."""
_CALM_MESSAGES = 6
_TOPIC = d.Resource(name=TOPIC)
_GROUP = d.Resource(name=GROUP)


def is_on(swarm: ClusterSwarm, only: tuple[str, ...] | None) -> bool:
    """Whether a seed has the workload: not where proxies have room for the other readers only."""
    if only is not None:
        return NAME in only
    receive = swarm.options.proxy.receive
    has_room = receive.interests_max >= _ROOM and receive.polls_max >= _ROOM
    return has_room and random.Random(f"{swarm.seed}/cluster lite topics").random() < _SHARE


@dataclass(slots=True)
class _Got:
    """A message as a reader got it; times in seconds.

    Args:
        message_id, broker, lite_topic, attempt: which.
        asked_s, got_s: when the poll began, and when it came.
        done_s: when its reader began to say that it was done with; infinite if it never did.
        acked_s: when that was answered OK; infinite if it was not.
    """

    message_id: str
    broker: str
    lite_topic: str
    attempt: int
    asked_s: float
    got_s: float
    done_s: float = float("inf")
    acked_s: float = float("inf")


@dataclass(slots=True)
class _Seen:
    """What all readers and the sender saw."""

    sent: dict[str, float] = field(default_factory=dict)
    """Message -> when its send began."""
    accepted: dict[str, float] = field(default_factory=dict)
    """Message -> when that was answered OK."""
    in_calm: set[str] = field(default_factory=set)
    """Messages that were sent when nothing was wrong any more."""
    got: list[_Got] = field(default_factory=list)


class LiteReaders(Workload):
    """A sender to lite topics, and clients of one group that read them.

    Args:
        way_of: makes a client's way to the proxies.
        trace: what happens goes there.
        loop: the time.
        chance: its random source.
        restart: kills a broker, and starts it again.
    """

    def __init__(
        self,
        way_of: Callable[[str], ClientNetwork],
        trace: Trace,
        loop: SimLoop,
        chance: random.Random,
        restart: Callable[[], Awaitable[None]],
    ) -> None:
        self.topics = {TOPIC: OwnTopic(TopicType.LITE, 1)}
        self.groups = {GROUP: ATTEMPTS_MAX}
        self._restart = restart
        self._unsynced = READERS
        self._are_all_named = False
        """True once the sender names no further lite topics: a send that failed late has named one more."""
        self._trace = trace
        self._loop = loop
        self._chance = chance
        self._seen = _Seen()
        self._lite_topics = [f"user-{number}" for number in range(chance.choice((2, 4, 8)))]
        self._made = len(self._lite_topics)
        self._ways = {name: way_of(name) for name in ("ls", *(f"lr{number}" for number in range(READERS)))}
        self.is_over = False
        self._reading: list[asyncio.Task[None]] = []

    @property
    def done(self) -> int:
        """How many messages were done with."""
        return len({got.message_id for got in self._seen.got if got.acked_s < float("inf")})

    async def run(self) -> None:
        """Send and read until asked to stop; then once more in calm, around a restart."""
        self._reading = [self._loop.create_task(self._read(name)) for name in self._ways if name != "ls"]
        await self._send()

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self.is_over = True
        await asyncio.wait(self._reading)
        for each in self._reading:
            each.result()

    def left(self, core: BrokerCore) -> str:
        """Return what a broker has not done yet, in words."""
        return left_in(core, TOPIC, GROUP)

    async def _send(self) -> None:
        """Send one message after another; a lite topic of which one may or may not be stored gets no more."""
        while not self.stopping:
            await asyncio.sleep(self._chance.expovariate(4.0))
            await self._send_one()
        self._are_all_named = True
        while self._unsynced:
            await asyncio.sleep(0.1)
        for _ in range(2):
            await asyncio.sleep(_END_S)
            for _ in range(_CALM_MESSAGES):
                await asyncio.sleep(self._chance.expovariate(2.0))
                await self._send_one(in_calm=True)
            self._trace.add("ls", "restart")
            await self._restart()

    async def _send_one(self, *, in_calm: bool = False) -> None:
        chance, way = self._chance, self._ways["ls"]
        place = chance.randrange(len(self._lite_topics))
        message_id = f"lm-{len(self._seen.sent)}"
        properties = d.SystemProperties(
            message_id=message_id,
            message_type=d.MessageType.LITE,
            lite_topic=self._lite_topics[place],
            body_encoding=d.Encoding.IDENTITY,
            born_host="sim",
        )
        message = d.Message(topic=_TOPIC, body=b"body", system_properties=properties)
        request = pb.SendMessageRequest(messages=[message]).SerializeToString()
        self._seen.sent[message_id] = self._loop.time()
        code = 0
        try:
            answer = await way.call(protocol.SEND_MESSAGE, request, headers("ls"), _TIMEOUT_S)
            code = pb.SendMessageResponse.FromString(answer).status.code
        except RpcError as error:
            self._trace.add("ls", "send", message_id, error.status.name)
        else:
            self._trace.add("ls", "send", message_id, properties.lite_topic, code_name(code))
        if code == d.Code.OK:
            self._seen.accepted[message_id] = self._loop.time()
            if in_calm:
                self._seen.in_calm.add(message_id)
        elif not in_calm:
            self._lite_topics[place] = f"user-{self._made}"
            self._made += 1

    def _all(self) -> list[str]:
        return [f"user-{number}" for number in range(self._made)]

    async def _read(self, name: str) -> None:
        """Read some lite topics, now and then others; in the end all."""
        reader = _Reader(name, self._ways[name], self._trace, self._loop, self._chance, self._seen)
        polling = [self._loop.create_task(reader.poll()) for _ in range(self._chance.choice((1, 2)))]
        wanted: set[str] = set()
        synced_at = -self._chance.random() * _SYNC_EVERY_S
        while not self.stopping:
            await asyncio.sleep(self._chance.random())
            if self._loop.time() >= synced_at + _SYNC_EVERY_S:
                synced_at = self._loop.time()
                # Half a minute is long where readers have to begin anew.
                if not await reader.sync(Action.COMPLETE_ADD, wanted):
                    synced_at -= _SYNC_EVERY_S - 1.0
            elif self._chance.random() < 0.3:
                lite_topic = self._chance.choice(self._all())
                action = Action.PARTIAL_ADD if self._chance.random() < 0.7 else Action.PARTIAL_REMOVE
                if await reader.sync(action, {lite_topic}):
                    wanted = wanted | {lite_topic} if action == Action.PARTIAL_ADD else wanted - {lite_topic}
        while not self._are_all_named:
            await asyncio.sleep(0.1)
        # From now on it says nothing more: brokers that forget are for the proxies to tell.
        while not await reader.sync(Action.COMPLETE_ADD, set(self._all())):
            await asyncio.sleep(0.5)
        self._unsynced -= 1
        while not self.is_over:
            await asyncio.sleep(0.5)
        reader.is_over = True
        await asyncio.wait(polling)
        for each in polling:
            each.result()

    # What is to hold

    def judge(self, stored: Mapping[str, Iterable[StoredMessage]], bound_s: float | None) -> list[str]:
        """Hold what was seen against what is stored.

        Args:
            stored: the messages in each broker's log.
            bound_s: how soon a waiting poll gets a message in calm; None if that is not promised.
        """
        at: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        places: dict[str, int] = defaultdict(int)
        dead: set[str] = set()
        for broker, messages in stored.items():
            for each in messages:
                if each.topic == names.dead_letter_topic(GROUP):
                    dead.add(each.message_id)
                elif names.lite_of(each.topic) and names.lite_parent(each.topic) == TOPIC:
                    at[broker, names.lite_of(each.topic)][each.offset] = each.message_id
                    places[each.message_id] += 1
        by_id: dict[str, list[_Got]] = defaultdict(list)
        for got in self._seen.got:
            by_id[got.message_id].append(got)
        found = [f"S1: {each} was accepted and is not stored" for each in self._seen.accepted if not places[each]]
        found += [f"S2: {each} is stored {count} times" for each, count in places.items() if count > 1]
        for (broker, lite_topic), offsets in at.items():
            in_order = [offsets[each] for each in sorted(offsets)]
            found += self._out_of_order(broker, lite_topic, in_order, by_id, dead)
            if bound_s is not None:
                found += self._late(f"{lite_topic} at {broker}", in_order, by_id, bound_s)
        for message_id, all_got in by_id.items():
            found += _given_again(message_id, all_got)
            latest = max(got.attempt for got in all_got)
            if message_id in dead and latest <= _FEW_ATTEMPTS:
                found.append(f"P5: {message_id} is a dead letter, and came as {latest} of {ATTEMPTS_MAX} at the most")
        return found

    def _out_of_order(
        self,
        broker: str,
        lite_topic: str,
        stored: Sequence[str],
        by_id: Mapping[str, Sequence[_Got]],
        dead: set[str],
    ) -> Iterator[str]:
        where = f"{lite_topic} at {broker}"
        began_s = [self._seen.sent[each] for each in stored]
        if began_s != sorted(began_s):
            yield f"P6: {where} has {stored}, sent in another order"
        for message_id in stored:
            if message_id not in by_id and message_id not in dead:
                yield f"P1: {message_id} of {where} is stored and nobody got it"
        for before, message_id in pairwise(stored):
            first_s = min((got.got_s for got in by_id.get(message_id, ())), default=float("inf"))
            was_done = any(got.done_s <= first_s for got in by_id.get(before, ()))
            if first_s < float("inf") and not was_done and before not in dead:
                yield f"P6: {message_id} of {where} came at {first_s:.6f}, before {before} was done with"

    def _late(
        self, where: str, stored: Sequence[str], by_id: Mapping[str, Sequence[_Got]], bound_s: float
    ) -> Iterator[str]:
        for number, message_id in enumerate(stored):
            if message_id not in self._seen.in_calm:
                continue
            before = by_id.get(stored[number - 1], ()) if number else ()
            ready_s = self._seen.accepted[message_id]
            if number:
                ready_s = max(ready_s, min((got.acked_s for got in before), default=ready_s))
            first_s = min((got.got_s for got in by_id.get(message_id, ())), default=float("inf"))
            if first_s > ready_s + bound_s:
                yield f"L1: {message_id} of {where} was there at {ready_s:.6f} and came at {first_s:.6f}"


def _given_again(message_id: str, all_got: Sequence[_Got]) -> Iterator[str]:
    done_s = min(got.acked_s for got in all_got)
    for got in all_got:
        if got.asked_s > done_s:
            yield f"P1: {message_id} came at {got.got_s:.6f}, done with at {done_s:.6f}"
        if not 1 <= got.attempt <= ATTEMPTS_MAX:
            yield f"P5: {message_id} came as {got.attempt} of {ATTEMPTS_MAX}"


class _Reader:
    """One client: what it says that it reads, and what it does with what comes."""

    def __init__(
        self, name: str, way: ClientNetwork, trace: Trace, loop: SimLoop, chance: random.Random, seen: _Seen
    ) -> None:
        self._name = name
        self._way = way
        self._trace = trace
        self._loop = loop
        self._chance = chance
        self._seen = seen
        self.is_over = False

    async def sync(self, action: Action.ValueType, lite_topics: set[str]) -> bool:
        """Say what it reads; whether that was answered OK."""
        request = pb.SyncLiteSubscriptionRequest(
            action=action, topic=_TOPIC, group=_GROUP, lite_topic_set=sorted(lite_topics)
        )
        try:
            answer = await self._way.call(protocol.SYNC_LITE_SUBSCRIPTION, request, headers(self._name), _TIMEOUT_S)
        except RpcError as error:
            self._trace.add(self._name, "sync", error.status.name)
            return False
        self._trace.add(self._name, "sync", Action.Name(action), *sorted(lite_topics), code_name(answer.status.code))
        return answer.status.code == d.Code.OK

    async def poll(self) -> None:
        """Poll until it is over."""
        chance = self._chance
        while not self.is_over:
            await asyncio.sleep(0.05 + 0.3 * chance.random())
            wait_s = chance.choice((0.0, 5.0, 15.0))
            request = pb.ReceiveMessageRequest(
                group=_GROUP,
                message_queue=d.MessageQueue(topic=_TOPIC, id=-1),
                batch_size=chance.choice((1, 4, 16)),
                long_polling_timeout=_duration(wait_s),
                invisible_duration=_duration(_INVISIBLE_S),
            )
            asked_s = self._loop.time()
            dealing: list[asyncio.Task[None]] = []

            def taken(
                part: pb.ReceiveMessageResponse, asked_s: float = asked_s, dealing: list[asyncio.Task[None]] = dealing
            ) -> None:
                if part.HasField("message"):
                    dealing.append(self._loop.create_task(self._deal_with(part.message, asked_s)))

            try:
                await self._way.receive(request, headers(self._name), wait_s + _TIMEOUT_S, taken, None)
            except RpcError as error:
                self._trace.add(self._name, "poll", error.status.name)
            for each in dealing:
                await each

    async def _deal_with(self, message: d.Message, asked_s: float) -> None:
        chance, properties = self._chance, message.system_properties
        handle = properties.receipt_handle
        got = _Got(
            *(properties.message_id, handle.split(" ")[5], properties.lite_topic, properties.delivery_attempt),
            *(asked_s, self._loop.time()),
        )
        self._seen.got.append(got)
        self._trace.add(self._name, "got", got.message_id, got.lite_topic, got.broker, got.attempt)
        await asyncio.sleep(chance.random() * chance.choice((0.0, 0.1)))
        kind = chance.choice(("forget", "change", "suspend")) if chance.random() < 0.2 else "ack"
        if kind == "forget":
            return
        try:
            if kind != "ack":
                handle = await self._hide(got, handle, suspends=kind == "suspend")
                if not handle or chance.random() < 0.7:
                    return
            got.done_s = self._loop.time()
            entry = pb.AckMessageEntry(message_id=got.message_id, receipt_handle=handle, lite_topic=got.lite_topic)
            ack = pb.AckMessageRequest(group=_GROUP, topic=_TOPIC, entries=[entry])
            answer = await self._way.call(protocol.ACK_MESSAGE, ack, headers(self._name), _TIMEOUT_S)
            self._trace.add(self._name, "ack", got.message_id, code_name(answer.status.code))
            if answer.status.code == d.Code.OK:
                got.acked_s = self._loop.time()
        except RpcError as error:
            self._trace.add(self._name, kind, got.message_id, error.status.name)

    async def _hide(self, got: _Got, handle: str, *, suspends: bool) -> str:
        """Change the invisible time of a message, once or again and again; its last handle, empty if it has none.

        Raises:
            RpcError: it is not known what became of the last change.
        """
        chance = self._chance
        for number in range(chance.choice((1, 1, 2, 4))):
            suspends = suspends if number == 0 else chance.random() < 0.7
            change = pb.ChangeInvisibleDurationRequest(
                group=_GROUP,
                topic=_TOPIC,
                receipt_handle=handle,
                invisible_duration=_duration(chance.choice((0.0, 0.5))),
                suspend=suspends,
            )
            answer = await self._way.call(protocol.CHANGE_INVISIBLE_DURATION, change, headers(self._name), _TIMEOUT_S)
            what = "suspend" if suspends else "change"
            self._trace.add(self._name, what, got.message_id, code_name(answer.status.code))
            if answer.status.code != d.Code.OK:
                return ""
            handle = answer.receipt_handle
            await asyncio.sleep(chance.choice((0.0, 0.1)))
        return handle


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(seconds * 1000))
    return duration
