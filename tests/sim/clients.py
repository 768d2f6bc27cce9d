"""Producers and consumers that behave well or badly, as their seed says; what they see goes to the history."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message as Protobuf

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim import filters
from tests.sim.delays import Delays, Recaller, delivery_ms
from tests.sim.edges import Edges
from tests.sim.history import Delivery, Ending, Handle, Polled, Sent
from tests.sim.process import START_MS
from tests.sim.tools import OPEN_CODES, Tools, headers, is_definite
from tests.sim.workload import Workload

_SHORT_POLL_S = 0.1
_OK, _NOT_FOUND = d.Code.OK, d.Code.MESSAGE_NOT_FOUND  # which take long to be looked up there
_BURST_MAX = 4
_LULL_S = (3.0, 12.0)
_EDGE_SHARE = 0.2
_TRIED_AGAIN = 0.5
_PROPERTY_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group reads of a topic.

    Args:
        group, topic: who, what.
        tags: only these; none for all.
        condition: an SQL92 filter in place of tags, of `filters.CONDITIONS`; empty for none.
    """

    group: str
    topic: str
    tags: tuple[str, ...] = ()
    condition: str = ""

    def wants(self, message: d.Message) -> bool:
        """Whether the group is to get a message."""
        if self.condition:
            return filters.CONDITIONS[self.condition](message)
        return not self.tags or message.system_properties.tag in self.tags


@dataclass(slots=True)
class Manners:
    """How a consumer treats what it gets; shares of 1.

    Args:
        batch_max: messages per poll.
        invisible_ms: shortest and longest invisible duration.
        wait_s: waits it asks for, one of them each time.
        think_s_max: how long it takes for a message.
        polls: how many it has open at one time.
        nack, forward, forget: what it does instead of an ack.
        twice: how often it acks again what it has acked.
        stale: how often it tries an old handle after it got a new one.
        forge: how often it makes up a handle.
        vanish: how often it goes away from a poll.
        auto_renew: how often it has the proxy renew.
        tries: says which receives are tried again with the same attempt id, as the connection of the first try breaks;
            None: none.
    """

    batch_max: int = 8
    invisible_ms: tuple[int, int] = (500, 4000)
    wait_s: tuple[float, ...] = (0.0, 2.0, 5.0)
    think_s_max: float = 0.3
    polls: int = 1
    nack: float = 0.0
    forward: float = 0.0
    forget: float = 0.0
    twice: float = 0.0
    stale: float = 0.0
    forge: float = 0.0
    vanish: float = 0.0
    auto_renew: float = 0.0
    tries: random.Random | None = None


POLITE = Manners(batch_max=16, invisible_ms=(2000, 2000), wait_s=(1.0,), think_s_max=0.0)


class Producer(Workload):
    """Sends messages of its own.

    Args:
        name: of the client, and the beginning of its messages' ids.
        tools: what clients share.
        chance: its random source.
        topics: where it sends to.
        tags: which tags it gives.
        rate: calls per second.
        batch_max: messages in one call.
        body_bytes_max: size of a body.
        types: what each topic takes; without it, messages that are not delayed.
        delays: what is delayed and revoked.
        odd: says which properties are at the edge of what is taken; None: all are as usual.
        described: says which properties they have that SQL92 filters ask for; None: none.
    """

    def __init__(
        self,
        name: str,
        tools: Tools,
        chance: random.Random,
        topics: Sequence[str],
        tags: Sequence[str],
        rate: float,
        batch_max: int,
        body_bytes_max: int,
        types: Mapping[str, TopicType.ValueType] | None = None,
        delays: Delays | None = None,
        odd: random.Random | None = None,
        described: random.Random | None = None,
    ) -> None:
        self._odd = odd
        self._described = described
        self._types = {} if types is None else types
        self._recaller = None if delays is None else Recaller(name, tools, chance, delays, topics)
        self._name = name
        self._tools = tools
        self._chance = chance
        self._topics = topics
        self._tags = tags
        self._rate = rate
        self._batch_max = batch_max
        self._body_bytes_max = body_bytes_max
        self._count = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._burst_left = 0
        self.burst_s = 0.0
        """If not 0, a few calls come with so much time between them at most, and then none for some seconds."""

    async def run(self) -> None:
        """Send until asked to stop; several calls may be under way."""
        while not self.stopping:
            await self._pause()
            count = 1 if self._chance.random() < 0.7 else self._chance.randint(1, self._batch_max)
            topic = self._chance.choice(self._topics)
            call = asyncio.get_running_loop().create_task(self.send([self.message(topic) for _ in range(count)]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            if self._chance.random() < 0.5:
                await asyncio.wait({call})
        await self.finish()

    async def finish(self) -> None:
        """Return when nothing that was begun is left to be done."""
        if self._calls:
            await asyncio.wait(set(self._calls))
        if self._recaller is not None:
            await self._recaller.finish()

    async def _pause(self) -> None:
        chance = self._chance
        if not self.burst_s:
            await asyncio.sleep(chance.expovariate(self._rate))
        elif self._burst_left:
            self._burst_left -= 1
            await asyncio.sleep(chance.random() * self.burst_s)
        else:
            self._burst_left = chance.randint(1, _BURST_MAX)
            await asyncio.sleep(chance.uniform(*_LULL_S))

    def message(self, topic: str) -> d.Message:
        """A new message."""
        self._count += 1
        chance = self._chance
        properties = d.SystemProperties(
            message_id=f"{self._name}-{self._count}",
            message_type=d.MessageType.NORMAL,
            body_encoding=d.Encoding.IDENTITY,
            born_host=self._name,
        )
        if self._tags and (tag := chance.choice((*self._tags, ""))):
            properties.tag = tag
        size = 1 if chance.random() < 0.1 else int(self._body_bytes_max ** chance.random())
        message = d.Message(
            topic=d.Resource(name=topic), body=chance.randbytes(max(1, size)), system_properties=properties
        )
        if chance.random() < 0.5:
            message.system_properties.born_timestamp.FromMilliseconds(START_MS + self._count)
            digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
            message.system_properties.body_digest.CopyFrom(d.Digest(type=d.DigestType.MD5, checksum=digest))
        if chance.random() < 0.2:
            message.user_properties["number"] = str(self._count)
        if self._odd is not None and self._odd.random() < _EDGE_SHARE:
            _put_at_the_edge(message, self._odd)
        if self._described is not None:
            filters.describe(message, self._described)
        if self._recaller is not None:
            self._recaller.delay(message, self._types.get(topic, TopicType.NORMAL))
        return message

    async def send(self, messages: Sequence[d.Message]) -> None:
        """Send in one call, and note what becomes of each."""
        tools = self._tools
        for message in messages:
            tools.history.sent[message.system_properties.message_id] = Sent(
                message, tools.now(), due_ms=delivery_ms(message)
            )
        sent = [tools.history.sent[message.system_properties.message_id] for message in messages]
        data = pb.SendMessageRequest(messages=messages).SerializeToString()
        ids = [message.system_properties.message_id for message in messages]
        tools.trace.add(self._name, "send", messages[0].topic.name, *ids)
        try:
            encoded = await tools.network.call(
                protocol.SEND_MESSAGE, data, headers(self._name), self._chance.choice((1.0, 3.0, 10.0))
            )
        except RpcError as error:
            for each in sent:
                self._note(each, error.status.name)
            tools.trace.add(self._name, "send failed", error.status.name, *ids)
            return
        response = pb.SendMessageResponse.FromString(encoded)
        if len(response.entries) != len(sent):
            for each in sent:
                self._refuse(each, response.status)
        else:
            for each, entry in zip(sent, response.entries, strict=True):
                if entry.status.code == _OK:
                    each.outcome, each.offset = "ok", -1 if each.due_ms else entry.offset
                    self._note(each, "OK")
                    if self._recaller is not None and entry.recall_handle:
                        self._recaller.accepted(each, entry.recall_handle)
                else:
                    self._refuse(each, entry.status)
        tools.trace.add(self._name, "sent", *(f"{each.outcome}@{each.offset}" for each in sent), sent[0].said[:60])

    def _refuse(self, sent: Sent, status: d.Status) -> None:
        if is_definite(status):
            sent.outcome = "refused"
        self._note(sent, f"{code_name(status.code)}: {status.message}")

    def _note(self, sent: Sent, said: str) -> None:
        sent.said = said
        sent.ended_s = self._tools.now()
        sent.position = self._tools.log_end.position


class SoundProducer(Producer):
    """Sends a few small messages to one topic, and none that fails by itself.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        topic: where it sends to.
        rate: calls per second.
        fails: whether a message of an id fails by itself.
    """

    def __init__(
        self, name: str, tools: Tools, chance: random.Random, topic: str, rate: float, fails: Callable[[str], bool]
    ) -> None:
        super().__init__(name, tools, chance, [topic], (), rate, 2, 50)
        self._fails = fails

    def message(self, topic: str) -> d.Message:
        """A new message, that does not fail."""
        while True:
            message = super().message(topic)
            if not self._fails(message.system_properties.message_id):
                return message


def _put_at_the_edge(message: d.Message, chance: random.Random) -> None:
    """Give a message as many keys and properties as it may have, and texts that are odd."""
    odd = chance.choice(("ü", "\u202e", "😀", "=", "; ", "%RETRY%", "'\"", "\\"))
    message.system_properties.keys.extend(f"{odd}{number}" for number in range(chance.choice((1, 20))))
    count = chance.choice((1, 127))  # and one more that any message may have
    value = odd * ((_PROPERTY_BYTES_MAX // count - 32) // len(odd.encode()))
    for number in range(count):
        message.user_properties[f"{odd}{number}"] = value


class Consumer:
    """Receives for one subscription.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        subscription: what it reads.
        manners: how it behaves; may be changed while it runs.
    """

    def __init__(
        self, name: str, tools: Tools, chance: random.Random, subscription: Subscription, manners: Manners
    ) -> None:
        self.name = name
        self._tools = tools
        self._chance = chance
        self.subscription = subscription
        self.manners = manners
        self._edges = Edges(name, tools, subscription.group, subscription.topic)
        self._work: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.rest_s_max = 0.0
        """How long it may rest between two polls."""

    async def run(self) -> None:
        """Poll until asked to stop, then finish what is in hand."""
        loop = asyncio.get_running_loop()
        pollers = [loop.create_task(self._poll_on()) for _ in range(self.manners.polls)]
        await asyncio.wait(pollers)
        for poller in pollers:
            poller.result()
        if self._work:
            await asyncio.wait(set(self._work))

    async def reform(self) -> None:
        """Begin a new life as a polite client; the old one says good-bye, so that nothing is kept invisible for it."""
        before, self.name = self.name, f"{self.name}-polite"
        self._tools.history.goodbyes[before] = self._tools.now()
        self.manners = POLITE
        request = pb.NotifyClientTerminationRequest(group=d.Resource(name=self.subscription.group))
        while True:
            try:
                await self._tools.network.call(protocol.NOTIFY_CLIENT_TERMINATION, request, headers(before), 3.0)
                return
            except RpcError:
                await asyncio.sleep(0.5)

    async def _poll_on(self) -> None:
        while not self.stopping:
            if self._chance.random() < 0.05:
                await self._beat()
            began_s = self._tools.now()
            code = await self.poll()
            if code not in (_OK, _NOT_FOUND):
                await asyncio.sleep(0.05 + self._chance.random() * 0.3)
            elif code == _NOT_FOUND and self._tools.now() - began_s < _SHORT_POLL_S:
                await asyncio.sleep(_SHORT_POLL_S + self._chance.random() * 0.3)
            if self.rest_s_max:
                await asyncio.sleep(self._chance.random() * self.rest_s_max)

    async def _beat(self) -> None:
        if self._edges.comes_next():
            await self._edges.call()
            return
        request = pb.HeartbeatRequest(group=d.Resource(name=self.subscription.group))
        try:
            await self._tools.network.call(protocol.HEARTBEAT, request, headers(self.name), 3.0)
        except RpcError as error:
            self._tools.trace.add(self.name, "beat failed", error.status.name)

    async def poll(self, wait_s: float | None = None) -> int:
        """One ReceiveMessage; what comes is worked on in the background. The status of the answer, 0 for none."""
        tools, manners, chance, of = self._tools, self.manners, self._chance, self.subscription
        wait_s = chance.choice(manners.wait_s) if wait_s is None else wait_s
        timeout_s = wait_s + 3.0
        renew = chance.random() < manners.auto_renew
        request = pb.ReceiveMessageRequest(
            group=d.Resource(name=of.group),
            message_queue=d.MessageQueue(topic=d.Resource(name=of.topic), id=-1),
            batch_size=chance.randint(1, manners.batch_max),
            auto_renew=renew,
        )
        if of.tags:
            request.filter_expression.type = d.FilterType.TAG
            request.filter_expression.expression = " || ".join(of.tags)
        if of.condition:
            request.filter_expression.type = d.FilterType.SQL
            request.filter_expression.expression = of.condition
        if not renew:
            request.invisible_duration.FromMilliseconds(chance.randint(*manners.invisible_ms))
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        vanish_after_s = chance.random() * (timeout_s + 1) if chance.random() < manners.vanish else None
        if vanish_after_s is not None and chance.random() < 0.5:
            vanish_after_s = chance.random() * 0.05
        polled = Polled(self.name, of.group, of.topic, of.tags, tools.now(), wait_s, tools.now() + timeout_s)
        polled.condition = of.condition
        tools.history.polls.append(polled)
        if manners.tries is not None and manners.tries.random() < _TRIED_AGAIN:
            got = await self._try_twice(request, polled, manners.tries)
        else:
            got = await self._receive(request, polled, vanish_after_s)
        if got is None:
            return 0
        tools.trace.add(self.name, "polled", code_name(polled.code), len(got))
        if got:
            task = asyncio.get_running_loop().create_task(self._work_on(got))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        return polled.code

    async def _try_twice(
        self, request: pb.ReceiveMessageRequest, polled: Polled, chance: random.Random
    ) -> list[Delivery] | None:
        """Receive, give that up after a while, and try it again with the same attempt id, by whatever way is next. The
        connection of the first try ends before that, or later. What the second one brought; None: it was not whole.
        """
        tools = self._tools
        request.attempt_id = f"{self.name}-{len(tools.history.polls)}"
        patience_s = chance.choice((0.0, 0.005, 0.05, 1.0)) * chance.random()
        first = replace(polled)
        tools.history.polls.append(first)
        ends_after_s = patience_s + chance.choice((0.0, 0.01, 0.3, 1.0)) * chance.random()
        trying = asyncio.get_running_loop().create_task(self._receive(request, first, ends_after_s))
        done, _ = await asyncio.wait([trying], timeout=patience_s)
        if done and (got := trying.result()) is not None:
            polled.code, polled.ended_s = first.code, first.ended_s
            return got
        tools.trace.add(self.name, "tries again", request.attempt_id)
        polled.began_s = tools.now()
        polled.deadline_s = polled.began_s + (first.deadline_s - first.began_s)
        got = await self._receive(request, polled, None)
        for delivery in await trying or ():
            delivery.vanished = True  # it came all the same, and nobody waited for it any more
        return got

    async def _receive(
        self, request: pb.ReceiveMessageRequest, polled: Polled, vanish_after_s: float | None
    ) -> list[Delivery] | None:
        """One call; what came, None if that was not whole."""
        tools, got = self._tools, list[Delivery]()

        def taken(part: pb.ReceiveMessageResponse) -> None:
            if part.HasField("status"):
                polled.code = part.status.code
            elif part.HasField("message"):
                got.append(self._got(part.message, polled, request.auto_renew))

        timeout_s = polled.deadline_s - polled.began_s
        try:
            complete = await tools.network.receive(request, headers(self.name), timeout_s, taken, vanish_after_s)
        except RpcError as error:
            polled.ended_s = tools.now()
            tools.trace.add(self.name, "poll failed", error.status.name, len(got))
            complete = False
            polled.code = 0
        polled.ended_s = tools.now()
        polled.messages = len(got)
        if complete:
            return got
        for delivery in got:
            delivery.vanished = True
        return None

    def _got(self, message: d.Message, polled: Polled, renew: bool) -> Delivery:
        tools, of, properties = self._tools, self.subscription, message.system_properties
        delivery = Delivery(
            of.group,
            of.topic,
            properties.message_id,
            properties.receipt_handle,
            Handle.read(properties.receipt_handle),
            properties.delivery_attempt,
            polled.began_s,
            tools.now(),
            tools.log_end.position,
            renewed=renew,
            client=polled.client,
        )
        tools.history.deliveries.append(delivery)
        tools.trace.add(self.name, "got", delivery.message_id, delivery.handle.delivery, delivery.attempt)
        sent = tools.history.sent.get(properties.message_id)
        if sent is None or not is_same(sent.message, message):
            tools.history.unexpected.append(f"{self.name} got {message} which nobody sent like this")
        return delivery

    async def _work_on(self, deliveries: Sequence[Delivery]) -> None:
        chance, manners = self._chance, self.manners
        await asyncio.sleep(chance.random() * manners.think_s_max)
        if chance.random() < 0.1:
            await asyncio.sleep(deliveries[0].handle.invisible_ms / 1000 * chance.random() * 2)
        acks: list[Delivery] = []
        for delivery in deliveries:
            lot = chance.random()
            if lot < manners.nack:
                await self._change(delivery, chance.choice((0, 50, 1000)), then_ack=False)
            elif lot < manners.nack + manners.forward:
                await self._forward(delivery)
            elif lot < manners.nack + manners.forward + manners.forget:
                continue
            elif lot < manners.nack + manners.forward + manners.forget + manners.stale:
                await self._change(delivery, 1500, then_ack=True)
            else:
                acks.append(delivery)
        if not acks:
            return
        if chance.random() < 0.5:
            await self._ack([(each, each.receipt) for each in acks], forge=chance.random() < manners.forge)
        else:
            for each in acks:
                await self._ack([(each, each.receipt)])
        if chance.random() < manners.twice:
            await self._ack([(each, each.receipt) for each in acks])

    async def _ack(self, what: Sequence[tuple[Delivery, str]], forge: bool = False) -> None:
        tools, of = self._tools, self.subscription
        settlings = [Ending("ack", delivery, receipt, tools.now()) for delivery, receipt in what]
        if forge:
            # One with another offset than the pop gave out, one whose signature cannot be right.
            delivery, receipt = what[0]
            parts = receipt.split(" ")
            parts[-1] = "0" * len(parts[-1])
            settlings.append(Ending("forged", delivery, " ".join(parts), tools.now()))
        request = pb.AckMessageRequest(group=d.Resource(name=of.group), topic=d.Resource(name=of.topic))
        for ending in settlings:
            request.entries.add(message_id=ending.delivery.message_id, receipt_handle=ending.receipt)
        try:
            response = await tools.network.call(protocol.ACK_MESSAGE, request, headers(self.name), 3.0)
        except RpcError as error:
            for ending in settlings:
                self._note(ending, None, error.status.name)
            return
        for index, ending in enumerate(settlings):
            each = response.entries[index].status if index < len(response.entries) else response.status
            self._note(ending, each, "")

    async def _change(self, delivery: Delivery, invisible_ms: int, then_ack: bool) -> None:
        tools, of = self._tools, self.subscription
        ending = Ending("change", delivery, delivery.receipt, tools.now(), invisible_ms=invisible_ms)
        request = pb.ChangeInvisibleDurationRequest(
            group=d.Resource(name=of.group),
            topic=d.Resource(name=of.topic),
            receipt_handle=delivery.receipt,
            message_id=delivery.message_id,
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        try:
            response = await tools.network.call(protocol.CHANGE_INVISIBLE_DURATION, request, headers(self.name), 3.0)
        except RpcError as error:
            self._note(ending, None, error.status.name)
            return
        ending.new_receipt = response.receipt_handle
        self._note(ending, response.status, "")
        if then_ack and response.receipt_handle:
            await self._ack([(delivery, delivery.receipt)])  # the old handle, which is not good any more
            await self._ack([(delivery, response.receipt_handle)])

    async def _forward(self, delivery: Delivery) -> None:
        tools, of = self._tools, self.subscription
        ending = Ending("forward", delivery, delivery.receipt, tools.now())
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            group=d.Resource(name=of.group),
            topic=d.Resource(name=of.topic),
            receipt_handle=delivery.receipt,
            message_id=delivery.message_id,
            delivery_attempt=delivery.attempt,
            max_delivery_attempts=3,
        )
        try:
            response = await tools.network.call(
                protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE, request, headers(self.name), 3.0
            )
        except RpcError as error:
            self._note(ending, None, error.status.name)
            return
        self._note(ending, response.status, "")

    def _note(self, ending: Ending, status: d.Status | None, failure: str) -> None:
        tools = self._tools
        ending.ended_s = tools.now()
        ending.position = tools.log_end.position
        if status is None:
            ending.said = failure
        else:
            ending.said = code_name(status.code)
            if status.code == _OK:
                ending.outcome = "ok"
            elif status.code not in OPEN_CODES:
                ending.outcome = "refused"
        tools.history.settlings.append(ending)
        tools.trace.add(
            self.name,
            ending.kind,
            ending.delivery.message_id,
            Handle.read(ending.receipt).delivery,
            ending.outcome,
            ending.said,
        )


_ADDED = (
    "receipt_handle",
    "queue_id",
    "queue_offset",
    "delivery_attempt",
    "store_timestamp",
    "store_host",
    "invisible_duration",
    "dead_letter_queue",
)

_FILLED_IN = ("body_digest", "born_timestamp")
"""What the proxy adds where the sender has left it out."""


def is_same(sent: d.Message, got: d.Message) -> bool:
    """Whether a message that came is byte for byte the one that was sent, but for what the broker adds."""
    copy = d.Message()
    copy.CopyFrom(got)
    for name in _ADDED:
        copy.system_properties.ClearField(name)  # type: ignore[arg-type]
    for name in _FILLED_IN:
        if not sent.system_properties.HasField(name):  # type: ignore[arg-type]
            copy.system_properties.ClearField(name)  # type: ignore[arg-type]
    return _bytes(copy) == _bytes(sent)


def _bytes(message: Protobuf) -> bytes:
    return message.SerializeToString(deterministic=True)
