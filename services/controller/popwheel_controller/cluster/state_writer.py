"""Changes of the cluster's state, all made here: one after the other, saved before watchers are notified.

Decisions that arrive during a save are saved together by the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.store.state_store import ConflictError

Decision = Callable[[ClusterState], ClusterUpdate | None]
"""Function from the state to a change; None for no change, or it raises StatusError."""

_TRIES_MAX = 8
_TOGETHER_MAX = 64
"""Limit of changes in one save: more would delay others."""
_STORE_ERRORS = (OSError, CorruptDataError, UnknownFormatError)

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    decision: Decision
    durable: bool
    outcome: asyncio.Future[ClusterUpdate | None]


_Done = list[tuple[_Waiting, ClusterUpdate | None]]


class StateWriter:
    """Owner of the current state and its changes.

    Args:
        state: the initial one.
        save: stores a state as the successor of the previous one; raises ConflictError if another controller has
            changed that, or OSError if the outcome is unknown.
        load: returns the stored state, or raises OSError, CorruptDataError or UnknownFormatError. Its argument is a
            version that was certainly stored: an older state counts only if nothing else is stored now.
        publish: called with each change right after it has become the current state.
        renew: called when the current state was replaced as a whole.
        waiting_max: limit of waiting changes.
    """

    def __init__(
        self,
        state: ClusterState,
        save: Callable[[ClusterState], Awaitable[None]],
        load: Callable[[int], Awaitable[ClusterState]],
        publish: Callable[[ClusterUpdate], None],
        renew: Callable[[], None],
        waiting_max: int,
    ) -> None:
        self.state = state
        self._save = save
        self._load = load
        self._publish = publish
        self._renew = renew
        self._waiting_max = waiting_max
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._stopping = False
        self._is_outdated = False
        self._outcome_unknown = False
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of changes that wait to be decided."""
        return len(self._waiting)

    def start(self, state: ClusterState) -> None:
        """Begin to make changes of this state."""
        self.state = state
        self._stopping = self._outcome_unknown = False
        self._task = asyncio.create_task(self._run(), name="controller-state")

    async def stop(self) -> None:
        """Make the waiting changes, then refuse all others until the next start.

        It may be cancelled and called again: the waiting changes are made anyway.
        """
        self._stopping = True
        self._arrived.set()
        if self._task is not None:
            await asyncio.wait((self._task,))
            self._task = None

    async def change(self, decision: Decision) -> ClusterUpdate | None:
        """Change topics or groups; return when the change is stored, published, and applied in this whole process.

        Raises:
            StatusError: as `change_all`.
        """
        (update,) = await self.change_all((decision,))
        return update

    async def change_all(self, decisions: Sequence[Decision]) -> list[ClusterUpdate | None]:
        """Make several changes, each based on the result of the previous one. They are saved together, unless many
        others wait. If one is refused, the others are still made.

        Raises:
            StatusError: raised by the decision; TOO_MANY_REQUESTS if too many changes wait; INTERNAL_SERVER_ERROR
                if it could not be saved; the message says whether the outcome is unknown. Then the store is read
                before the next change is decided.
        """
        if self._stopping:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, "the controller is stopping; ask again in a moment")
        if len(self._waiting) + len(decisions) > self._waiting_max:
            raise StatusError(
                Code.TOO_MANY_REQUESTS, f"{len(self._waiting)} changes wait to be saved; ask again in a moment"
            )
        outcomes = [self._append(decision, durable=True) for decision in decisions]
        updates = await asyncio.gather(*outcomes, return_exceptions=True)  # await all of them
        made: list[ClusterUpdate | None] = []
        for update in updates:
            if isinstance(update, BaseException):
                raise update
            made.append(update)
        await asyncio.sleep(0)  # a proxy in this process applies the change before its client learns of it
        return made

    def change_brokers(self, decision: Decision) -> "asyncio.Future[ClusterUpdate | None]":
        """Change the list of brokers, which is not saved: outside the limit of waiting changes, and dropped while
        stopped. The future completes when it is published.
        """
        if not self._stopping:
            return self._append(decision, durable=False)
        dropped: asyncio.Future[ClusterUpdate | None] = asyncio.get_running_loop().create_future()
        dropped.set_result(None)
        return dropped

    def refresh_soon(self) -> None:
        """Read the store before the next change, as another controller may have changed it."""
        if not self._stopping:
            self._is_outdated = True
            self._arrived.set()

    def _append(self, decision: Decision, durable: bool) -> "asyncio.Future[ClusterUpdate | None]":
        outcome: asyncio.Future[ClusterUpdate | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decision, durable, outcome))
        self._arrived.set()
        return outcome

    async def _run(self) -> None:
        while self._waiting or not self._stopping:
            await (asyncio.sleep(0) if self._waiting else self._arrived.wait())
            self._arrived.clear()
            if self._is_outdated:
                await self._refresh()
            batch, self._waiting = self._waiting[:_TOGETHER_MAX], self._waiting[_TOGETHER_MAX:]
            try:
                await self._carry_out(batch)
            except Exception as error:  # later changes must not wait for ever
                self._outcome_unknown = True
                _logger.error("changes of the cluster's state failed", changes=len(batch), exc_info=error)
                for waiting in batch:
                    _fail(waiting.outcome, StatusError(Code.INTERNAL_SERVER_ERROR, f"the change failed: {error!r}"))

    async def _refresh(self) -> None:
        self._is_outdated = False
        try:
            stored = await self._load(self.state.named)
        except _STORE_ERRORS as error:
            _logger.warning("cluster state cannot be read again", error=str(error), version=self.state.version)
            return
        self._outcome_unknown = False
        self._take_in(stored)

    async def _carry_out(self, batch: Sequence[_Waiting]) -> None:
        if self._outcome_unknown and any(waiting.durable for waiting in batch):
            batch = await self._cleared_up(batch)
        state, done = self._decide(batch)
        if any(waiting.durable and update is not None for waiting, update in done):
            try:
                state, done = await self._saved(state, done)
            except (*_STORE_ERRORS, ConflictError) as error:
                _logger.error("cluster state cannot be saved", error=str(error), version=self.state.version)
                sentence = (
                    "it is not known whether the change was saved; look, and ask again"
                    if self._outcome_unknown
                    else "the change could not be saved and has not happened"
                )
                state, done = self._decide(_refuse([waiting for waiting, _ in done], f"{sentence}: {error}"))
        self.state = state
        for waiting, update in done:
            if update is not None:
                self._publish(update)
            if not waiting.outcome.done():
                waiting.outcome.set_result(update)

    async def _saved(self, state: ClusterState, done: _Done) -> tuple[ClusterState, _Done]:
        """Save the decisions; if another controller was first, decide again on its state."""
        for _ in range(_TRIES_MAX):
            self._outcome_unknown = True
            try:
                await self._save(state)
                self._outcome_unknown = False
                return state, done
            except ConflictError:
                stored = await self._load(self.state.named + 1)  # the base of this change was replaced
                self._outcome_unknown = False
                if stored == replace(state, brokers={}, away=frozenset()):  # its own save, duplicated on the way
                    return state, done
                _logger.warning("another controller has changed the cluster's state", version=self.state.version)
                self._take_in(stored)
                state, done = self._decide([waiting for waiting, _ in done])
                if not any(waiting.durable and update is not None for waiting, update in done):
                    return state, done
        raise ConflictError("the cluster's state")

    async def _cleared_up(self, batch: Sequence[_Waiting]) -> Sequence[_Waiting]:
        """Read the store after a save of unknown outcome; return the changes that can be made now."""
        try:
            stored = await self._load(self.state.named)
        except _STORE_ERRORS as error:
            _logger.error("cluster state cannot be read", error=str(error), version=self.state.version)
            return _refuse(batch, f"the change has not happened, because the state cannot be read: {error}")
        self._outcome_unknown = False
        self._take_in(stored)
        return batch

    def _take_in(self, stored: ClusterState) -> None:
        """Apply the stored state; watchers are notified if it differs."""
        ours = self.state
        if store_id_of(stored.version) != store_id_of(ours.version):  # versions of another store are not comparable
            self.state = replace(stored, brokers=ours.brokers, away=ours.away)
            self._renew()
            return
        routeless = replace(ours, version=stored.version, brokers=stored.brokers, away=stored.away)
        if stored != routeless or stored.version > ours.version:
            self.state = replace(
                stored,
                version=max(stored.version, ours.version),
                brokers=ours.brokers,
                away=ours.away,
                named=max(stored.named, ours.named),
            )
            self._renew()

    def _decide(self, batch: Sequence[_Waiting]) -> tuple[ClusterState, _Done]:
        state = self.state
        done: _Done = []
        for waiting in batch:
            try:
                update = waiting.decision(state)
            except Exception as error:  # noqa: BLE001 - for the asker alone; the others' changes go on
                _fail(waiting.outcome, error)
                continue
            if update is not None:
                state = state.after(update)
            done.append((waiting, update))
        return state, done


def _refuse(batch: Sequence[_Waiting], sentence: str) -> list[_Waiting]:
    """Refuse the changes that need a save; return the others."""
    for waiting in batch:
        if waiting.durable:
            _fail(waiting.outcome, StatusError(Code.INTERNAL_SERVER_ERROR, sentence))
    return [waiting for waiting in batch if not waiting.durable]


def _fail(outcome: "asyncio.Future[ClusterUpdate | None]", error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
