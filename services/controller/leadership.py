"""Keeps the lease, or waits for it: of several controllers on one store, one leads."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from services.common.clock import Clock
from services.common.errors import ConfigurationError, CorruptDataError, StatusError, UnknownFormatError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.controller.documents import LEASE, lease_of
from services.controller.lease import LeaseHolder
from services.controller.state_store import ConflictError, StateStore

_LOOKS_PER_LEASE = 8
_RENEWALS_EVERY_LOOKS = 2

_logger = structlog.get_logger()


class Leadership:
    """One controller's part in the choice of who leads.

    Args:
        store: where the lease is; None if this controller is alone and always leads.
        holder: decides what to write.
        lease_s: how long a lease lasts, in seconds.
        clock: the time.
        begin: called when it leads from now on; what it raises ends the lead at once.
        end: called when it does not lead any more, with what to tell those who ask.
        look: called now and then while it leads.
    """

    def __init__(
        self,
        store: StateStore | None,
        holder: LeaseHolder,
        lease_s: float,
        clock: Clock,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[StatusError], Awaitable[None]],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._holder = holder
        self._look_s = lease_s / _LOOKS_PER_LEASE
        self._clock = clock
        self._begin = begin
        self._end = end
        self._look = look
        self._active = False
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether this controller may decide anything now."""
        return self._active and (self._store is None or self._holder.leads(self._clock.monotonic()))

    def check(self) -> None:
        """See that this controller leads.

        Raises:
            StatusError: HA_NOT_AVAILABLE, which names the one that does.
        """
        if not self.leads:
            raise self._refusal()

    async def start(self) -> None:
        """Lead, if nobody else does; returns when it is known.

        Raises:
            OSError, CorruptDataError, UnknownFormatError, ConfigurationError: the state cannot be used.
        """
        if self._store is None:
            await self._begin()
            self._active = True
            return
        if await self._turn():
            await self._lead()
        self._task = asyncio.create_task(self._run(self._store), name="controller-lease")

    async def stop(self) -> None:
        """Lead no more, and let another one do so at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._active:
            await self._follow(StatusError(Code.HA_NOT_AVAILABLE, "this controller is stopping; ask another one"))
        released = self._holder.released()
        if self._store is not None and released is not None:
            try:
                await self._store.write(LEASE, released.document(), self._version)
            except (OSError, ConflictError) as error:
                _logger.warning("the lease could not be given back", reason=str(error))

    async def _run(self, store: StateStore) -> None:
        while True:
            await asyncio.sleep(self._look_s * (_RENEWALS_EVERY_LOOKS if self._active else 1))
            try:
                mine = await self._turn()
            except (OSError, CorruptDataError, UnknownFormatError) as error:
                _logger.warning("the lease cannot be read or written", reason=str(error))
                mine = self._holder.leads(self._clock.monotonic())
            try:
                if mine and not self._active:
                    await self._lead()
                elif self._active and not mine:
                    await self._follow(self._refusal())
                elif self._active:
                    await self._look()
            except (OSError, CorruptDataError, UnknownFormatError, ConfigurationError) as error:
                _logger.error("the state cannot be read", reason=str(error))

    async def _turn(self) -> bool:
        """Look at the lease, and write it if it is ours to be had; whether this controller leads."""
        store = self._store
        assert store is not None
        stored = await store.read(LEASE)
        lease = None if stored is None else lease_of(stored.document, store.where(LEASE))
        version = None if stored is None else stored.version
        now = self._clock.monotonic()
        mine = self._holder.look(lease, version, now)
        if mine is None:
            return False
        try:
            self._version = await store.write(LEASE, mine.document(), version)
        except ConflictError:
            self._holder.beaten()
            return False
        self._holder.written(mine, now)
        return self._holder.leads(self._clock.monotonic())

    async def _lead(self) -> None:
        await self._begin()
        self._active = True
        _logger.warning("this controller leads", turn=self._holder.lease.turn if self._holder.lease else 0)

    async def _follow(self, refusal: StatusError) -> None:
        self._active = False
        if self._store is not None:
            _logger.warning("this controller does not lead any more")
        await self._end(refusal)

    def _refusal(self) -> StatusError:
        leader = self._holder.leader
        if self._active or leader is None:
            return StatusError(Code.HA_NOT_AVAILABLE, "no controller leads at this moment; ask again")
        return StatusError(
            Code.HA_NOT_AVAILABLE,
            f"this controller does not lead; the one at {leader.address} does (admin API: {leader.admin})",
        )
