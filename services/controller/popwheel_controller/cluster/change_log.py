"""Change log: each change writes a line to the process's log and to a list in the store.

The change log neither delays nor fails a change: lines that the store does not accept are counted, buffered here, and
written with the next line (decision 65).
"""

import asyncio

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.clock import Clock
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.shared_work import SharedWork
from popwheel_controller.cluster.changes import (
    LINES_MAX,
    Change,
    changes_document,
    changes_of,
    facts_of,
    latest_fitting,
)
from popwheel_controller.store.state_store import CHANGES, ConflictError, StateStore

WAIT_S = 1.0
"""Longest time that an answer waits for its line, in seconds."""
_TRIES_MAX = 4
_NOT_LOGGED = ("id", "times")
_STORE_ERRORS = (OSError, CorruptDataError, UnknownFormatError)

_logger = structlog.get_logger()


class ChangeLog:
    """Writer of the lines. The leading controller has them all; another one has only those it could not write.

    Args:
        store: of the lines.
        clock: the time.
        registry: for the counters.
        writer: distinguishes the lines of this process from others'.
    """

    def __init__(self, store: StateStore, clock: Clock, registry: CollectorRegistry, writer: str = "") -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._recorded = 0
        self._stored: dict[str, Change] = {}
        self._unstored: dict[str, Change] = {}
        self._version: str | None = None
        self._is_known = False
        self._is_outdated = True
        self._lock = asyncio.Lock()
        self._writes = SharedWork(self._write)
        self._under_way: set[asyncio.Task[bool]] = set()
        self._lines = Counter(
            "popwheel_controller_changes",
            "Changes made or refused, by operators, resources and this controller",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("done", "refused", "failed"):
            self._lines.labels(outcome)
        self._failures = Counter(
            "popwheel_controller_change_line_failures",
            "Lines of the change log that could not be stored in time; the log of the process has them",
            registry=registry,
        )
        Gauge(
            "popwheel_controller_change_lines_unstored",
            "Lines of the change log that are not stored yet",
            registry=registry,
        ).set_function(lambda: len(self._unstored))

    @property
    def unstored(self) -> int:
        """Number of lines that are not stored yet."""
        return len(self._unstored)

    def begin(self) -> None:
        """Drop the cached lines: another controller may have led meanwhile."""
        self._stored, self._version, self._is_known, self._is_outdated = {}, None, False, True

    async def end(self) -> None:
        """Write the remaining lines, if the store accepts them soon."""
        if self._unstored:
            await self._written()

    async def record(
        self, who: str, address: str, verb: str, object_: str, before: str, after: str, outcome: str
    ) -> None:
        """Write a line; return when it is stored, or after a second. Errors are logged, not raised.

        Args:
            who, address, verb, object_, before, after, outcome: as `Change` has them.
        """
        self._append(who, address, verb, object_, before, after, outcome)
        await self._written()

    def record_soon(self, verb: str, object_: str, before: str, after: str) -> None:
        """Write a line about a change of this controller itself, in the background."""
        self._append("controller", "", verb, object_, before, after, "done")
        task = asyncio.create_task(self._written(), name="line-of-a-change")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def latest(self) -> list[Change]:
        """Return all lines, the latest first.

        Raises:
            StatusError: HA_NOT_AVAILABLE, the store is unavailable or its lines are damaged.
        """
        if not self._is_known:
            try:
                async with self._lock:
                    await self._read()
            except _STORE_ERRORS as error:
                raise StatusError(Code.HA_NOT_AVAILABLE, f"the changes cannot be read now: {error}") from error
        return list({**self._stored, **self._unstored}.values())[::-1]

    def _append(self, who: str, address: str, verb: str, object_: str, before: str, after: str, outcome: str) -> None:
        now_ms = self._clock.wall_ms()
        self._recorded += 1
        id_ = f"{now_ms}-{self._writer[:6]}{self._recorded}"
        change = Change(id_, now_ms, who, address, verb, object_, before, after, outcome).cut()
        self._lines.labels(outcome.partition(" ")[0]).inc()
        _logger.info("change", **{name: value for name, value in facts_of(change).items() if name not in _NOT_LOGGED})
        last = next(reversed((self._unstored or self._stored).values()), None)
        if last is not None and change.repeats(last):
            change = change.merged(last)
        self._unstored[change.id] = change
        while len(self._unstored) > LINES_MAX:
            del self._unstored[next(iter(self._unstored))]

    async def _written(self) -> bool:
        """Wait up to a second until all current lines are stored; return whether they are."""
        try:
            async with asyncio.timeout(WAIT_S):
                if await self._writes.result():
                    return True
        except TimeoutError:
            _logger.warning("lines of the change log are not stored yet; writing goes on in the background")
        self._failures.inc()
        return False

    async def _write(self) -> bool:
        """Store the lines that are not stored yet."""
        try:
            async with self._lock:
                for _ in range(_TRIES_MAX):
                    if await self._tried():
                        return True
            reason = "other controllers wrote first at every try"
        except _STORE_ERRORS as error:
            reason = str(error)
        _logger.warning(
            "lines of the change log are not stored; they will be written with the next one",
            lines=len(self._unstored),
            reason=reason,
        )
        return False

    async def _tried(self) -> bool:
        """Try once to store the lines; False if another controller was first, or if this write was duplicated."""
        if self._is_outdated:
            await self._read()
        taken = dict(self._unstored)
        changes = latest_fitting({**self._stored, **taken}.values())
        self._is_outdated = True  # until the answer arrives
        await asyncio.sleep(0)  # encoding the document takes as long as all of the above
        try:
            self._version = await self._store.write(CHANGES, changes_document(changes), self._version)
        except ConflictError:
            return False
        self._is_outdated = False
        self._stored = {change.id: change for change in changes}
        for id_, change in taken.items():
            if self._unstored.get(id_) is change:
                del self._unstored[id_]
        return True

    async def _read(self) -> None:
        found = await self._store.read(CHANGES)
        changes = [] if found is None else changes_of(found.document, self._store.where(CHANGES))
        self._stored = {change.id: change for change in changes}
        self._version = None if found is None else found.version
        self._is_known, self._is_outdated = True, False
