"""Files of a replica that are older than its log: they were restored, or their replacement was lost."""

from popwheel_broker.replication.superblock import NAME
from tests.unit.broker.group_world import FOLDER, group_of


async def test_epochs_that_are_older_than_the_checkpoint_are_made_again_from_the_log() -> None:
    async with group_of(2) as world:
        first, _ = world.members
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"of the first epoch")
        old = first.disk.files()[FOLDER / NAME]
        await world.lead(0)
        await world.in_sync(0, 1)
        await world.put(b"of the second epoch")
        epochs = list(first.alive.files.epochs)
        await first.stop()
        file = first.disk.open(FOLDER / NAME)
        file.truncate(0)
        file.write(0, [old])
        file.close()
        await first.start()
        assert len(epochs) == 2
        assert list(first.alive.files.epochs) == epochs, (
            "or it finds a wrong place where another log parts from its own"
        )


async def test_the_progress_that_release_0_1_0_had_of_its_master_is_removed() -> None:
    async with group_of(2) as world:
        _, second = world.members
        await second.stop()
        file = second.disk.open(FOLDER / "mastercheckpoint")
        file.write(0, [b"of an older release"])
        file.close()
        await second.start()
        assert not second.disk.exists(FOLDER / "mastercheckpoint")
