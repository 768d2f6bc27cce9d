"""Delayed messages as producers send them and take them back."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim.history import Recalled, Sent
from tests.sim.process import START_MS
from tests.sim.tools import Tools, headers, is_definite

NEAR_MS = 3_600_000
"""What is due later than this is not due before the run ends, however the clock jumps."""
_FAR_SHARE = 0.02
_LATE = d.Code.PRECONDITION_FAILED
_MISSING = d.Code.MESSAGE_NOT_FOUND


@dataclass(frozen=True, slots=True)
class Delays:
    """What producers delay.

    Args:
        share: of the messages that may be delayed.
        recall: share of the delayed ones that somebody tries to take back.
        latest_s: when the last ones are due, in virtual time; but some are due
        far_ms: after they are sent, which is long after the run.
    """

    share: float
    recall: float
    latest_s: float
    far_ms: int


class Recaller:
    """Delays messages, and takes some back: in time, just as they are due, afterwards, twice, with wrong handles.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        delays: how much of it.
        topics: all there are.
    """

    def __init__(self, name: str, tools: Tools, chance: random.Random, delays: Delays, topics: Sequence[str]) -> None:
        self._name = name
        self._tools = tools
        self._chance = chance
        self._delays = delays
        self._topics = topics
        self._tasks: set[asyncio.Task[None]] = set()

    def delay(self, message: d.Message, kind: "TopicType.ValueType") -> None:
        """Give a message a delivery time, if its topic takes that."""
        chance = self._chance
        if kind == TopicType.MIXED:
            if chance.random() >= self._delays.share:
                return
        elif kind != TopicType.DELAY:
            return
        now_s = self._tools.now()
        if chance.random() < _FAR_SHARE:
            due_ms = int(now_s * 1000) + self._delays.far_ms
        else:
            longest_s = chance.choice((0.01, 1.0, 3.0, 3.0, 20.0))
            due_s = min(
                now_s - 1.0 if chance.random() < 0.05 else now_s + chance.random() * longest_s,
                max(now_s, self._delays.latest_s),
            )
            due_ms = int(due_s * 1000)
            if chance.random() < 0.2:
                due_ms -= due_ms % 1000
        message.system_properties.message_type = d.MessageType.DELAY
        message.system_properties.delivery_timestamp.FromMilliseconds(START_MS + max(0, due_ms))

    def accepted(self, sent: Sent, handle: str) -> None:
        """A delayed message was stored; perhaps it is to be revoked."""
        if self._chance.random() < self._delays.recall:
            task = asyncio.get_running_loop().create_task(self._take_back(sent, handle))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Return when nothing is to be revoked any more."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _take_back(self, sent: Sent, handle: str) -> None:
        chance, tools = self._chance, self._tools
        left_s = min(max(0.0, (sent.due_ms - START_MS) / 1000 - tools.now()), 20.0)
        await asyncio.sleep(
            chance.choice(
                (
                    0.0,
                    left_s * chance.random(),
                    left_s * chance.random(),
                    max(0.0, left_s + chance.uniform(-0.05, 0.005)),
                )
            )
        )
        if chance.random() < 0.1:
            await asyncio.sleep(left_s + chance.random())
        topic = sent.message.topic.name
        if chance.random() < 0.1:
            middle = len(handle) // 2
            forged = handle[:middle] + ("A" if handle[middle] != "A" else "B") + handle[middle + 1 :]
            await self._recall("forged", sent, topic, forged)
        if chance.random() < 0.1:
            await self._recall("foreign", sent, chance.choice((*self._topics, "passing")), handle)
        await self._recall("recall", sent, topic, handle)
        while chance.random() < 0.3:
            await asyncio.sleep(chance.choice((0.0, 0.1, 2.0)) * chance.random())
            await self._recall("recall", sent, topic, handle)

    async def _recall(self, kind: str, sent: Sent, topic: str, handle: str) -> None:
        tools = self._tools
        if kind == "foreign" and topic == sent.message.topic.name:
            kind = "recall"
        message_id = sent.message.system_properties.message_id
        recalled = Recalled(kind, message_id, tools.now())  # type: ignore[arg-type]
        tools.history.recalls.append(recalled)
        request = pb.RecallMessageRequest(topic=d.Resource(name=topic), recall_handle=handle)
        try:
            response = await tools.network.call(protocol.RECALL_MESSAGE, request, headers(self._name), 3.0)
        except RpcError as error:
            recalled.said = error.status.name
        else:
            status = response.status
            recalled.said = f"{code_name(status.code)}: {status.message}"
            if status.code == d.Code.OK:
                recalled.outcome = "ok"
                if response.message_id != message_id:
                    tools.history.unexpected.append(f"the recall of {message_id} took back {response.message_id}")
            elif status.code == _LATE:
                recalled.outcome = "late"
            elif status.code == _MISSING:
                recalled.outcome = "missing"
            elif is_definite(status):
                recalled.outcome = "refused"
        recalled.ended_s, recalled.position = tools.now(), tools.log_end.position
        tools.trace.add(self._name, kind, message_id, recalled.outcome, recalled.said[:60])


def delivery_ms(message: d.Message) -> int:
    """When a message is to be delivered, wall clock; 0 if it is not delayed."""
    if not message.system_properties.HasField("delivery_timestamp"):
        return 0
    return message.system_properties.delivery_timestamp.ToMilliseconds()
