"""Send queues: the sends of a message group or lite topic go one after another at this proxy (P6).

Each message group and lite topic has one queue at one broker of the cluster, also while that broker is away: then its
sends wait, and fail in the end. A send starts when the one before was answered, so a send that is retried, as its
outcome is unknown, is not overtaken by the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import TypeVar

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares
from popwheel_proxy.brokers.retry_policy import Place
from popwheel_proxy.protocol.errors import LimitError

Result = TypeVar("Result")

_ANSWER_RESERVE_S = 0.3
_LIMIT = "send.waiting_messages_max"


def place_of(topic: str, send_queue: str, brokers: Sequence[str], queues: int) -> Place:
    """Return the broker and the queue of a message group or lite topic.

    A broker that is added takes over some message groups; none moves between the others.

    Args:
        topic: full name of the topic.
        send_queue: message group or lite topic, as the sender names it.
        brokers: all broker groups there are, also those that are away; at least one.
        queues: how many queues the topic has at each.
    """
    key = f"{topic} {send_queue}".encode()
    broker = max(brokers, key=lambda name: (_hash(key, name.encode()), name))
    return broker, _hash(key, b"") % max(1, queues)


def _hash(key: bytes, salt: bytes) -> int:
    return int.from_bytes(blake2b(key, key=salt[:64], digest_size=8).digest(), "big")


class SendQueues:
    """The send queues of message groups and lite topics with sends in flight.

    Args:
        waiting_max: limit of the sends that wait for others; topics share it.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._last: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._waiting = Shares()

    @property
    def waiting(self) -> int:
        """Sends that wait for an earlier one of their send queue."""
        return self._waiting.total

    def __len__(self) -> int:
        """Send queues with a send in flight."""
        return len(self._last)

    async def run_in_order(
        self,
        topic: str,
        send_queue: str,
        wait_s: float | None,
        work: Callable[[], Awaitable[Result]],
    ) -> Result:
        """Run `work` after all that began before it for the same send queue.

        Args:
            topic, send_queue: the send queue.
            wait_s: for how long the caller waits; None if for ever.
            work: sends the message.

        Raises:
            LimitError: TOO_MANY_REQUESTS, too many sends wait.
            StatusError: PROXY_TIMEOUT, its turn did not come in time; nothing was sent.
        """
        key = (topic, send_queue)
        before = self._last.get(key)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if before is not None and not self._waiting.room(topic, self._waiting_max):
            raise LimitError(
                Code.TOO_MANY_REQUESTS,
                "too many sends of this topic wait for others of their message groups or lite topics; send again later",
                _LIMIT,
            )
        self._last[key] = mine
        try:
            if before is not None:
                await self._wait(topic, before, wait_s)
            return await work()
        finally:
            if before is None or before.done():
                self._end(key, mine)
            else:  # it was cancelled while it waited: the next one still waits for the one before
                before.add_done_callback(lambda _: self._end(key, mine))

    async def _wait(self, topic: str, before: "asyncio.Future[None]", wait_s: float | None) -> None:
        self._waiting.take(topic)
        try:
            left_s = None if wait_s is None else max(0.0, wait_s - _ANSWER_RESERVE_S)
            await asyncio.wait([before], timeout=left_s)
        finally:
            self._waiting.give(topic)
        if not before.done():
            raise StatusError(
                Code.PROXY_TIMEOUT,
                "a message that was sent before in the same message group or lite topic is still on its way, so this "
                "one was not sent; send it again later",
            )

    def _end(self, key: tuple[str, str], mine: "asyncio.Future[None]") -> None:
        mine.set_result(None)
        if self._last.get(key) is mine:
            del self._last[key]
