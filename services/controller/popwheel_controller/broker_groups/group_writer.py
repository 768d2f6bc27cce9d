"""Changes of broker groups, all made here: by compare-and-swap on the stored state, one at a time per group.

Listeners are notified only after the new state is stored.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog

from popwheel_common.contract.names import is_broker_group, shown
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.broker_groups.broker_group import (
    GroupState,
    follow_up,
    group_document,
    group_of,
    unknown_group,
)
from popwheel_controller.store.state_store import ConflictError, StateStore, group_document_name, group_of_document

Decision = Callable[[GroupState | None], GroupState | None]
"""Function from a group's stored state to its new state; None for no change, or it raises StatusError."""

Listener = Callable[[GroupState | None, GroupState], None]
"""Listener of a group's state before a change, None if there was none, and of the one after it."""

Outcome = TypeVar("Outcome")

_TRIES_MAX = 8
_READS_AT_ONCE = 4
_SHOWN_MAX = 10

_logger = structlog.get_logger()


class GroupWriter:
    """Cache of the stored states of all broker groups, and the only writer of them.

    Args:
        store: of the states.
        groups_max: limit of groups.
        conflicted: called whenever another controller wrote first.
    """

    def __init__(
        self,
        store: StateStore,
        groups_max: int,
        conflicted: Callable[[], None],
    ) -> None:
        self.states: dict[str, GroupState] = {}
        self._store = store
        self._groups_max = groups_max
        self._listeners: list[Listener] = []
        self._conflicted = conflicted
        self._versions: dict[str, str] = {}
        self._outcome_unknown: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Weak, so that a lock exists only while it is in use: clients may send any number of names."""
        self._under_way: set[asyncio.Task[Any]] = set()

    def subscribe(self, listener: Listener) -> None:
        """Notify `listener` of each state after it was stored, or found to be stored by another controller."""
        self._listeners.append(listener)

    async def load(self) -> None:
        """Read all groups anew.

        Raises:
            OSError, CorruptDataError, UnknownFormatError: as `StateStore.read`.
        """
        self.forget()
        groups = [group for name in await self._store.versions() if (group := group_of_document(name)) is not None]
        strange = [group for group in groups if not is_broker_group(group)]
        if strange:
            few = [shown(name) for name in strange[:_SHOWN_MAX]]
            _logger.warning("documents of broker groups with invalid names are ignored", count=len(strange), names=few)
        unread = iter(filter(is_broker_group, groups))

        async def read_on() -> None:
            for group in unread:
                await self._read(group)

        readers = [asyncio.create_task(read_on()) for _ in range(_READS_AT_ONCE)]
        try:
            await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()

    def forget(self) -> None:
        """Forget all states: another controller leads."""
        self.states.clear()
        self._versions.clear()
        self._outcome_unknown.clear()

    async def refresh(self, name: str) -> None:
        """Reread a group; notify listeners if it has changed. A deleted one is stored again as it was, because its
        replicas still use that state. Shielded from cancellation, as `change` is.

        Raises:
            OSError, CorruptDataError, UnknownFormatError: as `StateStore.read`.
        """
        await self._see_through(self._refresh(name), name)

    async def _refresh(self, name: str) -> None:
        async with self._lock(name):
            await self._read_and_notify(name)
            known = self.states.get(name)
            if known is not None and name not in self._versions:
                try:
                    await self._write(known)
                except ConflictError:
                    await self._read_and_notify(name)

    async def poll_store(self, versions: Mapping[str, str]) -> None:
        """Reread the groups that others have changed or deleted.

        Args:
            versions: of the store's documents, as `StateStore.versions` gives them.

        Raises:
            OSError, CorruptDataError, UnknownFormatError: as `StateStore.read`.
        """
        stored = {group_of_document(name): version for name, version in versions.items()}
        for group in dict.fromkeys((*stored, *self.states)):
            if group is None or not is_broker_group(group):
                continue
            deleted = group in self.states and group not in self._versions  # and not restored yet
            if deleted or self._versions.get(group) != stored.get(group):
                await self.refresh(group)

    async def change(
        self, name: str, decision: Decision, *, forced: bool = False, removes: bool = False
    ) -> GroupState | None:
        """Change a group; return its state, which is the old one if there was nothing to change.

        If the caller is cancelled, the change continues and its outcome is dropped.

        Args:
            name: of the group.
            decision: called again if another controller wrote first.
            forced: whether an operator accepts a loss of messages.
            removes: whether an operator removes a replica.

        Raises:
            StatusError: raised by the decision; INTERNAL_SERVER_ERROR if it could not be stored, HA_NOT_AVAILABLE if
                others wrote first at every try, TOO_MANY_REQUESTS at the limit of groups.
            IllegalStepError: the decision was wrong; nothing was stored.
        """
        return await self._see_through(self._change(name, decision, forced, removes), name)

    async def delete(self, name: str, check: Callable[[GroupState], None]) -> None:
        """Remove a group; shielded from cancellation, as `change` is.

        Args:
            name: of the group.
            check: raises StatusError if the group must stay; called again if another controller wrote first.

        Raises:
            StatusError: as `change`; NOT_FOUND if it is not known.
        """
        await self._see_through(self._delete(name, check), name)

    async def _see_through(self, work: Coroutine[Any, Any, Outcome], name: str) -> Outcome:
        task = asyncio.create_task(work, name=f"change-of-{name}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_take_error)
            raise

    async def finish(self) -> None:
        """Wait for the changes that are under way."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _change(self, name: str, decision: Decision, forced: bool, removes: bool) -> GroupState | None:
        async with self._lock(name):
            try:
                if name in self._outcome_unknown:
                    await self._read_and_notify(name)
                for _ in range(_TRIES_MAX):
                    old = self.states.get(name)
                    wanted = decision(old)
                    if wanted is None or wanted == old:
                        return old
                    self._check_room(name)
                    new = follow_up(old, wanted, forced=forced, removes=removes)
                    try:
                        await self._write(new)
                    except ConflictError:
                        await self._read_and_notify(name)
                        if self.states.get(name) == new:  # its own write, duplicated on the way
                            return new
                        if self.states.get(name) == old:  # a change of other fields of the document
                            continue
                        self._conflicted()
                        _logger.warning("another controller has changed this broker group", group=name)
                        continue
                    self._notify(old, new)
                    return new
            except OSError as error:
                raise _not_stored(name, error) from error
        raise _always_changed(name)

    async def _delete(self, name: str, check: Callable[[GroupState], None]) -> None:
        async with self._lock(name):
            try:
                if name in self._outcome_unknown:
                    await self._read_and_notify(name)
                for _ in range(_TRIES_MAX):
                    state = self.states.get(name)
                    if state is None:
                        raise unknown_group(name)
                    check(state)
                    version = self._versions.get(name)  # None: it was deleted already
                    if version is not None:
                        self._outcome_unknown.add(name)
                        try:
                            await self._store.delete(group_document_name(name), version)
                        except ConflictError:
                            await self._read_and_notify(name)
                            continue
                        self._outcome_unknown.discard(name)
                        del self._versions[name]
                    del self.states[name]
                    return
            except OSError as error:
                raise _not_stored(name, error) from error
        raise _always_changed(name)

    async def _write(self, new: GroupState) -> None:
        self._outcome_unknown.add(new.name)
        self._versions[new.name] = await self._store.write(
            group_document_name(new.name), group_document(new), self._versions.get(new.name)
        )
        self._outcome_unknown.discard(new.name)
        self.states[new.name] = new

    async def _read(self, name: str) -> None:
        stored = await self._store.read(group_document_name(name))
        self._outcome_unknown.discard(name)
        if stored is None:
            if self._versions.pop(name, None) is not None:
                _logger.error("the state of a broker group was deleted from the store", group=name)
        else:
            self._versions[name] = stored.version
            self.states[name] = group_of(stored.document, self._store.where(group_document_name(name)))

    async def _read_and_notify(self, name: str) -> None:
        old = self.states.get(name)
        await self._read(name)
        new = self.states.get(name)
        if new is not None and new != old:
            self._notify(old, new)

    def _notify(self, old: GroupState | None, new: GroupState) -> None:
        for listener in self._listeners:
            listener(old, new)

    def _check_room(self, name: str) -> None:
        if name not in self.states and len(self.states) >= self._groups_max:
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"there are {len(self.states)} broker groups, as many as controller.broker_groups_max allows",
            )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())  # the task that enters it keeps it alive


def _take_error(task: "asyncio.Task[Any]") -> None:
    """Consume the error of a change whose caller was cancelled; the store logs its own errors."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, OSError):
        _logger.warning(
            "the store was unavailable for a change of a broker group", change=task.get_name(), reason=str(error)
        )
    elif error is not None and not isinstance(error, StatusError):
        _logger.error("a change of a broker group failed", change=task.get_name(), exc_info=error)


def _not_stored(name: str, error: OSError) -> StatusError:
    _logger.error("state of a broker group cannot be stored or read", group=name, error=str(error))
    return StatusError(Code.INTERNAL_SERVER_ERROR, f"the state of {name} could not be stored: {error}")


def _always_changed(name: str) -> StatusError:
    return StatusError(
        Code.HA_NOT_AVAILABLE, f"others change {name} all the time, so this change of it was given up; ask again"
    )
