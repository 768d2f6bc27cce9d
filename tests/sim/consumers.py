"""Consumers that behave well or badly, as their seed says; what they see goes to the history."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from google.protobuf.message import Message as Protobuf

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim import filters
from tests.sim.edges import Edges
from tests.sim.history import Delivery, Ending, Handle, Polled
from tests.sim.tools import OPEN_CODES, Tools, headers

_SHORT_POLL_S = 0.1
_OK, _NOT_FOUND = d.Code.OK, d.Code.MESSAGE_NOT_FOUND  # which take long to be looked up there
_TRIED_AGAIN = 0.5


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
