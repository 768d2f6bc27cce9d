"""Delayed messages that any proxy takes, and any proxy takes back (T1, T2, T4); a workload of its own in some seeds."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from popwheel_broker.core.core import BrokerCore
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.delays import NEAR_MS, Delays
from tests.sim.history import History, Recalled
from tests.sim.process import START_MS
from tests.sim.producers import Producer
from tests.sim.stored import StoredMessage
from tests.sim.tools import Tools
from tests.sim.workload import OwnTopic, Workload

NAME = "recalls"
TOPIC = "later"
GROUP = "latecomer"
TYPE = TopicType.DELAY

_CONFIGURED_MS_MAX = 3 * 24 * 3_600_000
_RATE = 2.0
_RECALL_SHARE = 0.5
_LATEST_S = 8.0
"""So long after the faults the last ones are due."""


def is_own(topic: str) -> bool:
    """Whether a topic's messages are looked after here."""
    return topic == TOPIC or GROUP in topic


class Recalls(Workload):
    """A producer that delays all it sends and takes half of it back, and the consumer of the rest.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        safety_s: for how long there are faults.
    """

    def __init__(self, tools: Tools, chance: random.Random, safety_s: float) -> None:
        self.topics = {TOPIC: OwnTopic(TYPE)}
        self.history = History()
        self._tools = ours = Tools(tools.network, self.history, tools.trace, tools.loop, tools.log_end)
        delays = Delays(1.0, _RECALL_SHARE, tools.now() + safety_s + _LATEST_S, _CONFIGURED_MS_MAX)
        self._producer = Producer("pr", ours, chance, [TOPIC], (), _RATE, 3, 300, {TOPIC: TYPE}, delays)
        manners = Manners(batch_max=4, invisible_ms=(3000, 5000), wait_s=(0.0, 1.0), think_s_max=0.0, nack=0.1)
        self._consumer = Consumer("cr", ours, chance, Subscription(GROUP, TOPIC), manners)
        self._consuming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Send and take back until asked to stop."""
        self._consuming = asyncio.get_running_loop().create_task(self._consumer.run())
        await self._producer.run()

    def stop(self) -> None:
        """Have it stop soon."""
        self._producer.stop()

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self._consumer.stopping = True
        if self._consuming is not None:
            await self._consuming

    def left(self, core: BrokerCore) -> str:
        """What a broker has not done yet, in words."""
        if pending := core.timer.state.pending.histogram(START_MS + int(self._tools.now() * 1000), [NEAR_MS])[0]:
            return f"{pending} messages are due soon"
        waiting = core.pops.waiting(GROUP, TOPIC, None)
        return f"{waiting} messages that were delayed wait" if waiting else ""

    def judge(self, stored: Mapping[str, Iterable[StoredMessage]], *, is_calm: bool) -> list[str]:
        """Hold what clients saw against what has become of each message.

        Args:
            stored: all messages in each broker's log in the end: those that have fired are in their topic.
            is_calm: whether no fault struck: else a proxy that hears nothing of a broker has sent a message to another
                one, too, and each delivers its own.
        """
        broken = [f"S2: {each}" for each in self.history.unexpected]
        fired: dict[str, int] = defaultdict(int)
        for messages in stored.values():
            here = Counter(each.message_id for each in messages if each.topic == TOPIC)
            broken += [
                f"T2: {each} was delivered {count} times by one broker" for each, count in here.items() if count > 1
            ]
            for message_id in here:
                fired[message_id] += 1
        recalls: dict[str, list[Recalled]] = defaultdict(list)
        for recalled in self.history.recalls:
            recalls[recalled.message_id].append(recalled)
            if recalled.kind != "recall" and recalled.outcome not in ("refused", "unknown"):
                broken.append(f"T4: a {recalled.kind} handle of {recalled.message_id}: {recalled.said}")
        acked = {
            each.delivery.message_id
            for each in self.history.settlings
            if each.kind == "ack" and each.outcome != "refused"
        }
        for message_id, sent in self.history.sent.items():
            tries = [each for each in recalls[message_id] if each.kind == "recall"]
            taken_back = any(each.outcome == "ok" for each in tries)
            unclear = any(each.outcome == "unknown" for each in tries)
            if is_calm and sent.outcome == "ok" and fired[message_id] > 1:
                broken.append(f"T2: {message_id} was delivered {fired[message_id]} times")
            if taken_back and fired[message_id]:
                broken.append(f"T4: {message_id} was taken back and is delivered")
            if sent.outcome == "ok" and not taken_back and not unclear and not fired[message_id]:
                broken.append(f"T3: {message_id} was due at {sent.due_ms - START_MS} ms and is not delivered")
            if fired[message_id] and message_id not in acked:
                broken.append(f"P1: {message_id} was delivered and is not acknowledged")
            if sent.outcome == "refused" and fired[message_id]:
                broken.append(f"S2: {message_id} was refused ({sent.said}) and is delivered")
            if sent.outcome == "ok" and any(each.outcome == "missing" for each in tries):
                broken.append(f"T4: {message_id} was accepted, and was not known as it was to be taken back")
        for delivery in self.history.deliveries:
            due_ms = self.history.sent[delivery.message_id].due_ms - START_MS
            if delivery.got_s * 1000 < due_ms:
                broken.append(f"T1: {delivery.message_id} came at {delivery.got_s:.6f} and is due at {due_ms} ms")
        return broken
