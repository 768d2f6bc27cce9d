"""The page at `/metrics`: made between the turns of the loop, and once for all who wait for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry

from popwheel_common.exposition import OPEN_METRICS, PLAIN, FamilyText, aliases, of_worker, registered
from popwheel_common.web.shared_work import SharedWork

STEP_S: Final = 0.001
"""Longest step, in seconds, before the loop is left to others for as long."""
_REST: Final = 2
"""Factor of the pause after a page: that many times as long as its steps took."""

WorkerPages = Callable[[bool], Awaitable[Mapping[str, str]]]
"""Asks all workers for their pages, by the value of the label `worker`; with pairs of topic and group, or without."""


class MetricsPage:
    """Makes pages, one at a time: any number of clients takes a quarter of the loop's time at the most.

    Args:
        registry: what is shown.
        worker_pages: what is shown beside it.
    """

    def __init__(self, registry: CollectorRegistry, worker_pages: WorkerPages | None = None) -> None:
        self._registry = registry
        self._worker_pages = worker_pages
        self._making = asyncio.Lock()
        self._rested_at_s = 0.0
        self._pages = {
            form: SharedWork(partial(self._make, *form)) for form in product((PLAIN, OPEN_METRICS), (False, True))
        }

    async def text(self, content_type: str, *, pairs: bool) -> bytes:
        """Make a page, or wait for one that others wait for.

        Args:
            content_type: one of those of `exposition`.
            pairs: show each pair of a topic and a group.
        """
        return await self._pages[content_type, pairs].result()

    async def _make(self, content_type: str, pairs: bool) -> bytes:
        clock = asyncio.get_running_loop().time
        async with self._making:
            await asyncio.sleep(max(0.0, self._rested_at_s - clock()))
            pages = {} if self._worker_pages is None else await self._worker_pages(pairs)
            families: dict[str, FamilyText] = {}
            busy_s, began_s = 0.0, clock()
            for family in self._parts(pairs, pages):
                if family is not None and families.setdefault(family.name, family) is not family:
                    families[family.name].series += family.series
                if (step_s := clock() - began_s) >= STEP_S:
                    busy_s += step_s
                    await asyncio.sleep(step_s)
                    began_s = clock()
            self._rested_at_s = clock() + _REST * busy_s
            return _joined(families | aliases(families), content_type)

    def _parts(self, pairs: bool, pages: Mapping[str, str]) -> Iterator[FamilyText | None]:
        yield from registered(self._registry, pairs=pairs)
        for worker, page in pages.items():
            yield from of_worker(page, worker)


def _joined(families: Mapping[str, FamilyText], content_type: str) -> bytes:
    texts: list[str] = []
    for family in families.values():
        texts.append(family.head(content_type))
        texts += family.series
    if content_type == OPEN_METRICS:
        texts.append("# EOF\n")
    return "".join(texts).encode()
