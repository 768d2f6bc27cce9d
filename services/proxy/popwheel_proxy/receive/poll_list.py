"""Waiting polls of this proxy, listed for operators in pages, by topic and group."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice
from typing import Final

from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_common.series import OTHER
from popwheel_proxy.receive.interest_book import InterestBook
from popwheel_proxy.receive.metrics import PollMetrics
from popwheel_proxy.receive.mode_choice import ModeChoice

LIST_MAX: Final = 500
_SCANNED_AT_ONCE: Final = 500

Pair = tuple[str, str]
"""Topic and group."""


@dataclass(slots=True)
class _Waiting:
    """Polls that wait for a topic and group.

    Args:
        polls: how many.
        everywhere: some of them wait at all brokers.
        brokers: others wait at these.
    """

    polls: int = 0
    everywhere: bool = False
    brokers: frozenset[str] = frozenset()


class PollList:
    """Lists polls.

    Args:
        book: those that wait.
        modes: how they wait.
        metrics: their counts.
        brokers: names of all brokers.
    """

    def __init__(
        self, book: InterestBook, modes: ModeChoice, metrics: PollMetrics, brokers: Callable[[], Iterable[str]]
    ) -> None:
        self._book = book
        self._modes = modes
        self._metrics = metrics
        self._brokers = brokers
        self._lock = asyncio.Lock()

    async def some(self, request: pb.PollListRequest) -> pb.PollListResponse:
        """Return a page of topics and groups, in order. One list is made at a time."""
        async with self._lock:
            limit = min(max(1, request.limit), LIST_MAX)
            found = await self._find(request, limit + 1)
            waiting = await self._count({pair: _Waiting() for pair in found[:limit]})
            answer = pb.PollListResponse(more=len(found) > limit)
            for number, (pair, count) in enumerate(waiting.items(), 1):
                self._describe(answer.polls.add(), pair, count)
                if number % _SCANNED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            return answer

    async def _find(self, request: pb.PollListRequest, count: int) -> list[Pair]:
        """Return the first matching topics and groups behind `request.after`."""
        after = request.after_topic, request.after_group
        found: list[Pair] = []
        pairs: Iterator[Pair] = chain(
            ((each.topic, each.group) for each in self._book.all()),
            (pair for pair, _ in self._modes.modes),
            self._metrics.long_polls.pairs(),
        )
        while some := list(islice(pairs, _SCANNED_AT_ONCE)):
            wanted = {
                pair
                for pair in some
                if pair > after
                and request.topic in ("", pair[0])
                and request.group in ("", pair[1])
                and pair[0] != OTHER
                and self._metrics.long_polls.known(*pair)
            }
            found = nsmallest(count, wanted.union(found))
            await asyncio.sleep(0)
        return found

    async def _count(self, waiting: dict[Pair, _Waiting]) -> dict[Pair, _Waiting]:
        """Count the polls that wait for some topics and groups."""
        for number, interest in enumerate(self._book.all(), 1):
            count = waiting.get((interest.topic, interest.group))
            if count is not None:
                count.polls += len(interest.waiters) + len(interest.places)
                count.everywhere |= bool(interest.waiters)
                count.brokers |= interest.at_broker.keys()
            if number % _SCANNED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return waiting

    def _describe(self, info: pb.PollInfo, pair: Pair, count: _Waiting) -> None:
        metrics, mode = self._metrics, self._modes.mode_of(*pair)
        info.topic, info.group = pair
        info.mode = "" if mode is None else mode.value
        info.polls = count.polls
        info.brokers_waited_at = len({*self._brokers()} if count.everywhere else count.brokers)
        info.long_polls = metrics.long_polls.of(*pair)
        info.short_hits = metrics.short_polling_hits.of(*pair)
        info.pops_with_notify = metrics.pops_with_notify.of(*pair)
        info.wakeups, info.empty_wakeups = metrics.wakes_of(*pair)
