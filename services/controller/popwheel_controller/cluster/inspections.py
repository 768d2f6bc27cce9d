"""Processes that answer operators' questions, and the pending questions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectAnswer, InspectQuestion, WatchRequest

AT_ONCE_MAX: Final = 4
"""Limit of questions that one process answers at the same time; further ones wait."""
_TIMEOUT_S: Final = 3.0
"""Time-out of an inspection, in seconds; less than that of `popwheel admin`."""


@dataclass(slots=True, eq=False)
class Inspected:
    """Stream of a process that answers questions.

    Args:
        key: distinguishes it from all others: `proxy/127.0.0.1:8081`, `broker/broker-0/1`.
        process: its description of itself.
        pages: names of its debug pages.
        send: queues a question for its stream; None ends the stream.
        waiting: pending questions, by number.
        room: limits pending questions to `AT_ONCE_MAX`.
        last: number of the latest question.
    """

    key: str
    process: WatchRequest
    pages: tuple[str, ...]
    send: Callable[[InspectQuestion | None], None]
    waiting: dict[int, asyncio.Future[InspectAnswer]] = field(default_factory=dict)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE_MAX))
    last: int = 0

    @property
    def is_proxy(self) -> bool:
        """True for a proxy, which has clients."""
        return self.process.kind == WatchRequest.PROXY


class Inspections:
    """Registry of all processes that answer questions."""

    def __init__(self) -> None:
        self._inspected: dict[str, Inspected] = {}

    def register(
        self, process: WatchRequest, pages: tuple[str, ...], send: Callable[[InspectQuestion | None], None]
    ) -> Inspected:
        """Register a process, until `left`."""
        name = key = key_of(process)
        number = 1
        while key in self._inspected:
            number += 1
            key = f"{name}#{number}"
        found = self._inspected[key] = Inspected(key, process, pages, send)
        return found

    def left(self, inspected: Inspected) -> None:
        """Record that its stream has ended."""
        del self._inspected[inspected.key]
        for waiting in inspected.waiting.values():
            if not waiting.done():
                waiting.set_exception(_absent(inspected.key))
        inspected.waiting.clear()

    def close(self) -> None:
        """End all streams: this controller no longer leads."""
        for each in self._inspected.values():
            each.send(None)

    def answered(self, inspected: Inspected, answer: InspectAnswer) -> None:
        """Process an answer; ignore it if its caller has gone."""
        waiting = inspected.waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    @property
    def all(self) -> list[Inspected]:
        """Return all processes, by key."""
        return [each for _, each in sorted(self._inspected.items())]

    def get(self, key: str) -> Inspected | None:
        """Return the process of that key."""
        return self._inspected.get(key)

    async def ask(
        self, inspected: Inspected, question: InspectQuestion, timeout_s: float = _TIMEOUT_S
    ) -> InspectAnswer:
        """Ask a process.

        Args:
            inspected: the process.
            question: its number is set here.
            timeout_s: of its answer.

        Raises:
            StatusError: HA_NOT_AVAILABLE or PROXY_TIMEOUT without an answer; or the error that it answered.
        """
        try:
            async with asyncio.timeout(timeout_s), inspected.room:
                if self._inspected.get(inspected.key) is not inspected:
                    raise _absent(inspected.key)
                inspected.last += 1
                question.number = inspected.last
                waiting: asyncio.Future[InspectAnswer] = asyncio.get_running_loop().create_future()
                inspected.waiting[question.number] = waiting
                try:
                    inspected.send(question)
                    answer = await waiting
                finally:
                    inspected.waiting.pop(question.number, None)
        except TimeoutError:
            raise StatusError(
                Code.PROXY_TIMEOUT, f"{inspected.key} did not answer within {timeout_s:.0f} s; ask again"
            ) from None
        if answer.trouble:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, f"{inspected.key}: {answer.trouble}")
        return answer


def key_of(process: WatchRequest) -> str:
    """Return the unique key of a process."""
    if process.kind == WatchRequest.BROKER:
        return f"broker/{process.process}/{process.replica}"
    kind = "proxy" if process.kind == WatchRequest.PROXY else "process"
    return f"{kind}/{process.process}"


def _absent(key: str) -> StatusError:
    return StatusError(Code.HA_NOT_AVAILABLE, f"{key} has gone, or is just coming back; ask again")
