"""Pulls, GetOffset, UpdateOffset, QueryOffset: reads of one queue by offset, without effect on the pop state."""

from typing import TypeVar

from popwheel_common.clock import Clock
from popwheel_common.contract.names import TOOLS_GROUP, GroupName, Use
from popwheel_common.contract.wire_format import field, varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.protocol.errors import NoMasterError
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.protocol.validation import refuse_lite, tag_filter_of
from popwheel_proxy.receive.poll_limits import ANSWER_RESERVE_MS, PollLimits
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_rpc.methods import GET_OFFSET, PULL, PULL_RECORDS, QUERY_OFFSET, UPDATE_OFFSET
from popwheel_rpc.service import Call, Method, Stream

Answer = TypeVar("Answer")

_TIMESTAMP_MS_MAX = 2**62
_OK_ANSWER = pb.PullMessageResponse(status=OK).SerializeToString()
_POLICIES = {
    QueryOffsetPolicy.BEGINNING: broker.OffsetPolicy.BEGINNING,
    QueryOffsetPolicy.END: broker.OffsetPolicy.END,
    QueryOffsetPolicy.TIMESTAMP: broker.OffsetPolicy.TIMESTAMP,
}


class Offsets:
    """Serves consumers that read by offset.

    Args:
        catalog: topics and groups.
        brokers: the broker groups there are.
        masters: the way to them.
        limits: what pulls may ask for, and how many may run.
        clock: for how long a pull may still wait.
    """

    def __init__(
        self,
        catalog: Catalog,
        brokers: Brokers,
        masters: MasterCalls,
        limits: PollLimits,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._brokers = brokers
        self._masters = masters
        self._limits = limits
        self._admission = limits.admission
        self._clock = clock

    async def pull(self, call: Call, client_id: str, stream: Stream[pb.PullMessageRequest, bytes], now: float) -> None:
        """Answer one PullMessage: the status, the messages, the next offset.

        Args:
            call: for its deadline.
            client_id: whose pull it is.
            stream: of the request and its answer.
            now: seconds of the monotonic clock.

        Raises:
            StatusError: the client's error instead of messages.
        """
        request = await stream.receive()
        if request is None:
            raise StatusError(Code.BAD_REQUEST, "PullMessage needs one request")
        messages_max = self._limits.batch(request.batch_size)
        answer = await self._pulled(PULL, call, client_id, request, now, messages_max)
        next_offset = _next_offset(answer.next_offset)
        if not answer.messages:
            nothing = pb.PullMessageResponse()
            nothing.status.code = Code.MESSAGE_NOT_FOUND
            nothing.status.message = "no message came in time"
            await stream.send((nothing.SerializeToString(), next_offset))
            return
        await stream.send((_OK_ANSWER, *(field(2, message) for message in answer.messages), next_offset))

    async def pull_records(self, call: Call, client_id: str, request: pb.PullMessageRequest, now: float) -> bytes:
        """Return what `pull` reads, as records of the log; empty if none came in time.

        Returns:
            A PullRecordsResponse, as the broker made it. Raises as `pull` does.
        """
        messages_max = self._limits.block(request.batch_size)
        return await self._pulled(PULL_RECORDS, call, client_id, request, now, messages_max)

    async def _pulled(
        self,
        method: Method[broker.PullRequest, Answer],
        call: Call,
        client_id: str,
        request: pb.PullMessageRequest,
        now: float,
        messages_max: int,
    ) -> Answer:
        """Return the broker's answer to a pull of at most `messages_max` messages."""
        group = group_name(request.group)
        of_tool = group == TOOLS_GROUP
        if not of_tool:
            self._catalog.check_group(group)
        topic, name = self._queue(request.message_queue, Use.PULL)
        if request.offset < 0:
            raise StatusError(Code.ILLEGAL_OFFSET, f"{request.offset} is not an offset; the first is 0")
        wait_ms = self._wait_ms(call, request, now)
        asked = broker.PullRequest(
            group=group,
            topic=topic.name,
            queue_id=request.message_queue.id,
            offset=request.offset,
            max_messages=messages_max,
            filter=tag_filter_of(request.filter_expression),
            wait_ms=wait_ms,
        )
        ends_at = now + wait_ms / 1000

        def again(_: bool) -> broker.PullRequest:
            asked_again = broker.PullRequest()
            asked_again.CopyFrom(asked)
            asked_again.wait_ms = max(0, int((ends_at - self._clock.monotonic()) * 1000))
            return asked_again

        self._admission.enter(client_id, call.peer, group)
        try:
            answer, _ = await self._masters.call(name, method, asked, call.deadline, wait_s=wait_ms / 1000, retry=again)
        finally:
            self._admission.leave(client_id, call.peer, group)
        if not of_tool:
            await self._catalog.ensure_group(group)  # last, as no group may be created for a refused request (E1)
        return answer

    async def get_offset(self, call: Call, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        """Return the offset that a group has committed for a queue.

        Raises:
            StatusError: OFFSET_NOT_FOUND, if it has none.
        """
        topic, name = self._queue(request.message_queue, Use.QUERY)
        group = group_name(request.group)
        if self._catalog.find_group(group) is None:
            raise StatusError(Code.CONSUMER_GROUP_NOT_FOUND, f"the consumer group {group} does not exist")
        asked = broker.GetOffsetRequest(group=group, topic=topic.name, queue_id=request.message_queue.id)
        answer, _ = await self._masters.call(name, GET_OFFSET, asked, call.deadline)
        if answer.offset < 0:
            raise StatusError(Code.OFFSET_NOT_FOUND, "the group has no committed offset for this queue")
        return pb.GetOffsetResponse(status=OK, offset=answer.offset)

    async def update_offset(self, call: Call, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
        """Commit a group's offset for a queue.

        Raises:
            StatusError: why not.
        """
        group = group_name(request.group)
        self._catalog.check_group(group)
        topic, name = self._queue(request.message_queue, Use.COMMIT)
        if request.offset < 0:
            raise StatusError(Code.ILLEGAL_OFFSET, f"{request.offset} is not an offset; the first is 0")
        if self._catalog.find_group(group) is None:
            await self._make_group(call, group, topic, name, request)
        asked = broker.UpdateOffsetRequest(
            group=group, topic=topic.name, queue_id=request.message_queue.id, offset=request.offset
        )
        await self._masters.call(name, UPDATE_OFFSET, asked, call.deadline)
        return pb.UpdateOffsetResponse(status=OK)

    async def _make_group(
        self, call: Call, group: GroupName, topic: Topic, name: str, request: pb.UpdateOffsetRequest
    ) -> None:
        """Make a group on first use, once the broker is sure to take its offset (E1).

        Raises:
            StatusError: ILLEGAL_OFFSET, or why not.
        """
        asked = broker.QueryOffsetRequest(
            topic=topic.name, queue_id=request.message_queue.id, policy=broker.OffsetPolicy.END
        )
        end, _ = await self._masters.call(name, QUERY_OFFSET, asked, call.deadline)
        if request.offset > end.offset:
            raise StatusError(Code.ILLEGAL_OFFSET, f"offset {request.offset} is beyond the queue's end {end.offset}")
        await self._catalog.ensure_group(group)

    async def query_offset(self, call: Call, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
        """Return the first or last offset of a queue, or that of a point in time.

        Raises:
            StatusError: why not.
        """
        topic, name = self._queue(request.message_queue, Use.QUERY)
        policy = _POLICIES.get(request.query_offset_policy)
        if policy is None:
            raise StatusError(Code.BAD_REQUEST, f"there is no offset policy {request.query_offset_policy}")
        if policy == broker.OffsetPolicy.TIMESTAMP and not request.HasField("timestamp"):
            raise StatusError(Code.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
        # By hand: ToMilliseconds raises on times that no calendar has.
        timestamp_ms = request.timestamp.seconds * 1000 + request.timestamp.nanos // 1_000_000
        asked = broker.QueryOffsetRequest(
            topic=topic.name,
            queue_id=request.message_queue.id,
            policy=policy,
            timestamp_ms=min(max(0, timestamp_ms), _TIMESTAMP_MS_MAX),
        )
        answer, _ = await self._masters.call(name, QUERY_OFFSET, asked, call.deadline)
        return pb.QueryOffsetResponse(status=OK, offset=answer.offset)

    def _queue(self, queue: MessageQueue, use: Use) -> tuple[Topic, str]:
        """Return the topic of a queue and the name of the broker that has it.

        Raises:
            StatusError: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, BAD_REQUEST for a queue that the topic does not have,
                HA_NOT_AVAILABLE.
        """
        topic = self._catalog.topic(topic_name(queue.topic, use))
        refuse_lite(topic, "read by offset")
        if not 0 <= queue.id < topic.queues:
            raise StatusError(Code.BAD_REQUEST, f"the topic {topic.name} has no queue {queue.id} of {topic.queues}")
        if queue.broker.name not in self._brokers.names:
            raise NoMasterError(queue.broker.name, known=False)
        return topic, queue.broker.name

    def _wait_ms(self, call: Call, request: pb.PullMessageRequest, now: float) -> int:
        """Return how long the broker may wait for a first message."""
        wait_ms = self._limits.pull_wait_ms(request.long_polling_timeout.ToMilliseconds())
        if call.deadline is not None:
            wait_ms = min(wait_ms, int((call.deadline - now) * 1000) - ANSWER_RESERVE_MS)
        return max(0, wait_ms)


def _next_offset(number: int) -> bytes:
    """Return a PullMessageResponse with only the next offset; encoded even if it is 0, as it is part of a oneof."""
    return b"\x18" + varint(number)
