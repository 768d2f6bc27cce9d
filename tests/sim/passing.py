"""A topic that comes and goes: it is deleted with messages in hand, and made again under the same name (P4)."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence

from services.common.errors import StatusError
from services.common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim.clients import Consumer, Manners, Producer, Subscription
from tests.sim.delays import Delays
from tests.sim.history import History
from tests.sim.tools import LogEnd, Tools

TOPIC = "passing"
GROUP = "passer"
TYPE = TopicType.MIXED

_LAST_TRIES = 40
_SLACK_S = 1.0
"""How long after a deletion the broker may not have heard of it."""


class Passing:
    """Makes, uses and deletes the topic, over and over, with clients whose history is its own.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        create: makes the topic; True if it is there now.
        delete: deletes it; True if it is gone for certain.
        delays: what of its messages is delayed, and taken back.
    """

    def __init__(
        self,
        tools: Tools,
        chance: random.Random,
        create: Callable[[], Awaitable[bool]],
        delete: Callable[[], Awaitable[bool]],
        delays: Delays,
    ) -> None:
        self._chance = chance
        self._create = create
        self._delete = delete
        self.history = History()
        self._tools = Tools(tools.network, self.history, tools.trace, tools.loop, LogEnd())
        self._producer = Producer("pp", self._tools, chance, [TOPIC], (), 1.0, 1, 2000, {TOPIC: TYPE}, delays)
        manners = Manners(batch_max=4, invisible_ms=(200, 2000), wait_s=(0.0, 1.0), forget=0.5, nack=0.2)
        self._consumer = Consumer("cp", self._tools, chance, Subscription(GROUP, TOPIC), manners)
        self._deletions: list[tuple[float, float]] = []
        self.stopping = False

    async def run(self) -> None:
        """Until told to stop; the topic is gone then."""
        chance = self._chance
        while not self.stopping:
            if await self._create():
                for _ in range(chance.randint(1, 6)):
                    await self._producer.send([self._producer.message(TOPIC)])
                    if chance.random() < 0.7:
                        await self._consumer.poll()
            await asyncio.sleep(chance.random() * 0.5)
            began_s = self._tools.now()
            if await self._delete():
                self._deletions.append((began_s, self._tools.now()))
        for _ in range(_LAST_TRIES):
            if await self._delete():
                return
            await asyncio.sleep(0.5)

    def violations(self, heard: Sequence[float] | None = None, without: Container[str] = ()) -> list[str]:
        """Messages that came back from a topic that was deleted.

        Args:
            heard: when a broker heard of a deletion, each time; None if it always does within a moment.
            without: ids of messages that this is not asked of.
        """
        found = [f"S2: {each}" for each in self.history.unexpected]
        for delivery in self.history.deliveries:
            sent = None if delivery.message_id in without else self.history.sent.get(delivery.message_id)
            for began_s, ended_s in self._deletions:
                if heard is not None:
                    ended_s = min((each for each in heard if each >= began_s), default=float("inf"))
                if sent is not None and -1 < sent.ended_s < began_s and delivery.asked_s > ended_s + _SLACK_S:
                    found.append(
                        f"P4: {delivery.message_id} came at {delivery.got_s:.6f}, though its topic was deleted at "
                        f"{ended_s:.6f}"
                    )
        return found


async def carried_out(change: Awaitable[object], timeout_s: float = 3.0) -> bool:
    """Whether a change of the cluster has been made; False leaves it open."""
    try:
        async with asyncio.timeout(timeout_s):
            await change
    except (StatusError, TimeoutError):
        return False
    return True
