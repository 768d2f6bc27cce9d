"""A data folder belongs to one cluster: what it says of that, and whom it serves."""

import asyncio
import random

import pytest

from popwheel_broker.options import BrokerOptions
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import InconsistentClusterIdError
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Cluster, ClusterUpdate
from popwheel_rpc import methods
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.served_broker import Broker, running

OURS = "popwheel-00000000000000aa"
THEIRS = "popwheel-00000000000000bb"


def learn(broker: Broker, version: int, cluster_id: str) -> None:
    broker.app.roles.group_changed(
        BrokerGroup(name="broker-0", version=version, epoch=1, master=0, sync_state_set=[0], cluster_id=cluster_id)
    )


async def until_kept(broker: Broker, version: int) -> None:
    """Wait until the superblock has a version of the group's state."""
    superblock = broker.app.files.superblock
    while BrokerGroup.FromString(superblock.contents.group).version < version:
        await asyncio.sleep(0)


async def test_a_folder_keeps_the_cluster_that_it_was_registered_in() -> None:
    disk = MemoryDisk(random.Random(0), 1 << 30)
    async with running(disk) as broker:
        assert broker.app.report("one:1").cluster_id == "", "a folder of an earlier release says nothing"
        learn(broker, 2, OURS)
        await until_kept(broker, 2)
        assert broker.app.report("one:1").cluster_id == OURS
        learn(broker, 3, "")  # of a controller of an earlier release
        await until_kept(broker, 3)
        assert broker.app.report("one:1").cluster_id == OURS
    again = Broker(disk, BrokerOptions(), ManualClock())
    await again.app.start()
    assert again.app.report("one:1").cluster_id == again.app.view.cluster_id == OURS
    await again.app.stop()


def test_a_change_without_an_id_leaves_the_id_that_is_known() -> None:
    """A record of a controller of an earlier release says none; then callers of other clusters would be served."""
    view = ClusterView()
    view.apply(ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="ours", id=OURS)))
    view.apply(ClusterUpdate(version=2, cluster=Cluster(name="ours")))
    assert (view.version, view.cluster_id) == (2, OURS)
    with pytest.raises(InconsistentClusterIdError):
        view.apply(ClusterUpdate(version=3, cluster=Cluster(name="ours", id=THEIRS)))


async def test_a_broker_serves_no_caller_of_another_cluster() -> None:
    """Be it a proxy or another service that has an address of former times."""
    async with running() as broker:
        request = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=1, invisible_ms=60_000)
        await broker.channel.call(methods.POP, request, metadata={"popwheel-cluster": THEIRS})  # it has none yet
        learn(broker, 2, OURS)
        await until_kept(broker, 2)
        await broker.put(b"1")
        with pytest.raises(InconsistentClusterIdError, match=OURS):
            await broker.channel.call(methods.POP, request, metadata={"popwheel-cluster": THEIRS})
        with pytest.raises(InconsistentClusterIdError):
            await broker.channel.open(methods.NOTIFY, metadata={"popwheel-cluster": THEIRS}).receive()
        found = await broker.channel.call(methods.POP, request, metadata={"popwheel-cluster": OURS})
        assert len(found.handles) == 1
