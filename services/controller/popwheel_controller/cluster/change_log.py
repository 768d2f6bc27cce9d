"""The log of changes: each leaves a line in the process's log and in a list that the store keeps.

A change is not held up by it and does not fail with it: what the store does not take is counted, stays here, and is
written with the next line (decision 0065).
"""

import asyncio

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.clock import Clock
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.shared_work import SharedWork
from popwheel_controller.cluster.changes import LINES_MAX, Change, changes_document, changes_of, facts_of, kept
from popwheel_controller.store.state_store import CHANGES, ConflictError, StateStore

WAIT_S = 1.0
"""An answer waits for its line as long at the most."""
_TRIES_MAX = 4
_NOT_LOGGED = ("id", "times")
_STORE_ERRORS = (OSError, CorruptDataError, UnknownFormatError)

_logger = structlog.get_logger()


class ChangeLog:
    """Keeps the lines. The controller that leads has them all; another one has only lines that it could not write.

    Args:
        store: where they are kept.
        clock: the time.
        registry: where they are counted.
        writer: distinguishes the lines of this process from others'.
    """

    def __init__(self, store: StateStore, clock: Clock, registry: CollectorRegistry, writer: str = "") -> None:
        self._store = store
        self._clock = clock
        self._writer = writer
        self._noted = 0
        self._stored: dict[str, Change] = {}
        self._unstored: dict[str, Change] = {}
        self._version: str | None = None
        self._is_known = False
        self._is_outdated = True
        self._turn = asyncio.Lock()
        self._writes = SharedWork(self._write)
        self._under_way: set[asyncio.Task[bool]] = set()
        self._lines = Counter(
            "popwheel_controller_changes",
            "Changes that operators, resources and this controller made, and those that were refused",
            ("outcome",),
            registry=registry,
        )
        for outcome in ("done", "refused", "failed"):
            self._lines.labels(outcome)
        self._failures = Counter(
            "popwheel_controller_change_line_failures",
            "How often lines of the log of changes could not be stored in time; the process's log has them",
            registry=registry,
        )
        Gauge(
            "popwheel_controller_change_lines_unstored",
            "Lines of the log of changes that the store has not taken yet",
            registry=registry,
        ).set_function(lambda: len(self._unstored))

    @property
    def unstored(self) -> int:
        """Number of the lines that the store has not taken yet."""
        return len(self._unstored)

    def begin(self) -> None:
        """Forget what was read: another controller may have led meanwhile."""
        self._stored, self._version, self._is_known, self._is_outdated = {}, None, False, True

    async def end(self) -> None:
        """Write what is left, if the store takes it soon."""
        if self._unstored:
            await self._written()

    async def note(
        self, who: str, address: str, verb: str, object_: str, before: str, after: str, outcome: str
    ) -> None:
        """Leave a line; returns when it is stored, or after a second. It raises nothing.

        Args:
            who, address, verb, object_, before, after, outcome: as `Change` has them.
        """
        self._append(who, address, verb, object_, before, after, outcome)
        await self._written()

    def record_soon(self, verb: str, object_: str, before: str, after: str) -> None:
        """Leave a line of what this controller did by itself; nobody waits for it."""
        self._append("controller", "", verb, object_, before, after, "done")
        task = asyncio.create_task(self._written(), name="line-of-a-change")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def latest(self) -> list[Change]:
        """All lines, the latest first.

        Raises:
            StatusError: HA_NOT_AVAILABLE: the store is away, or what it has is damaged.
        """
        if not self._is_known:
            try:
                async with self._turn:
                    await self._read()
            except _STORE_ERRORS as error:
                raise StatusError(Code.HA_NOT_AVAILABLE, f"the changes cannot be read now: {error}") from error
        return list({**self._stored, **self._unstored}.values())[::-1]

    def _append(self, who: str, address: str, verb: str, object_: str, before: str, after: str, outcome: str) -> None:
        now_ms = self._clock.wall_ms()
        self._noted += 1
        id_ = f"{now_ms}-{self._writer[:6]}{self._noted}"
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
        """Return whether all lines that there are now are stored; it takes a second at the most."""
        try:
            async with asyncio.timeout(WAIT_S):
                if await self._writes.result():
                    return True
        except TimeoutError:
            _logger.warning("lines of the log of changes are not stored yet, nobody waits any longer")
        self._failures.inc()
        return False

    async def _write(self) -> bool:
        """Store the lines that are not stored yet."""
        try:
            async with self._turn:
                for _ in range(_TRIES_MAX):
                    if await self._tried():
                        return True
            reason = "others write there all the time"
        except _STORE_ERRORS as error:
            reason = str(error)
        _logger.warning(
            "lines of the log of changes are not stored; they come with the next one",
            lines=len(self._unstored),
            reason=reason,
        )
        return False

    async def _tried(self) -> bool:
        """Return whether they are stored now; else another controller was first, or this write was made twice."""
        if self._is_outdated:
            await self._read()
        taken = dict(self._unstored)
        changes = kept({**self._stored, **taken}.values())
        self._is_outdated = True  # until the answer is there
        await asyncio.sleep(0)  # to encode the document takes as long as all this did
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
