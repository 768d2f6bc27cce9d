"""Leader election among several controllers on one store, by a lease.

Two tasks run concurrently: one renews the lease, the other begins and ends the lead by it. So a takeover may take long,
and a store that does not answer delays neither the renewals nor the end of a lead.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from popwheel_common.clock import Clock
from popwheel_common.errors import ConfigurationError, CorruptDataError, NotLeadingError, UnknownFormatError
from popwheel_controller.store.lease import Lease, LeaseHolder
from popwheel_controller.store.state_store import LEASE, ConflictError, StateStore

_POLLS_PER_LEASE = 8
_RENEWALS_EVERY_POLLS = 2
_RENEWAL_SHARE = 0.5
_REST_LEASES = 1.5
_TRIES_MAX = 2

_STORE_ERRORS = (OSError, CorruptDataError, UnknownFormatError)

_logger = structlog.get_logger()


class Leadership:
    """Leadership of one controller.

    Args:
        store: of the lease; None if this controller is alone and always leads.
        holder: decides what to write to the lease.
        lease_s: duration of a lease, in seconds.
        clock: the time.
        begin: called when the lead begins; an exception ends the lead at once.
        end: called when the lead ends, or `begin` failed, with the error for callers.
        check_store: called periodically during the lead.
    """

    def __init__(
        self,
        store: StateStore | None,
        holder: LeaseHolder,
        lease_s: float,
        clock: Clock,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[NotLeadingError], Awaitable[None]],
        check_store: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._holder = holder
        self._lease_s = lease_s
        self._poll_s = lease_s / _POLLS_PER_LEASE
        self._clock = clock
        self._begin = begin
        self._end = end
        self._check_store = check_store
        self._active = False
        self._begun = False
        self._version: str | None = None
        self._turning = asyncio.Lock()
        self._renewed = asyncio.Event()
        self._rest_until = -math.inf
        self._renewing: asyncio.Task[None] | None = None
        self._leading: asyncio.Task[None] | None = None
        self._no_lead: str | None = None
        """Reason why it could not lead although it had the lease, in a sentence; else None."""
        self._no_lease: str | None = None
        """Reason why the last read or write of the lease failed, in a sentence."""

    @property
    def trouble(self) -> str | None:
        """Reason why it neither leads nor sees another leader, in a sentence; None if healthy."""
        return self._no_lead or (None if self.leads else self._no_lease)

    @property
    def leads(self) -> bool:
        """True while this controller leads."""
        return self._active and (self._store is None or self._holder.leads(self._clock.monotonic()))

    def check(self) -> None:
        """Check that this controller leads.

        Raises:
            NotLeadingError: names the leading controller.
        """
        if not self.leads:
            raise self._refusal()

    async def start(self) -> None:
        """Lead, if no other controller does; return when that is decided. If a shared store is unavailable, return,
        too, and retry in the background (`trouble`).

        Raises:
            CorruptDataError, UnknownFormatError, ConfigurationError: the state cannot be used.
            OSError: the same, of a store that is not shared.
        """
        try:
            if self._store is None:
                await self._lead()
                return
            try:
                await self._renew_in_time(self._store)
            except OSError as error:
                self._away(error)
            self._renewing = asyncio.create_task(self._renew_lease(self._store), name="controller-lease")
            if self._holder.leads(self._clock.monotonic()):
                try:
                    await self._lead()
                except OSError as error:
                    await self._give_up(error)
        except BaseException:
            await self.stop()
            raise
        self._leading = asyncio.create_task(self._follow_lease(), name="controller-leadership")

    async def stop(self) -> None:
        """Stop leading, and release the lease so that another controller can lead at once."""
        tasks = [task for task in (self._renewing, self._leading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._begun:
            await self._follow(NotLeadingError("this controller is stopping; ask another one"))
        await self._release()

    # The lease.

    async def _renew_lease(self, store: StateStore) -> None:
        """Renew the lease, or try to get it, periodically."""
        while True:
            mine = self._holder.leads(self._clock.monotonic())
            await asyncio.sleep(self._poll_s * (_RENEWALS_EVERY_POLLS if mine else 1))
            try:
                await self._renew_in_time(store)
            except _STORE_ERRORS as error:
                self._away(error)
            except Exception as error:  # without renewals the lease runs out, which is safe
                _logger.error("the lease cannot be renewed", exc_info=error)
            self._renewed.set()

    def _away(self, error: Exception) -> None:
        """Record that the lease could not be read or written; log only the first failure."""
        if self._no_lease is None:
            _logger.warning("the lease cannot be read or written", reason=_words(error))
        self._no_lease = f"the lease cannot be read or written, a retry is due: {_words(error)}"

    async def _renew_in_time(self, store: StateStore) -> None:
        """Run `_renew_or_acquire` with a time-out; raise TimeoutError if the store does not answer."""
        async with asyncio.timeout(self._lease_s * _RENEWAL_SHARE):
            await self._renew_or_acquire(store)
        if self._no_lease is not None:
            self._no_lease = None
            _logger.info("the lease can be read and written again")

    async def _renew_or_acquire(self, store: StateStore) -> None:
        """Read the lease, and write it if it is free."""
        async with self._turning:
            for _ in range(_TRIES_MAX):  # a conflict may come from an own write that timed out
                stored = await store.read(LEASE)
                lease = None if stored is None else Lease.of(stored.document, store.where(LEASE))
                version = None if stored is None else stored.version
                now = self._clock.monotonic()
                mine = self._holder.found(lease, version, now)
                if now < self._rest_until:
                    return
                if mine is None:
                    self._no_lead = None  # another controller leads; the next lead is a new try
                    return
                with suppress(ConflictError):
                    self._version = await store.write(LEASE, mine.document(), version)
                    self._holder.written(mine, now)
                    return
            self._holder.beaten()

    async def _release(self) -> None:
        """Release the lease at once."""
        async with self._turning:
            released = self._holder.released()
            if self._store is None or released is None:
                return
            try:
                async with asyncio.timeout(self._lease_s * _RENEWAL_SHARE):
                    try:
                        self._version = await self._store.write(LEASE, released.document(), self._version)
                    except ConflictError:  # perhaps by a cancelled renewal that was written anyway
                        self._version = await self._version_of_mine(self._store)
                        self._version = await self._store.write(LEASE, released.document(), self._version)
            except (*_STORE_ERRORS, ConflictError) as error:
                _logger.warning("the lease could not be released", reason=_words(error))

    async def _version_of_mine(self, store: StateStore) -> str:
        """Return the stored version of the lease; raises ConflictError if another controller has it."""
        stored = await store.read(LEASE)
        if stored is None or not self._holder.is_mine(Lease.of(stored.document, store.where(LEASE))):
            raise ConflictError("another controller has the lease")
        return stored.version

    # The lead.

    async def _follow_lease(self) -> None:
        """Lead while the lease is ours."""
        while True:
            self._renewed.clear()
            turned = True
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._renewed.wait()
            except TimeoutError:
                turned = False
            try:
                await self._begin_or_end(turned)
            except Exception as error:  # noqa: BLE001 - one that cannot lead must not keep the lease, whatever it is
                await self._give_up(error)

    async def _begin_or_end(self, turned: bool) -> None:
        """Begin or end the lead, by the lease.

        Args:
            turned: whether the lease was read just now, so that the rest of the store is to be checked, too.
        """
        now = self._clock.monotonic()
        mine = self._holder.leads(now)
        if mine and not self._active:
            await self._lead()
        elif self._active and not mine:
            await self._follow(self._refusal())
        elif self._active and turned:
            try:
                async with asyncio.timeout(self._holder.leads_for_s(now)):
                    await self._check_store()
            except _STORE_ERRORS as error:
                _logger.error("the state cannot be read", reason=_words(error))

    async def _lead(self) -> None:
        self._begun = True
        await self._begin()
        self._active = True
        self._no_lead = None
        if self._holder.lease is not None:
            _logger.warning("this controller leads", turn=self._holder.lease.turn)

    async def _follow(self, refusal: NotLeadingError) -> None:
        if self._active and self._store is not None:
            _logger.warning("this controller does not lead any more")
        self._active = False
        await self._end(refusal)
        self._begun = False

    async def _give_up(self, error: Exception) -> None:
        """Stop leading after an unexpected failure, and give another controller time to begin."""
        self._no_lead = f"this controller cannot lead: {_words(error)}"
        foreseen = isinstance(error, (*_STORE_ERRORS, ConfigurationError))
        _logger.error("this controller cannot lead", reason=_words(error), exc_info=None if foreseen else error)
        # A wrong setting stays wrong until the process restarts.
        rest_s = math.inf if isinstance(error, ConfigurationError) else self._lease_s * _REST_LEASES
        self._rest_until = self._clock.monotonic() + rest_s
        try:
            if self._begun:
                await self._follow(self._refusal())
        except Exception as worse:  # release the lease in any case
            _logger.error("the end of the lead failed", exc_info=worse)
        await self._release()

    def _refusal(self) -> NotLeadingError:
        # Releases without `NotLeadingError` recognize these errors by how their sentences begin.
        leader = self._holder.leader
        if self._active or leader is None:
            return NotLeadingError("no controller leads at this moment; ask again")
        return NotLeadingError(
            f"this controller does not lead; the one at {leader.address} does (admin API: {leader.admin})", leader.admin
        )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
