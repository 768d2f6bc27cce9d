"""Calls that name what can't be, or what no client may do that to: each is refused by name, and changes nothing."""

import random
from collections.abc import Sequence

from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.harness.names import BAD_TOPICS, OF_KIND
from tests.sim.tools import Tools, headers

_BAD = [text for text in BAD_TOPICS if "\ud800" not in text and len(text) < 1_000]


class Edges:
    """Makes such calls.

    Args:
        client: who makes them.
        tools: what clients share.
        group, topic: what is there.
    """

    def __init__(self, client: str, tools: Tools, group: str, topic: str) -> None:
        self._client = client
        self._tools = tools
        self._group = group
        self._topic = topic
        self._chance = random.Random(f"edges of {client}")  # of its own: what else a seed does is as it was

    def comes_next(self) -> bool:
        """Whether one is to be made in place of something harmless."""
        return self._chance.random() < 0.5

    async def call(self) -> None:
        """Make one, and note it if it is not refused by name."""
        chance, tools, group = self._chance, self._tools, d.Resource(name=self._group)
        use = chance.choice((Use.RECEIVE, Use.COMMIT, Use.SEND))
        topic = d.Resource(name=chance.choice(self._names()))
        try:
            if use is Use.RECEIVE:
                assignment = pb.QueryAssignmentRequest(group=group, topic=topic)
                answer = await tools.network.call(protocol.QUERY_ASSIGNMENT, assignment, headers(self._client), 3.0)
                status = answer.status
            elif use is Use.COMMIT:
                commit = pb.UpdateOffsetRequest(group=group, message_queue=d.MessageQueue(topic=topic))
                status = (await tools.network.call(protocol.UPDATE_OFFSET, commit, headers(self._client), 3.0)).status
            else:
                send = pb.SendMessageRequest(messages=[d.Message(topic=topic, body=b"never stored")])
                data = send.SerializeToString()
                encoded = await tools.network.call(protocol.SEND_MESSAGE, data, headers(self._client), 3.0)
                status = pb.SendMessageResponse.FromString(encoded).status
        except RpcError as error:
            tools.trace.add(self._client, "edge failed", error.status.name)
            return
        tools.trace.add(self._client, "edge", use.name, topic.name[:40], code_name(status.code))
        if status.code != Code.ILLEGAL_TOPIC:
            tools.history.let_in.append(f"{use.name} {topic.name[:80]!r} was answered {code_name(status.code)}")

    def _names(self) -> Sequence[str]:
        if self._chance.random() < 0.5:
            return _BAD
        retries = f"%RETRY%{self._group}+{self._topic}"
        return [retries, f"%RETRY%{self._group}+{retries}", *(OF_KIND[Kind.RETRY]), *(OF_KIND[Kind.SYSTEM])]
