"""Sends requests, some at a time, and retries refused messages."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageResponse
from popwheel_rpc.service import Channel
from popwheel_spark.sink.row_requests import Origin, RowRequest, RowRequests
from popwheel_spark.sink.write_options import WriteOptions
from popwheel_spark.wire.methods import SEND
from popwheel_spark.wire.proxies import Proxies, check


def send_rows(options: WriteOptions, origin: Origin, batches: Iterator[pa.RecordBatch]) -> None:
    """Send all rows of a task; returns when each is stored (see `Sender.send`)."""
    requests = RowRequests(options.topic, origin, time.time_ns(), options.requests_at_once)
    with asyncio.Runner() as runner:
        proxies = Proxies(options.connection)
        sender = Sender(proxies, options.requests_at_once)
        try:
            for batch in batches:
                runner.run(sender.send(requests.of(batch)))
        finally:
            runner.run(proxies.close())


class Sender:
    """Sends messages to a cluster.

    Args:
        proxies: of the cluster.
        at_once: number of requests in flight at a time.
    """

    def __init__(self, proxies: Proxies, at_once: int) -> None:
        self._proxies = proxies
        self._at_once = at_once
        self._send_queues: dict[int, deque[RowRequest]] = {}

    async def send(self, requests: Iterable[RowRequest]) -> None:
        """Send all, those of one send queue in their order; return when each message is stored.

        A message may be stored more than once, after a try with an unknown outcome.

        Raises:
            RefusedError: the cluster refuses messages.
            UnreachableError: see `Proxies.call`.
        """
        left = iter(requests)
        self._send_queues.clear()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._work(left))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work(self, left: Iterator[RowRequest]) -> None:
        for request in left:
            if request.send_queue is None:
                await self._send(request)
            elif (
                request.send_queue in self._send_queues
            ):  # the task that sends from that send queue sends this one, too
                self._send_queues[request.send_queue].append(request)
            else:
                await self._send_from_queue(request.send_queue, request)

    async def _send_from_queue(self, send_queue: int, first: RowRequest) -> None:
        """Send a request, and then those added to its send queue meanwhile, each after the one before is stored."""
        waiting = self._send_queues[send_queue] = deque((first,))
        while waiting:
            await self._send(waiting.popleft())
        del self._send_queues[send_queue]

    async def _send(self, request: RowRequest) -> None:
        left = request.messages

        async def once(channel: Channel) -> None:
            nonlocal left
            answer = await channel.call(SEND, b"".join(left), timeout_s=None, metadata=self._proxies.metadata)
            left = _not_stored(left, answer)
            if left:
                check(next(entry.status for entry in answer.entries if entry.status.code != Code.OK))

        await self._proxies.call(f"sending {len(left)} rows from {request.first} on", once)


def _not_stored(messages: Sequence[bytes], answer: SendMessageResponse) -> Sequence[bytes]:
    """Return the rows that are to be sent again.

    Raises:
        StatusError: the request was refused as a whole.
    """
    code = answer.status.code
    if code == Code.OK:
        return ()
    if code != Code.MULTIPLE_RESULTS and not answer.entries:
        raise StatusError(code, answer.status.message)
    return [message for message, entry in zip(messages, answer.entries, strict=True) if entry.status.code != Code.OK]
