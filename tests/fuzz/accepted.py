"""The messages that were acknowledged among the garbage: a server that is started again must have them all."""

from collections import defaultdict
from typing import Any

from popwheel_broker.log.record import RecordKind
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties
from popwheel_proxy.protocol.client_methods import SERVICE
from tests.fuzz.memory_socket import MemoryClient
from tests.fuzz.subject import FoundError, Subject

_BATCH = 32


class Accepted:
    """Notes what was acknowledged, and asks for it."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        """By the topic's namespace and name, and by message id: bodies. An application may give an id twice."""
        self._hidden: set[str] = set()
        """Ids of delayed messages, half messages, and those of lite topics: nobody can pull them."""
        self.count = 0

    def record(self, request: bytes, response: pb.SendMessageResponse) -> None:
        """A send was answered."""
        if not any(entry.status.code == Code.OK for entry in response.entries):
            return  # nor need the request be one
        messages = pb.SendMessageRequest.FromString(request).messages
        for message, entry in zip(messages, response.entries, strict=True):
            if entry.status.code != Code.OK:
                continue
            self.count += 1
            if entry.recall_handle or entry.transaction_id or message.system_properties.lite_topic:
                self._hidden.add(entry.message_id)
            else:
                topic = message.topic.resource_namespace, message.topic.name
                self._bodies[topic][entry.message_id].append(message.body)

    async def ask(self, subject: Subject, group: str) -> None:
        """Ask a server for every message.

        Args:
            subject: the server.
            group: in whose name.

        Raises:
            FoundError: a message is not there, or has another body.
        """
        client = MemoryClient(subject.server)
        await client.begin()
        for topic, wanted in self._bodies.items():
            found = await self._all_of(subject, client, topic, group)
            for message_id, bodies in wanted.items():
                for body in bodies:
                    if body not in found[message_id]:
                        raise FoundError(
                            f"{message_id!r} was acknowledged in {topic}, and after a restart there is "
                            f"{'another body' if found[message_id] else 'nothing'} of that id"
                        )
        await client.gone()
        log = subject.cluster.broker.core.store.log
        stored = {
            SystemProperties.FromString(each.system_properties).message_id
            for each in log.records(log.start_position, log.end_position)
            if each.kind in (RecordKind.TIMER, RecordKind.HALF, RecordKind.MESSAGE)
        }
        if lost := self._hidden - stored:
            raise FoundError(
                f"messages that nobody can pull were acknowledged and are not there after a restart: {sorted(lost)}"
            )

    async def _all_of(
        self, subject: Subject, client: MemoryClient, topic: tuple[str, str], group: str
    ) -> dict[str, list[bytes]]:
        """Bodies of all messages of a topic, by id."""
        namespace, name = topic
        resource = d.Resource(resource_namespace=namespace, name=name)
        route = pb.QueryRouteResponse()
        for part in await _call(subject, client, "QueryRoute", pb.QueryRouteRequest(topic=resource)):
            route.MergeFromString(part)
        found: dict[str, list[bytes]] = defaultdict(list)
        for queue in route.message_queues:
            offset, begin = -1, pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=d.BEGINNING)
            for part in await _call(subject, client, "QueryOffset", begin):
                offset = pb.QueryOffsetResponse.FromString(part).offset
            while True:
                pull = pb.PullMessageRequest(
                    group=d.Resource(resource_namespace=namespace, name=group),
                    message_queue=queue,
                    offset=offset,
                    batch_size=_BATCH,
                )
                after = offset
                for part in await _call(subject, client, "PullMessage", pull):
                    answer = pb.PullMessageResponse.FromString(part)
                    if answer.HasField("message"):
                        found[answer.message.system_properties.message_id].append(answer.message.body)
                    elif answer.HasField("next_offset"):
                        after = answer.next_offset
                if after <= offset:
                    break
                offset = after
        return found


async def _call(subject: Subject, client: MemoryClient, method: str, request: Any) -> list[bytes]:
    """The messages of an answer."""
    answer = await client.call(f"/{SERVICE}/{method}", request.SerializeToString(), subject.headers("fuzz"), b"10S")
    if answer.grpc_status:
        raise FoundError(f"{method} after a restart was answered: {answer}")
    return list(answer.messages)
