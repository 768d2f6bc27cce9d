"""Client for queues and their messages: their places, their offsets, and their content."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from popwheel_common.contract.record_block import NO_RECORDS, RecordBlock, decode_block
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy
from popwheel_rpc.service import Channel
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.wire.methods import COMMIT, OFFSET, PULL, ROUTE
from popwheel_spark.wire.offsets import EARLIEST, LATEST, Instant, Mark, Offsets, Queue
from popwheel_spark.wire.proxies import Proxies, check

_CALLS_AT_ONCE = 64

T = TypeVar("T")


class QueueClient:
    """Client for the queues of a cluster. An async context manager.

    Args:
        options: where the cluster is.
        group: consumer group of its pulls and its published progress.
    """

    def __init__(self, options: ConnectionOptions, group: str) -> None:
        self._proxies = Proxies(options)
        self._group = definition.Resource(name=group)
        self._at_once = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        await self._proxies.close()

    async def queues(self, topic: str) -> list[Queue] | None:
        """Return the queues of a topic at the present brokers; None if the topic does not exist, without creating it.

        Raises:
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))

        # Asking for a route makes the topic where topics are made on first use; asking for the offset of a queue that
        # no topic has does not.
        probe = service.QueryOffsetRequest(message_queue=_message_queue(Queue(topic, "", -1)))

        async def once(channel: Channel) -> service.QueryRouteResponse | None:
            known = await channel.call(OFFSET, probe, metadata=self._proxies.metadata)
            if known.status.code == Code.TOPIC_NOT_FOUND:
                return None
            if known.status.code != Code.BAD_REQUEST:
                check(known.status)
            answer = await channel.call(ROUTE, request, metadata=self._proxies.metadata)
            check(answer.status)
            return answer

        answer = await self._proxies.call(f"asking for the queues of {topic}", once)
        return None if answer is None else [Queue(topic, one.broker.name, one.id) for one in answer.message_queues]

    async def firsts(self, queues: Iterable[Queue]) -> Offsets:
        """Return the offset of the first stored message of each queue."""
        return await self.places(dict.fromkeys(queues, EARLIEST))

    async def ends(self, queues: Iterable[Queue]) -> Offsets:
        """Return the offset that the next message of each queue will have."""
        return await self.places(dict.fromkeys(queues, LATEST))

    async def places(self, marks: Mapping[Queue, Mark]) -> Offsets:
        """Return the offsets of places in queues.

        Raises:
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        return await _all({queue: self._place(queue, mark) for queue, mark in marks.items()})

    async def _place(self, queue: Queue, mark: Mark) -> int:
        if isinstance(mark, int) and mark >= 0:
            return mark
        request = service.QueryOffsetRequest(message_queue=_message_queue(queue))
        if isinstance(mark, Instant):
            request.query_offset_policy = QueryOffsetPolicy.TIMESTAMP
            request.timestamp.CopyFrom(_timestamp(mark.ms))
        else:
            request.query_offset_policy = QueryOffsetPolicy.BEGINNING if mark == EARLIEST else QueryOffsetPolicy.END

        async def once(channel: Channel) -> int:
            answer = await channel.call(OFFSET, request, metadata=self._proxies.metadata)
            check(answer.status)
            return answer.offset

        async with self._at_once:
            return await self._proxies.call(f"asking for an offset of {queue}", once)

    async def pull(self, queue: Queue, offset: int, count: int, tags: str) -> RecordBlock:
        """Pull messages from an offset on, without waiting for new ones.

        Args:
            queue: to be read.
            offset: of the first message.
            count: limit of the messages.
            tags: what the broker filters by; empty: nothing.

        Returns:
            No records, and the same offset, if there are none that far.

        Raises:
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        request = service.PullMessageRequest(
            group=self._group, message_queue=_message_queue(queue), offset=offset, batch_size=count
        )
        if tags:
            request.filter_expression.type = definition.TAG
            request.filter_expression.expression = tags

        async def once(channel: Channel) -> RecordBlock:
            try:
                return decode_block(await channel.call(PULL, request, metadata=self._proxies.metadata))
            except StatusError as error:
                if error.code == Code.ILLEGAL_OFFSET:  # the queue ends before that offset
                    return NO_RECORDS._replace(next_offset=offset)
                raise

        return await self._proxies.call(f"pulling from {queue} at {offset}", once)

    async def publish(self, progress: Mapping[Queue, int]) -> None:
        """Report the group's progress.

        Raises:
            RefusedError, UnreachableError: see `Proxies.call`.
        """
        await _all({queue: self._publish(queue, offset) for queue, offset in progress.items()})

    async def _publish(self, queue: Queue, offset: int) -> None:
        request = service.UpdateOffsetRequest(group=self._group, message_queue=_message_queue(queue), offset=offset)

        async def once(channel: Channel) -> None:
            check((await channel.call(COMMIT, request, metadata=self._proxies.metadata)).status)

        async with self._at_once:
            await self._proxies.call(f"publishing progress for {queue}", once)


async def _all(calls: Mapping[Queue, Coroutine[None, None, T]]) -> dict[Queue, T]:
    """Return the results of concurrent calls.

    Raises:
        Exception: the first error; the other calls are given up.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {queue: group.create_task(call) for queue, call in calls.items()}
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return {queue: task.result() for queue, task in tasks.items()}


def _message_queue(queue: Queue) -> MessageQueue:
    return MessageQueue(
        topic=definition.Resource(name=queue.topic),
        id=queue.number,
        broker=definition.Broker(name=queue.broker),
    )


def _timestamp(ms: int) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMilliseconds(ms)
    return timestamp
