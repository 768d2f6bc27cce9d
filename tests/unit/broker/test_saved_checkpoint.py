"""Saving what has changed, and all of it now and then: a restart finds the same, whatever happened meanwhile."""

import asyncio

import pytest

from popwheel_broker.core.checkpoint import BEGIN
from popwheel_broker.replication.epochs import EpochHistory
from popwheel_broker.replication.saved_checkpoint import SavedCheckpoint
from popwheel_common.errors import CorruptDataError
from tests.unit.broker.world import FOLDER, World, handles

PATH = FOLDER / "checkpoint"


class Epochs:
    """A file of epochs that needs no saving."""

    history = EpochHistory()

    async def save(self) -> None:
        return


class Saving:
    """A core, and its checkpoint in a file."""

    def __init__(self, changes_bytes_min: int = 0) -> None:
        self.world = World()
        self.world.add_topic("t", 4)
        self.world.add_group("g")
        self.failures: list[Exception] = []
        self.saved = SavedCheckpoint(self.world.disk, PATH, changes_bytes_min, self.failures.append)

    async def settle(self) -> None:
        self.world.flush()

    async def save(self) -> int:
        """Save; how many bytes the file has grown by, or as a negative number how long it is, written anew."""
        before = self.saved._whole_end, self.saved.size_bytes
        await self.saved.save(self.world.core, Epochs(), self.settle)  # type: ignore[arg-type]
        size = self.saved.size_bytes
        return size - before[1] if self.saved._whole_end == before[0] else -size

    def use(self, number: int) -> None:
        """Change something of everything."""
        self.world.put("t", b"%d" % number, queue_id=number % 4)
        given = self.world.pop("g", "t", 1)
        if number % 3:
            self.world.ack("g", "t", *handles(given))
        if number % 5 == 0:
            self.world.add_topic(f"t{number}")
            self.world.put(f"t{number}", b"x")
            self.world.pop("g", f"t{number}")
        if number % 10 == 5:
            self.world.delete_topic(f"t{number}")

    def rows(self) -> set[tuple[object, ...]]:
        self.world.flush()
        return {tuple(map(str, row)) for row in self.world.core.rows()}

    def restart(self) -> None:
        self.world.saved = self.world.disk.contents(PATH)
        self.world.crash("power")


async def test_after_each_save_a_restart_finds_the_same() -> None:
    saving = Saving()
    grown: list[int] = []
    for number in range(40):
        saving.use(number)
        grown.append(await saving.save())
        if number % 4 == 0:
            before = saving.rows()
            saving.restart()
            assert saving.rows() == before
            saving.saved.load(saving.world.core.store.log)
            saving.world.save = lambda: None  # type: ignore[method-assign]
    assert sum(each > 0 for each in grown) > 10 and sum(each < 0 for each in grown) > 3


async def test_a_save_writes_what_changed_and_not_what_is_there() -> None:
    saving = Saving(1 << 20)
    for number in range(1000):
        saving.world.core.store.ensure_queue((f"many{number}", 0))
    whole = -await saving.save()
    saving.world.put("t", b"1")
    assert 0 < await saving.save() < 600 < whole - BEGIN


async def test_what_changes_while_all_is_written_anew_is_in_it() -> None:
    saving = Saving()
    for number in range(6000):
        saving.world.core.store.ensure_queue((f"many{number}", 0))
    saving_now = asyncio.create_task(saving.save())
    for number in range(40):
        saving.use(number)
        await asyncio.sleep(0)
    assert await saving_now < 0
    before = saving.rows()
    saving.restart()
    assert saving.rows() == before


async def test_after_a_save_that_broke_off_all_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    saving = Saving(1 << 20)
    await saving.save()
    saving.use(0)

    async def never() -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(saving, "settle", never)
        with pytest.raises(asyncio.CancelledError):
            await saving.save()
    saving.use(1)
    assert await saving.save() < 0
    before = saving.rows()
    saving.restart()
    assert saving.rows() == before


async def test_rot_of_what_was_saved_last_is_not_taken_for_a_save_that_never_finished() -> None:
    saving = Saving(1 << 20)
    await saving.save()
    begin = saving.saved.size_bytes
    saving.use(0)
    await saving.save()
    saving.world.disk.crash("power")
    for at in (begin, begin + 9, saving.saved.size_bytes - 1):
        saving.world.disk.flip_bit(PATH, 8 * at)
        with pytest.raises(CorruptDataError, match="damaged"):
            saving.saved.load(saving.world.core.store.log)
        saving.world.disk.flip_bit(PATH, 8 * at)
    saving.saved.load(saving.world.core.store.log)
    assert not saving.failures
