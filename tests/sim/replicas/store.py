"""The store that several controllers share: documents that change by compare-and-swap, over a network.

It is of the semantics of `FileStateStore` on a shared folder and of the Kubernetes API: each document has a version,
and a write takes place only on the version it names. Between a controller and the store stands a network: an answer may
be lost after the write was done, a write of a process that is dead or stands still may arrive late, and the store may
be away.
"""

import asyncio
import errno
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from popwheel_controller.store.state_store import ConflictError, Document, Stored, page_of_document
from tests.sim.loop import SimLoop
from tests.sim.process import Process

Result = TypeVar("Result")

_TIMEOUT_S = 1.0
_VERSIONS_SEEN = 4
"""Older versions of a document that may still be read."""


class SharedStore:
    """The documents.

    Args:
        loop: the loop.
        chance: delays and lost answers.
        written: told of each document that was changed: its name, what it was, what it is.
    """

    def __init__(
        self,
        loop: SimLoop,
        chance: random.Random,
        written: Callable[[str, Document | None, Document], None],
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.delay_s_max = 0.002
        self.is_away = False
        self.lost_share = 0.0
        """How often an answer is lost."""
        self.conflict_share = 0.0
        """How often somebody else has changed a document just before it is written."""
        self.stale_share = 0.0
        """How often a read gives what was there some time ago."""
        self.under_way: Counter[str] = Counter()
        """How many writes of each document have been sent and have not arrived."""
        self._before: dict[str, list[tuple[str, int]]] = {}
        self._written = written
        self._documents: dict[str, tuple[str, int]] = {}

    def heal(self) -> None:
        """Nothing is wrong with it any more."""
        self.is_away = False
        self.lost_share = self.conflict_share = self.stale_share = 0.0

    def hold(self, process: Process) -> "StoreHold":
        """A controller's hold on it."""
        return StoreHold(self, process)

    def read(self, name: str) -> Stored | None:
        """What the server answers to a read."""
        if self.is_away:
            raise _away()
        found = self._seen(name)
        return None if found is None else Stored(json.loads(found[0]), str(found[1]))

    def _seen(self, name: str) -> tuple[str, int] | None:
        """What a reader sees of a document."""
        if self.stale_share and self.chance.random() < self.stale_share and self._before.get(name):
            return self.chance.choice(self._before[name])
        return self._documents.get(name)

    def _replace(self, name: str, content: str) -> int:
        found = self._documents.get(name)
        if found is not None:
            self._before[name] = [*self._before.get(name, ())[-_VERSIONS_SEEN:], found]
        version = 1 if found is None else found[1] + 1
        self._documents[name] = (content, version)
        return version

    def write(self, name: str, content: str, expected: str | None) -> str:
        """What the server does on a write."""
        self.under_way[name] -= 1
        if self.is_away:
            raise _away()
        found = self._documents.get(name)
        if found is not None and self.conflict_share and self.chance.random() < self.conflict_share:
            self._replace(name, found[0])
            raise ConflictError(name)
        if (None if found is None else str(found[1])) != expected:
            raise ConflictError(name)
        version = self._replace(name, content)
        self._written(name, None if found is None else json.loads(found[0]), json.loads(content))
        return str(version)

    def versions(self) -> Mapping[str, str]:
        """What the server answers when it is asked for all versions."""
        if self.is_away:
            raise _away()
        seen = {name: self._seen(name) for name in self._documents if page_of_document(name) is None}
        return {name: str(found[1]) for name, found in seen.items() if found is not None}

    def pages(self) -> Sequence[str]:
        """What the server answers when it is asked for all pages."""
        if self.is_away:
            raise _away()
        return [page for page in map(page_of_document, self._documents) if page is not None]

    def delete(self, name: str, expected: str | None) -> None:
        """What the server does when a document is to be deleted."""
        if self.is_away:
            raise _away()
        found = self._documents.get(name)
        if found is None or expected not in (None, str(found[1])):
            raise ConflictError(name)
        self._before.setdefault(name, []).append(found)
        del self._documents[name]

    def document(self, name: str) -> Document | None:
        """What is there now, for the simulator."""
        found = self._documents.get(name)
        if found is None:
            return None
        document: dict[str, Any] = json.loads(found[0])
        return document


class StoreHold:
    """One controller's `popwheel_controller.store.state_store.StateStore`.

    Args:
        store: what is shared.
        process: the controller.
    """

    def __init__(self, store: SharedStore, process: Process) -> None:
        self._store = store
        self._process = process

    async def read(self, name: str) -> Stored | None:
        """See `StateStore`."""
        return await self._ask(lambda: self._store.read(name))

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        """See `StateStore`."""
        content = json.dumps(document)
        self._store.under_way[name] += 1
        return await self._ask(lambda: self._store.write(name, content, expected))

    async def delete(self, name: str, expected: str | None) -> None:
        """See `StateStore`."""
        await self._ask(lambda: self._store.delete(name, expected))

    async def versions(self) -> Mapping[str, str]:
        """See `StateStore`."""
        return await self._ask(self._store.versions)

    async def pages(self) -> Sequence[str]:
        """See `StateStore`."""
        return await self._ask(self._store.pages)

    async def close(self) -> None:
        """Nothing is held open."""

    def where(self, name: str) -> str:
        """See `StateStore`."""
        return f"document {name}"

    async def _ask(self, serve: Callable[[], Result]) -> Result:
        store, loop = self._store, self._store.loop
        answer: asyncio.Future[Result] = loop.create_future()

        def arrive() -> None:
            outcome: Result | BaseException
            try:
                outcome = serve()
            except (ConflictError, OSError) as error:
                outcome = error
            if store.chance.random() >= store.lost_share:
                later_s = store.chance.random() * store.delay_s_max
                loop.call_later(later_s, come_back, outcome, context=self._process.context)

        def come_back(outcome: Result | BaseException) -> None:
            if answer.done():
                return
            if isinstance(outcome, BaseException):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        loop.outside(store.chance.random() * store.delay_s_max, arrive)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "the store did not answer in time") from None


def _away() -> OSError:
    return OSError(errno.EHOSTUNREACH, "the store is away")
