"""Push consumers that say goodbye, or fall silent, with messages in hand: these must come to others within seconds.

A workload of its own in some seeds, with a topic, a group and a history of its own (L2, P1, P2, P3).
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from popwheel_broker.core.core import BrokerCore
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.history import Delivery, Ending, Handle, History
from tests.sim.producers import SoundProducer
from tests.sim.tools import OPEN_CODES, Tools, headers
from tests.sim.workload import OwnTopic, Workload

NAME = "goodbyes"
TOPIC = "welcome"
GROUP = "guests"
TYPE = TopicType.NORMAL
ATTEMPTS_MAX = 1000
"""A message that nobody keeps is no dead letter."""

_SHARE = 0.2
_RATE = 3.0
_STAY_S = (0.3, 3.0)
_GUESTS = ("g0", "g1")
CLIENTS = (*_GUESTS, "gp", "gh")
_LAST_STAYS = 2
"""The number of times that each guest comes once more when the faults are over."""
_GOODBYE_TRIES = 5
_TICK_S = 1.0
_SLACK_S = 1.2
"""A poll of somebody else, and the calls until then."""
_CALM_BEFORE_S = 3.0
_SHORT_POLL_S = 0.2
"""A poll that does not wait asks broker after broker for as long (`receive_handler`)."""
_MANY_POLLS_S = 12.0
"""As long do such polls go on until each broker was asked, if one of them does not reach all."""


def is_on(seed: int, only: tuple[str, ...] | None) -> bool:
    """Return whether a seed has the workload."""
    return random.Random(f"{seed}/goodbyes").random() < _SHARE if only is None else NAME in only


def is_own(topic: str) -> bool:
    """Return whether a topic's messages are looked after here."""
    return topic == TOPIC or GROUP in topic


@dataclass(slots=True)
class _Stay:
    """One client of the group, from its first poll to its end.

    Args:
        client: its id.
        held: what it has got and not acknowledged, by receipt.
        seen_s: its last sign of life that was answered.
        ended_s: when it began to say goodbye, or fell silent; infinite while it is there.
        said_s: when its goodbye was answered OK; -1 if it was not.
    """

    client: str
    held: dict[str, Delivery] = field(default_factory=dict)
    seen_s: float = 0.0
    ended_s: float = float("inf")
    said_s: float = -1.0


class Guests(Workload):
    """Such clients, a producer, and a consumer that takes what nobody has.

    Args:
        tools_of: makes the tools of a client, by its name; their history is not touched.
        chance: its random source.
        fails: whether a message of an id fails by itself: this one sends none of those.
        choose_proxy: from now on all calls of a client go to one proxy, by the client's name.
    """

    def __init__(
        self,
        tools_of: Callable[[str], Tools],
        chance: random.Random,
        fails: Callable[[str], bool] = lambda _: False,
        choose_proxy: Callable[[str, random.Random], None] = lambda _, __: None,
    ) -> None:
        self.topics = {TOPIC: OwnTopic(TYPE)}
        self.groups = {GROUP: ATTEMPTS_MAX}
        self.history = History()
        self._chance = chance
        self._choose_proxy = choose_proxy
        self._stays: list[_Stay] = []
        self._guests = {name: self._ours(tools_of(name)) for name in _GUESTS}
        self._producer = SoundProducer("gp", self._ours(tools_of("gp")), chance, TOPIC, _RATE, fails)
        # Its polls do not wait, so most of what arrives wakes the others.
        manners = Manners(batch_max=16, invisible_ms=(2000, 2000), wait_s=(0.0,), think_s_max=0.0)
        self._host = Consumer("gh", self._ours(tools_of("gh")), chance, Subscription(GROUP, TOPIC), manners)
        self._hosting: asyncio.Task[None] | None = None

    def _ours(self, tools: Tools) -> Tools:
        return Tools(tools.network, self.history, tools.trace, tools.loop, tools.log_end)

    async def run(self) -> None:
        """Send, come and go until it is to stop, and a few times more."""
        loop = asyncio.get_running_loop()
        self._hosting = loop.create_task(self._host.run())
        coming = [loop.create_task(self._come_and_go(name, tools)) for name, tools in self._guests.items()]
        sending = loop.create_task(self._producer.run())
        await asyncio.wait(coming)
        self._producer.stopping = True
        await asyncio.wait((sending, *coming))
        for task in (sending, *coming):
            task.result()

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self._host.stopping = True
        if self._hosting is not None:
            await self._hosting

    def left(self, core: BrokerCore) -> str:
        """Return what a broker has not done yet, in words."""
        waiting = core.pops.waiting(GROUP, TOPIC, None)
        return f"{waiting} messages wait for {GROUP}" if waiting else ""

    async def _come_and_go(self, name: str, tools: Tools) -> None:
        count = left = 0
        while not self.stopping or left < _LAST_STAYS:
            left += self.stopping
            count += 1
            stay = _Stay(f"{name}-{count}")
            self._stays.append(stay)
            self._choose_proxy(name, self._chance)
            until_s = tools.now() + self._chance.uniform(*_STAY_S)
            while tools.now() < until_s:
                await self._poll(stay, tools)
            await self._leave(stay, tools)

    async def _poll(self, stay: _Stay, tools: Tools) -> None:
        chance = self._chance
        request = pb.ReceiveMessageRequest(
            group=d.Resource(name=GROUP),
            message_queue=d.MessageQueue(topic=d.Resource(name=TOPIC), id=-1),
            batch_size=chance.randint(1, 4),
            auto_renew=True,
        )
        request.long_polling_timeout.FromMilliseconds(1000)
        asked_s, got = tools.now(), list[Delivery]()
        codes: list[int] = []

        def taken(part: pb.ReceiveMessageResponse) -> None:
            if part.HasField("message"):
                got.append(self._got(part.message, asked_s, tools))
            elif part.HasField("status"):
                codes.append(part.status.code)

        complete = False
        try:
            complete = await tools.network.receive(request, headers(stay.client), 5.0, taken, None)
        except RpcError as error:
            tools.trace.add(stay.client, "poll failed", error.status.name)
        for each in got:
            each.vanished = not complete
        if not complete or (codes and codes[0] not in (d.Code.OK, d.Code.MESSAGE_NOT_FOUND)):
            await asyncio.sleep(0.1)
            return
        stay.seen_s = tools.now()
        if not got:
            await asyncio.sleep(0.05)  # a poll may be answered at once
        for delivery in got:
            stay.held[delivery.receipt] = delivery
            tools.trace.add(stay.client, "got", delivery.message_id, delivery.handle.delivery, delivery.attempt)
        for delivery in got:
            if chance.random() < 0.5:
                await self._ack(stay, delivery, tools)

    def _got(self, message: d.Message, asked_s: float, tools: Tools) -> Delivery:
        properties = message.system_properties
        delivery = Delivery(
            GROUP,
            TOPIC,
            properties.message_id,
            properties.receipt_handle,
            Handle.read(properties.receipt_handle),
            properties.delivery_attempt,
            asked_s,
            tools.now(),
            tools.log_end.position,
            renewed=True,
        )
        self.history.deliveries.append(delivery)
        return delivery

    async def _ack(self, stay: _Stay, delivery: Delivery, tools: Tools) -> None:
        ending = Ending("ack", delivery, delivery.receipt, tools.now())
        self.history.settlings.append(ending)
        del stay.held[delivery.receipt]
        request = pb.AckMessageRequest(group=d.Resource(name=GROUP), topic=d.Resource(name=TOPIC))
        request.entries.add(message_id=delivery.message_id, receipt_handle=delivery.receipt)
        try:
            response = await tools.network.call(protocol.ACK_MESSAGE, request, headers(stay.client), 3.0)
        except RpcError as error:
            ending.said = error.status.name
        else:
            code = response.entries[0].status.code if response.entries else response.status.code
            ending.said = d.Code.Name(code)
            if code == d.Code.OK:
                ending.outcome = "ok"
            elif code not in OPEN_CODES:
                ending.outcome = "refused"
        ending.ended_s, ending.position = tools.now(), tools.log_end.position
        tools.trace.add(stay.client, "ack", delivery.message_id, ending.outcome, ending.said)

    async def _leave(self, stay: _Stay, tools: Tools) -> None:
        stay.ended_s = tools.now()
        if self._chance.random() < 0.3:
            tools.trace.add(stay.client, "falls silent", *(each.message_id for each in stay.held.values()))
            return
        tools.trace.add(stay.client, "says goodbye", *(each.message_id for each in stay.held.values()))
        request = pb.NotifyClientTerminationRequest(group=d.Resource(name=GROUP))
        for _ in range(_GOODBYE_TRIES):
            try:
                await tools.network.call(protocol.NOTIFY_CLIENT_TERMINATION, request, headers(stay.client), 3.0)
            except RpcError:
                await asyncio.sleep(0.3)
            else:
                stay.said_s = tools.now()
                return

    def judge(
        self,
        disasters: History,
        options: ProxyOptions,
        way_s: float,
        is_calm: Callable[[float, float], bool],
        brokers: int = 1,
    ) -> list[str]:
        """Hold what clients saw against P1, P2, P3 and L2.

        Args:
            disasters: the history that has them.
            options: of the proxies: how long a message is hidden, and a client is taken to be there.
            way_s: what a way takes at the most, and a sync.
            is_calm: whether nothing was wrong from one time to another, in virtual seconds.
            brokers: where the messages are.
        """
        broken = [f"S2: {each}" for each in self.history.unexpected]
        given: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in sorted(self.history.deliveries, key=lambda each: each.handle.delivery):
            given[delivery.message_id].append(delivery)
        acked: dict[str, list[Ending]] = defaultdict(list)
        for ending in self.history.settlings:
            if ending.outcome != "refused":
                acked[ending.delivery.message_id].append(ending)
        for message_id, sent in self.history.sent.items():
            lost = disasters.lost_by(sent.began_s, sent.position)
            if sent.outcome == "ok" and lost is None and not acked[message_id]:
                broken.append(f"P1: {message_id} was accepted and is not acknowledged by {GROUP}")
            for ending in acked[message_id]:
                pop = ending.delivery.handle.delivery
                again = [each for each in given[message_id] if each.handle.delivery > pop]
                if ending.outcome != "ok" or disasters.lost_by(ending.began_s, ending.position):
                    continue
                broken += [
                    f"P3: {message_id} was acknowledged at {ending.ended_s:.6f} and came at {each.got_s:.6f}"
                    for each in again
                    if each.got_s > ending.began_s and each.handle.broker == ending.delivery.handle.broker
                ]
        slack_s = _SLACK_S + 12 * way_s
        if 2 * way_s * brokers > _SHORT_POLL_S:
            slack_s += _MANY_POLLS_S
        hidden_s = options.renewal.invisible_ms / 1000
        for stay in self._stays:
            said = stay.said_s >= 0
            begin_s = stay.said_s if said else stay.seen_s
            within_s = 0.0 if said else hidden_s + _TICK_S + options.client.expiry_ms / 1000
            for delivery in stay.held.values():
                later = [each for each in given[delivery.message_id] if each.asked_s > delivery.got_s - 5]
                later = [each for each in later if each.handle.delivery > delivery.handle.delivery]
                of_broker = [each for each in later if each.handle.broker == delivery.handle.broker]
                next_s = min((each.got_s for each in of_broker), default=float("inf"))
                if next_s < stay.seen_s and is_calm(delivery.got_s - _CALM_BEFORE_S, next_s):
                    broken.append(
                        f"P2: {delivery.message_id} was given to {stay.client} at {delivery.got_s:.6f}, which was "
                        f"there until {stay.seen_s:.6f}, and to somebody else at {next_s:.6f}"
                    )
                until_s = begin_s + within_s + slack_s
                if next_s > until_s and is_calm(delivery.got_s - _CALM_BEFORE_S, until_s):
                    how = "said goodbye" if said else "was seen last"
                    broken.append(
                        f"L2: {stay.client} {how} at {begin_s:.6f} with {delivery.message_id} in hand, which came to "
                        f"others at {next_s:.6f} only"
                    )
        return broken
