"""Checks half messages at their producers when they are due."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.transactions.checkers import Checkers
from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_POLL_S = 0.25
_AT_ONCE = 64


class TransactionService:
    """Checks due half messages several times a second, while a broker leads.

    Args:
        coordinator: the transactions.
        store: reads in threads what is not in memory.
        checkers: which proxies have producers.
        takes_commits: whether commits are accepted now; while they are not, nothing is checked or rolled back.
        commit_later: makes appended records readable.
        on_failure: called if it can't continue.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: MessageStore,
        checkers: Checkers,
        takes_commits: Callable[[], bool],
        commit_later: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._coordinator = coordinator
        self._store = store
        self._checkers = checkers
        self._takes_commits = takes_commits
        self._commit_later = commit_later
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._task is None:
            self._task = supervised(self._run(), "transactions", self._on_failure)

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            if not len(self._coordinator.table) or not self._takes_commits():
                continue
            try:
                while await self._store.reads.run(self._ask_some):
                    self._commit_later()
                    await asyncio.sleep(0)
            except (StatusError, OSError, CorruptDataError) as error:
                _log.error("half messages can't be checked, trying again", error=str(error))

    def _ask_some(self) -> bool:
        """Check some half messages; return whether any was due."""
        due, asked = self._coordinator.ask(_AT_ONCE)
        for half in asked:
            self._checkers.ask(half.target.topic, half.position)
        return due
