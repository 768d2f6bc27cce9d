"""A topic whose messages have message groups, and a group that consumes it in order (P6), in some of the seeds."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from tests.sim.history import Delivery, Ending, History, Sent
from tests.sim.producers import Producer
from tests.sim.stored import StoredMessage
from tests.sim.swarm import ORDERED_GROUP, ORDERED_TOPIC
from tests.sim.tools import Tools

Originals = Mapping[str, Sequence[StoredMessage]]
"""Where each message is stored, by its id."""
Key = tuple[str, str]
"""A group and a message's id."""

_LINES = ("a", "b", "c", "d", "e")
_RATE = 4.0
_BATCH_MAX = 3
_BURST_LINES = ("x", "y")
_BURSTS_RATE = 0.5
_BURST_MAX = 4


class OrderedProducer(Producer):
    """Sends messages of several message groups: of each one call after another, of all at the same time.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        body_bytes_max: size of a body.
        rate: calls per second of each message group.
    """

    def __init__(
        self, name: str, tools: Tools, chance: random.Random, body_bytes_max: int = 300, rate: float = _RATE
    ) -> None:
        super().__init__(name, tools, chance, [ORDERED_TOPIC], (), rate, _BATCH_MAX, body_bytes_max)
        self._lines = _LINES[: chance.randint(1, len(_LINES))]

    async def run(self) -> None:
        """Send until asked to stop."""
        loop = asyncio.get_running_loop()
        sending = [loop.create_task(self._send_on(line)) for line in self._lines]
        await asyncio.wait(sending)
        for each in sending:
            each.result()

    async def _send_on(self, line: str) -> None:
        while not self.stopping:
            await self._pause()
            count = 1 if self._chance.random() < 0.7 else self._chance.randint(1, _BATCH_MAX)
            await self.send([self._of(line) for _ in range(count)])

    def _of(self, line: str) -> d.Message:
        message = self.message(ORDERED_TOPIC)
        message.system_properties.message_type = d.MessageType.FIFO
        message.system_properties.message_group = line
        return message


class BurstProducer(OrderedProducer):
    """Sends several calls of one message group by the same proxy, and waits for no answer in between: the proxy has to
    keep the order in which they come to it.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        to_one_proxy: from now on calls go to one proxy, another one each time.
    """

    def __init__(
        self, name: str, tools: Tools, chance: random.Random, to_one_proxy: Callable[[random.Random], None]
    ) -> None:
        super().__init__(name, tools, chance)
        self._to_one_proxy = to_one_proxy

    async def run(self) -> None:
        """Send until asked to stop."""
        chance, loop = self._chance, asyncio.get_running_loop()
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(_BURSTS_RATE))
            self._to_one_proxy(chance)
            line = chance.choice(_BURST_LINES)
            calls = [[self._of(line)] for _ in range(chance.randint(2, _BURST_MAX))]
            sending = [loop.create_task(self.send(messages)) for messages in calls]
            await asyncio.wait(sending)
            for each in sending:
                each.result()


def lines_of(history: History, originals: Originals) -> dict[str, list[tuple[StoredMessage, Sent]]]:
    """The messages of each message group, as they stand in their queue."""
    lines: dict[str, list[tuple[StoredMessage, Sent]]] = defaultdict(list)
    for message_id, copies in originals.items():
        sent = history.sent.get(message_id)
        if sent is not None and sent.message.system_properties.HasField("message_group"):
            lines[sent.message.system_properties.message_group] += [(copy, sent) for copy in copies]
    for line in lines.values():
        line.sort(key=lambda each: each[0].offset)
    return lines


def misplaced(line: str, stored: Sequence[tuple[StoredMessage, Sent]]) -> list[str]:
    """P6: where a message is stored before another one of its message group that was answered before it was sent."""
    found: list[str] = []
    if len({copy.queue_id for copy, _ in stored}) > 1:
        found.append(f"messages of {line} are in several queues: {[copy.place for copy, _ in stored]}")
    for number, (copy, later) in enumerate(stored):
        for behind, earlier in stored[number + 1 :]:
            if earlier.outcome == "ok" and earlier.offset == behind.offset and earlier.ended_s <= later.began_s:
                found.append(
                    f"{behind.message_id} of {line} was answered at {earlier.ended_s:.6f}, and {copy.message_id}, sent "
                    f"at {later.began_s:.6f}, stands before it"
                )
    return found


def shuffled(history: History, originals: Originals) -> list[str]:
    """P6: where a proxy took two messages of a message group one after the other, stored both, and in another order."""
    found: list[str] = []
    for taken in history.taken.values():
        furthest: dict[str, StoredMessage] = {}
        for message_id in taken:
            sent, copies = history.sent.get(message_id), originals.get(message_id, ())
            if sent is None or sent.outcome != "ok" or len(copies) != 1:
                continue
            line, copy = sent.message.system_properties.message_group, copies[0]
            before = furthest.setdefault(line, copy)
            if before.offset > copy.offset:
                found.append(
                    f"{before.message_id} of {line} stands at {before.place} and {copy.message_id} at {copy.place}, "
                    "though the proxy took it before that one"
                )
            else:
                furthest[line] = copy
    return found


def is_dead_before(dead: StoredMessage, delivery: Delivery) -> bool:
    """Whether a message was a dead letter when another one was delivered, by where the one log ended."""
    return dead.record.position < delivery.position


def overtaken(
    stored: Sequence[tuple[StoredMessage, Sent]],
    history: History,
    deliveries: Mapping[Key, Sequence[Delivery]],
    dead: Mapping[Key, Sequence[StoredMessage]],
    settled: Mapping[Key, Sequence[Ending]],
    fails: Callable[[str], bool],
    is_dead: Callable[[StoredMessage, Delivery], bool] = is_dead_before,
) -> list[str]:
    """P6: where a message came before the group was done with one of its message group that is stored before it.

    Args:
        stored: the messages of a message group, in their order.
        history: what clients saw.
        deliveries, dead, settled: of a group and a message: where it came, its dead letters, what consumers said of it.
        fails: whether a message is one that fails by itself; it may come back out of its order.
        is_dead: whether a message was a dead letter when another one was delivered.
    """
    found: list[str] = []
    before: list[str] = []
    for copy, _ in stored:
        for delivery in deliveries.get((ORDERED_GROUP, copy.message_id), ()):
            # Another place: that was lost with a disaster, or it is stored twice, or an operator has given it back.
            if delivery.handle.offset != copy.offset or delivery.handle.from_retry:
                continue
            late = next((each for each in before if not _was_done(each, delivery, dead, settled, is_dead)), None)
            if late is not None and not history.lost_by(delivery.asked_s, delivery.position):
                found.append(
                    f"{copy.message_id} came at {delivery.got_s:.6f} before the group was done with {late}, which "
                    "stands before it"
                )
        if not fails(copy.message_id):
            before.append(copy.message_id)
    return found


def _was_done(
    message_id: str,
    delivery: Delivery,
    dead: Mapping[Key, Sequence[StoredMessage]],
    settled: Mapping[Key, Sequence[Ending]],
    is_dead: Callable[[StoredMessage, Delivery], bool],
) -> bool:
    """Whether the group may have been done with a message when it got another one."""
    key = (delivery.group, message_id)
    return any(
        each.kind in ("ack", "forward") and each.outcome != "refused" and each.began_s <= delivery.got_s
        for each in settled.get(key, ())
    ) or any(is_dead(each, delivery) for each in dead.get(key, ()))
