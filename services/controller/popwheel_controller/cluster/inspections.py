"""Processes that take questions for operators, and the questions that are on their way to them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectAnswer, InspectQuestion, WatchRequest

AT_ONCE_MAX: Final = 4
"""Questions that one process answers at the same time; further ones wait."""
_TIMEOUT_S: Final = 3.0
"""Time-out of an inspection, in seconds; less than that of `popwheel admin`."""


@dataclass(slots=True, eq=False)
class Inspected:
    """A process that takes questions, on one stream.

    Args:
        key: distinguishes it from all others: `proxy/127.0.0.1:8081`, `broker/broker-0/1`.
        process: what it said of itself.
        pages: names of the pages that it has.
        send: hands a question to its stream; None ends that.
        waiting: questions on their way, by number.
        room: lets no more than `AT_ONCE_MAX` be on their way.
        last: number of the latest one.
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
    """All that take questions."""

    def __init__(self) -> None:
        self._inspected: dict[str, Inspected] = {}

    def came(
        self, process: WatchRequest, pages: tuple[str, ...], send: Callable[[InspectQuestion | None], None]
    ) -> Inspected:
        """A process takes questions from now on, until `left`."""
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
                waiting.set_exception(_gone(inspected.key))
        inspected.waiting.clear()

    def close(self) -> None:
        """End all streams: this controller leads no more."""
        for each in self._inspected.values():
            each.send(None)

    def answered(self, inspected: Inspected, answer: InspectAnswer) -> None:
        """An answer came; one that nobody waits for any more is passed over."""
        waiting = inspected.waiting.get(answer.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    @property
    def all(self) -> list[Inspected]:
        """All of them, by their keys."""
        return [each for _, each in sorted(self._inspected.items())]

    def get(self, key: str) -> Inspected | None:
        """The process of that key."""
        return self._inspected.get(key)

    async def ask(
        self, inspected: Inspected, question: InspectQuestion, timeout_s: float = _TIMEOUT_S
    ) -> InspectAnswer:
        """Ask a process.

        Args:
            inspected: which.
            question: its number is set here.
            timeout_s: for its answer.

        Raises:
            StatusError: HA_NOT_AVAILABLE or PROXY_TIMEOUT, it did not answer; or why it can't.
        """
        try:
            async with asyncio.timeout(timeout_s), inspected.room:
                if self._inspected.get(inspected.key) is not inspected:
                    raise _gone(inspected.key)
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
    """The name of a process among all others."""
    if process.kind == WatchRequest.BROKER:
        return f"broker/{process.process}/{process.replica}"
    kind = "proxy" if process.kind == WatchRequest.PROXY else "process"
    return f"{kind}/{process.process}"


def _gone(key: str) -> StatusError:
    return StatusError(Code.HA_NOT_AVAILABLE, f"{key} has gone, or is just coming back; ask again")
