"""The lease is kept while the lead begins, and let go of by whoever cannot lead, whatever the reason."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.store.leadership import Leadership
from popwheel_controller.store.lease import LeaseHolder
from popwheel_controller.store.state_store import LEASE, Document
from tests.unit.controller.fake_replicas import until
from tests.unit.controller.memory_store import MemoryStore

LEASE_S = 0.4

Step = Callable[[], Awaitable[None]]


class Candidate:
    """One that would lead, and notes what it is asked to do."""

    def __init__(
        self, store: MemoryStore, name: str, begin: Step | None = None, check_store: Step | None = None
    ) -> None:
        self.done: list[str] = []
        self._begin_step = begin
        self.leadership = Leadership(
            store,
            LeaseHolder(name, f"{name}:1", f"{name}:2", LEASE_S),
            LEASE_S,
            SystemClock(),
            self._begin,
            self._end,
            check_store or _nothing,
        )

    async def _begin(self) -> None:
        self.done.append("begin")
        if self._begin_step is not None:
            await self._begin_step()
        self.done.append("begun")

    async def _end(self, refusal: StatusError) -> None:
        assert refusal.code == Code.HA_NOT_AVAILABLE
        self.done.append("end")

    async def kill(self) -> None:
        """It does nothing any more, and gives nothing back."""
        for task in (self.leadership._renewing, self.leadership._leading):
            assert task is not None
            task.cancel()


async def _nothing() -> None:
    pass


async def _slow() -> None:
    await asyncio.sleep(2 * LEASE_S)


@pytest.mark.parametrize("before", [False, True], ids=["at the start", "after another"])
async def test_taking_over_may_last_longer_than_the_lease(before: bool) -> None:
    """Of two that both need so long the first goes on to hold the lease, or nobody would ever lead."""
    store = MemoryStore()
    first = Candidate(store, "first")
    if before:
        await first.leadership.start()
    one, two = Candidate(store, "one", _slow), Candidate(store, "two", _slow)
    starting = [asyncio.create_task(each.leadership.start()) for each in (one, two)]
    if before:
        await asyncio.gather(*starting)
        await first.kill()
    await until(lambda: one.leadership.leads or two.leadership.leads, 6 * LEASE_S)
    await asyncio.gather(*starting)
    await asyncio.sleep(2 * LEASE_S)
    assert sorted(each.done for each in (one, two)) == [[], ["begin", "begun"]]
    for each in (one, two):
        await each.leadership.stop()


async def test_who_cannot_begin_leaves_the_lease_to_another() -> None:
    store = MemoryStore()

    async def broken() -> None:
        raise ZeroDivisionError("the first disk")

    first, bad = Candidate(store, "first"), Candidate(store, "bad", broken)
    await first.leadership.start()
    await bad.leadership.start()
    await first.kill()
    await until(lambda: bad.done == ["begin", "end"])
    assert bad.leadership.trouble == "this controller cannot lead: the first disk"
    stored = await store.read(LEASE)
    assert stored is not None
    good = Candidate(store, "good")
    await good.leadership.start()
    await until(lambda: good.leadership.leads, LEASE_S)
    await asyncio.sleep(3 * LEASE_S)
    assert (good.leadership.leads, bad.done) == (True, ["begin", "end"])
    assert bad.leadership.trouble is None  # one that waits for another to fail is well
    with pytest.raises(StatusError, match="good:1"):
        bad.leadership.check()
    await good.leadership.stop()
    await until(lambda: bad.done == ["begin", "end"] * 2)  # it tries again when nobody else does
    with pytest.raises(StatusError, match="no controller leads"):
        bad.leadership.check()
    await bad.leadership.stop()


async def test_what_nobody_foresaw_ends_the_lead_and_the_next_one_begins() -> None:
    store = MemoryStore()
    broken = True

    async def check_store() -> None:
        if broken:
            raise IndexError

    one = Candidate(store, "one", check_store=check_store)
    await one.leadership.start()
    assert one.leadership.leads
    await until(lambda: one.done == ["begin", "begun", "end"])
    assert (one.leadership.leads, one.leadership.trouble) == (False, "this controller cannot lead: IndexError")
    broken = False
    await until(lambda: one.leadership.leads)
    assert (one.done[3:], one.leadership.trouble) == (["begin", "begun"], None)
    await one.leadership.stop()


class _WritesTwice(MemoryStore):
    """Makes the next change twice if told so, as if by something on the way here; only the second one is answered."""

    twice = False

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        if self.twice:
            self.twice = False
            await super().write(name, document, expected)
        return await super().write(name, document, expected)


async def test_a_renewal_that_was_stored_twice_does_not_end_the_lead() -> None:
    store = _WritesTwice()
    one = Candidate(store, "one")
    await one.leadership.start()
    store.twice = True
    await until(lambda: not store.twice)
    await asyncio.sleep(LEASE_S)
    assert (one.leadership.leads, one.done) == (True, ["begin", "begun"])
    await one.leadership.stop()


async def test_a_renewal_that_was_called_off_and_stored_all_the_same_keeps_no_lease() -> None:
    store = MemoryStore()
    one = Candidate(store, "one")
    await one.leadership.start()
    stored = await store.read(LEASE)
    assert stored is not None
    await store.write(LEASE, stored.document, stored.version)  # nobody told the one who had called it off
    await one.leadership.stop()
    left = await store.read(LEASE)
    assert left is not None and left.document["holder"] == ""


async def test_who_starts_while_the_store_is_away_says_so_and_tries_again() -> None:
    """A controller ended for good because the API server answered 429 for a moment."""
    store = MemoryStore()
    store.away = True
    one = Candidate(store, "one")
    await one.leadership.start()
    assert (one.leadership.leads, "the store is away" in (one.leadership.trouble or "")) == (False, True)
    store.away = False
    await until(lambda: one.leadership.leads)
    assert one.leadership.trouble is None
    store.away = True
    await until(lambda: one.leadership.trouble is not None)  # it leads no more, and nobody else can
    assert "the store is away" in (one.leadership.trouble or "")
    store.away = False
    await until(lambda: one.leadership.leads and one.leadership.trouble is None)
    await one.leadership.stop()


async def test_who_starts_when_the_store_goes_away_in_the_middle_tries_again() -> None:
    away = True

    async def read_state() -> None:
        if away:
            raise OSError("the API server answers 503")

    one = Candidate(MemoryStore(), "one", read_state)
    await one.leadership.start()
    assert one.leadership.trouble == "this controller cannot lead: the API server answers 503"
    away = False
    await until(lambda: one.leadership.leads)
    assert one.leadership.trouble is None
    await one.leadership.stop()
