"""A topic that comes and goes: it is deleted with messages in hand, and made again under the same name (P4)."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import decode_delay
from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
    TransactionResolution,
)
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    EndTransactionRequest,
    SendMessageRequest,
    SendMessageResponse,
)
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim.admin import Admin
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.delays import Delays
from tests.sim.history import History, Sent
from tests.sim.producers import Producer
from tests.sim.tools import LogEnd, Tools, headers
from tests.sim.workload import OwnTopic, Workload

TOPIC = "passing"
GROUP = "passer"
TYPES = (TopicType.MIXED, TopicType.MIXED, TopicType.NORMAL, TopicType.DELAY)

_LAST_TRIES = 40
_CHANGING_SHARE = 0.5
_HALF_SHARE = 0.3
_SENT_ALL_THE_SAME = 0.3
_SLACK_S = 1.0
"""How long after a deletion the broker may not have learned of it."""


class PassingTopic(Workload):
    """Makes, uses and deletes the topic, over and over, with clients whose history is its own.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        admin: makes the topic, and deletes it.
        delays: what of its messages is delayed, and revoked.
        is_known: whether all proxies know of the topic as it is now.
        is_deleted: whether all proxies know that it is deleted: one that is cut off from the controllers does not.
        delete: deletes it in place of `admin`; returns True if it is gone for certain.
    """

    def __init__(
        self,
        tools: Tools,
        chance: random.Random,
        admin: Admin,
        delays: Delays,
        is_known: Callable[[], bool] = lambda: True,
        is_deleted: Callable[[], bool] = lambda: True,
        delete: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._chance = chance
        # Of its own, so that what else a seed does is as it was.
        self._kinds = random.Random(f"kinds of {chance.getstate()[1][:2]}")
        self._changes_kind = self._kinds.random() < _CHANGING_SHARE
        self._types: dict[str, TopicType.ValueType] = {TOPIC: TopicType.MIXED}
        self._ending: set[asyncio.Task[None]] = set()
        self._admin = admin
        self._is_known = is_known
        self._is_deleted = is_deleted
        self._delete = delete or partial(admin.delete_topic, TOPIC)
        self._to_unknown: set[str] = set()
        """Ids of messages that may have been sent to the topic as it was before."""
        self.history = History()
        self._tools = Tools(tools.network, self.history, tools.trace, tools.loop, LogEnd())
        self._producer = Producer("pp", self._tools, chance, [TOPIC], (), 1.0, 1, 2000, self._types, delays)
        manners = Manners(batch_max=4, invisible_ms=(200, 2000), wait_s=(0.0, 1.0), forget=0.5, nack=0.2)
        self._consumer = Consumer("cp", self._tools, chance, Subscription(GROUP, TOPIC), manners)
        self._deletions: list[tuple[float, float]] = []
        self._tries: list[tuple[float, bool]] = []
        """When the topic was to be deleted, and whether it was for certain."""
        self._halves = 0

    async def _create(self) -> bool:
        return await self._admin.ensure_topic(TOPIC, OwnTopic(self._types[TOPIC], 1))

    async def run(self) -> None:
        """Until asked to stop; the topic is gone then."""
        chance = self._chance
        while not self.stopping:
            if self._changes_kind:
                self._types[TOPIC] = self._kinds.choice(TYPES)
            if await self._create():
                for _ in range(chance.randint(1, 6)):
                    message = self._producer.message(TOPIC)
                    if not self._is_known():
                        self._to_unknown.add(message.system_properties.message_id)
                    await self._producer.send([message])
                    if (
                        self._changes_kind
                        and self._types[TOPIC] == TopicType.MIXED
                        and self._kinds.random() < _HALF_SHARE
                    ):
                        await self._send_half()
                    if chance.random() < 0.7:
                        await self._consumer.poll()
            await asyncio.sleep(chance.random() * 0.5)
            began_s = self._tools.now()
            is_deleted = await self._delete()
            self._tries.append((began_s, is_deleted))
            if is_deleted:
                self._deletions.append((began_s, self._tools.now()))
                if self._kinds.random() < _SENT_ALL_THE_SAME:
                    await self._send_to_nowhere()
        await self._producer.finish()
        if self._ending:
            await asyncio.wait(set(self._ending))
        for _ in range(_LAST_TRIES):
            self._tries.append((self._tools.now(), False))
            if await self._delete():
                return
            await asyncio.sleep(0.5)

    async def _send_half(self) -> None:
        """A half message, whose transaction may end when its topic is another one."""
        self._halves += 1
        message_id = f"ph-{self._halves}"
        properties = SystemProperties(
            message_id=message_id, message_type=MessageType.TRANSACTION, body_encoding=Encoding.IDENTITY, born_host="ph"
        )
        message = Message(topic=Resource(name=TOPIC), body=b"half", system_properties=properties)
        sent = self.history.sent[message_id] = Sent(message, self._tools.now())
        data = SendMessageRequest(messages=[message]).SerializeToString()
        try:
            answer = await self._tools.network.call(protocol.SEND_MESSAGE, data, headers("ph"), 3.0)
        except RpcError:
            return
        sent.ended_s = self._tools.now()
        response = SendMessageResponse.FromString(answer)
        if response.entries and response.entries[0].transaction_id:
            self._tools.trace.add("ph", "half", message_id)
            wait_s = self._kinds.choice((0.0, 0.3, 3.0)) * self._kinds.random()
            work = self._commit(message_id, response.entries[0].transaction_id, wait_s)
            task = asyncio.get_running_loop().create_task(work)
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _commit(self, message_id: str, transaction_id: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        request = EndTransactionRequest(
            topic=Resource(name=TOPIC),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=TransactionResolution.COMMIT,
        )
        try:
            response = await self._tools.network.call(protocol.END_TRANSACTION, request, headers("ph"), 3.0)
        except RpcError:
            return
        self._tools.trace.add("ph", "commit", message_id, code_name(response.status.code))

    async def _send_to_nowhere(self) -> None:
        await asyncio.sleep(_SLACK_S)
        is_deleted = self._is_deleted()
        message = self._producer.message(TOPIC)
        self._to_unknown.add(message.system_properties.message_id)  # where the deletion is not known it is taken
        await self._producer.send([message])
        if is_deleted and self.history.sent[message.system_properties.message_id].outcome == "ok":
            self.history.let_in.append(
                f"{message.system_properties.message_id} was taken at {self._tools.now():.6f}, though its topic was "
                f"deleted at {self._deletions[-1][1]:.6f}"
            )

    def violations(self, learned: Sequence[tuple[int, float]] | None = None) -> list[str]:
        """Messages that came back from a topic that was deleted.

        Args:
            heard: when a master learned of a deletion, and from which epoch on all masters know of it by their log,
                each time; None if a broker always learns of it within a moment.
        """
        found = [f"S2: {each}" for each in self.history.unexpected]
        found += [f"P4: {each}" for each in self.history.let_in]
        for delivery in self.history.deliveries:
            sent = self.history.sent.get(delivery.message_id)
            for began_s, ended_s in self._deletions:
                if learned is not None:
                    epoch = delivery.handle.epoch
                    known = [when for since, when in learned if when >= began_s and since <= epoch]
                    ended_s = min(known, default=float("inf"))
                if sent is not None and -1 < sent.ended_s < began_s and delivery.asked_s > ended_s + _SLACK_S:
                    found.append(
                        f"P4: {delivery.message_id} came at {delivery.got_s:.6f}, though its topic was deleted at "
                        f"{ended_s:.6f}"
                    )
        return found

    def lost(self, log: Sequence[StoredRecord], appends: Mapping[int, tuple[int, float]]) -> list[str]:
        """Messages that were forgotten with a topic that was there before the one that they were sent to.

        Args:
            log: all records in their order.
            appends: when each was appended, by position: wall clock, virtual seconds.
        """
        gone = _gone(log, appends)
        found = []
        for message_id, sent in self.history.sent.items():
            before = [certain for began_s, certain in self._tries if began_s <= sent.began_s]
            after_s = min((began_s for began_s, _ in self._tries if began_s > sent.began_s), default=float("inf"))
            is_certain = sent.outcome == "ok" and all(before[-1:]) and message_id not in self._to_unknown
            if is_certain and gone.get(message_id, after_s) < after_s:
                found.append(
                    f"S1: {message_id} was accepted at {sent.ended_s:.6f} and forgotten at {gone[message_id]:.6f}, "
                    f"though its topic was there until {after_s:.6f}"
                )
        return found


def _gone(log: Sequence[StoredRecord], appends: Mapping[int, tuple[int, float]]) -> dict[str, float]:
    """When messages were forgotten with the topic, in virtual seconds, by message id."""
    there: set[str] = set()
    gone: dict[str, float] = {}
    for found in log:
        if found.kind == RecordKind.FORGET_TOPIC and found.payload.decode() == TOPIC:
            if found.position in appends:
                gone.update(dict.fromkeys(there, appends[found.position][1]))
            there.clear()
        elif found.topic == TOPIC or (found.kind == RecordKind.TIMER and decode_delay(found.origin).topic == TOPIC):
            there.add(SystemProperties.FromString(found.system_properties).message_id)
    return {message_id: gone_s for message_id, gone_s in gone.items() if message_id not in there}


def mixed(log: Sequence[StoredRecord], puts: Mapping[str, Collection[int]]) -> list[str]:
    """Messages that stand in another topic of the name than those that they were put for, or fired there (P4).

    Args:
        log: all records in their order.
        puts: ids of the topics that each message was put for, by message id.
    """
    found = []
    now = 0
    for record in log:
        topic_id = now
        if record.kind == RecordKind.NAMES:
            now = json.loads(record.payload)["topics"].get(TOPIC, now)
            continue
        if record.kind == RecordKind.FORGET_TOPIC:
            now = 0 if record.payload.decode() == TOPIC else now
            continue
        if record.kind == RecordKind.TIMER:
            delay = decode_delay(record.origin)
            if delay.topic != TOPIC:
                continue
            topic_id = delay.topic_id  # it is fired there or nowhere
        elif record.topic != TOPIC:
            continue
        message_id = SystemProperties.FromString(record.system_properties).message_id
        meant = puts.get(message_id)
        if meant and topic_id not in meant:
            found.append(
                f"P4: {message_id} was put for topics {sorted(meant)}, and stands at {record.position} in {topic_id}"
            )
    return found
