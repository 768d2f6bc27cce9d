"""A state store in memory that several controllers share, and that can be away or slow."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from popwheel_controller.store.state_store import CLUSTER, ConflictError, Document, Stored, page_of_document


class MemoryStore:
    """A `StateStore`.

    `history` has every contents that each document ever had, in order.
    """

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {}
        self.away = False
        self.hangs = False
        """No call comes back until this is over."""
        self.failing_writes = 0
        """Number of the next writes that are not stored."""
        self.lost_answers = 0
        """Number of the next writes that are stored, and yet fail."""
        self.late_reads = 0
        """Number of the next reads of the cluster's state that give what was there before the last write."""

    async def read(self, name: str) -> Stored | None:
        await self._turn()
        found = self.history.get(name)
        if name == CLUSTER and found and self.late_reads:
            self.late_reads -= 1
            found = found[:-1]
        return None if not found else Stored(json.loads(found[-1]), str(len(found)))

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        await self._turn()
        contents = self.history.setdefault(name, [])
        if (str(len(contents)) if contents else None) != expected:
            raise ConflictError(name)
        if self.failing_writes:
            self.failing_writes -= 1
            raise OSError("the store is full")
        contents.append(json.dumps(document))
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("the answer was lost")
        return str(len(contents))

    async def delete(self, name: str, expected: str | None) -> None:
        await self._turn()
        if name not in self.history or expected not in (None, str(len(self.history[name]))):
            raise ConflictError(name)
        del self.history[name]

    async def versions(self) -> Mapping[str, str]:
        await self._turn()
        return {
            name: str(len(contents))
            for name, contents in self.history.items()
            if contents and page_of_document(name) is None
        }

    async def pages(self) -> Sequence[str]:
        await self._turn()
        return [page for page in map(page_of_document, self.history) if page is not None]

    async def close(self) -> None:
        pass

    def where(self, name: str) -> str:
        return f"memory:{name}"

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        while self.hangs:
            await asyncio.sleep(0.01)
        if self.away:
            raise OSError("the store is away")
