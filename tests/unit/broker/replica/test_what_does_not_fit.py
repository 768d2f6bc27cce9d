"""What a follower has, or is sent, that does not fit: an epoch or volume of its own, a record that it cannot fold."""

import asyncio

import pytest

from popwheel_broker.replication.log_receiver import _to_its_end
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import EpochStart, ReplicateProgress
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import REPLICATE
from tests.unit.broker.replica.replicas import GROUP, World, in_world


def test_a_replica_that_led_without_writing_anything_follows_who_goes_on_with_the_epoch_before() -> None:
    async def story(world: World) -> None:
        first = await world.begin()
        second = world.replicas[1]
        first.write(5)
        await world.until_equal()
        same = first.log.end_position
        world.link(1, 0).hold()
        first.write(7)
        await second.stop()
        await first.stop()
        second.lead(world.controller.elect(1))
        await second.stop()
        world.link(1, 0).release()
        state = world.controller.elect(0)  # an operator's wish
        first.lead(state)
        first.write(3)
        second.follow(0, state.epoch)
        await world.until_equal()
        assert second.log.cuts == [same]
        assert second.statistics.cut_bytes == 0
        assert second.log.outline() == first.log.outline()
        assert not second.failures

    in_world(story)


def test_a_slave_that_cannot_make_anew_what_was_folded_says_so_and_ends() -> None:
    async def story(world: World) -> None:
        master, slave = world.replicas
        slave.log.epochs.begin(1, 0)
        slave.log.write(5)
        master.lead(world.controller.elect(0))

        async def cut(position: int) -> None:
            raise CorruptDataError("a delivery is damaged")

        slave.log.cut = cut  # type: ignore[method-assign]
        slave.follow(0, 2)
        await world.until(lambda: bool(slave.failures))

    in_world(story)


@pytest.mark.parametrize("kind", [CorruptDataError, StatusError, ValueError])
def test_a_slave_that_cannot_fold_a_good_record_says_so_and_ends(kind: type[Exception]) -> None:
    async def story(world: World) -> None:
        master = await world.begin()
        slave = world.replicas[1]

        def does_not_fit(position: int) -> None:
            if position > 0:
                raise (
                    StatusError(Code.TOO_MANY_REQUESTS, "no more queues")
                    if kind is StatusError
                    else kind("it does not fit")
                )

        slave.log.commit = does_not_fit  # type: ignore[method-assign]
        master.write(1)
        await world.until(lambda: bool(slave.failures))
        assert isinstance(slave.failures[0], kind)
        assert not slave.log.mended

    in_world(story)


def test_what_a_stranger_has_said_already_when_it_is_found_out_does_not_bring_it_back() -> None:
    async def story(world: World) -> None:
        master = world.replicas[0]
        master.lead(world.controller.state)
        end = master.write(5)
        assert master.master is not None and master.members is not None
        channel = LocalChannel(master.service, clock=world.clock)
        stream = channel.open(REPLICATE)
        first = ReplicateProgress(group=GROUP, replica=1, epoch=1, epochs=[EpochStart(epoch=1)], end_position=end)
        first.identity = b"identity"
        await stream.send([first])
        await asyncio.sleep(0.01)
        assert master.master.followers == 1
        await stream.send([ReplicateProgress(end_position=end, synced_position=end)])  # there, and not read yet
        state = BrokerGroup()
        state.CopyFrom(world.controller.state)
        state.version += 1
        state.replicas.add(number=1, address="replica-1:1", identity=b"another")
        world.controller.state = state
        master.master.decided(state)
        await asyncio.sleep(1)
        assert master.members.members == {0}
        assert world.controller.asked == []
        assert list(master.members.lags(world.clock.steady_ms())) == []
        await channel.close()

    in_world(story)


async def test_what_was_begun_is_done_to_its_end_though_it_is_called_off_twice() -> None:
    """A stop that is stopped itself calls off once more: nothing may be cut behind its back."""
    go_on, is_done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        is_done.set()

    task = asyncio.create_task(_to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_done.is_set()
