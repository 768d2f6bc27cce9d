"""Producers; what they see goes to the history."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim import filters
from tests.sim.delays import Delays, Recaller, delivery_ms
from tests.sim.history import Sent
from tests.sim.process import START_MS
from tests.sim.tools import Tools, headers, is_definite
from tests.sim.workload import Workload

_OK = d.Code.OK  # which takes long to be looked up there
_BURST_MAX = 4
_LULL_S = (3.0, 12.0)
_EDGE_SHARE = 0.2
_PROPERTY_BYTES_MAX = 16 * 1024


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
