"""Brokers and proxies of another cluster are refused by name, and a state that was lost takes its own brokers back."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from popwheel_common.contract.cluster_id import new_cluster_id
from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaStatusRequest, ReplicaStatusResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    ClusterUpdate,
    DescribeBrokerGroupRequest,
    EnsureTopicRequest,
    ReplicaReport,
    TopicType,
    WatchRequest,
)
from popwheel_controller.app import ControllerApp
from popwheel_controller.broker_groups.probe import AnotherThereError, ReplicaProbe
from popwheel_controller.cluster.admission import Admission
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import DESCRIBE_BROKER_GROUP, ENSURE_TOPIC, REGISTER_BROKER, REPLICA_STATUS, WATCH
from popwheel_rpc.service import Call, Service
from tests.unit.controller.test_app import make_app

OTHER = "popwheel-00000000000000aa"


@asynccontextmanager
async def leading(folder: Path, **options: object) -> AsyncIterator[tuple[ControllerApp, LocalChannel]]:
    app = make_app(folder, **options)
    await app.start()
    channel = LocalChannel(app.service)
    try:
        yield app, channel
    finally:
        await channel.close()
        await app.stop()


async def register(channel: LocalChannel, cluster_id: str = "", group: str = "b-0") -> BrokerGroup:
    """Return what a replica reads first when it registers."""
    stream = channel.open(REGISTER_BROKER)
    try:
        await stream.send([ReplicaReport(group=group, address="one:1", identity=b"volume", cluster_id=cluster_id)])
        reported = await stream.receive()
        assert reported is not None
        return reported
    finally:
        stream.cancel()


async def watched(channel: LocalChannel, cluster_id: str = "") -> ClusterUpdate:
    """Return what a proxy reads first."""
    stream = channel.open(WATCH)
    try:
        await stream.send([WatchRequest(process="p-0", kind=WatchRequest.PROXY, cluster_id=cluster_id)])
        reported = await stream.receive()
        assert reported is not None
        return reported
    finally:
        stream.cancel()


async def test_a_cluster_gets_its_id_with_its_first_broker_and_keeps_it(tmp_path: Path) -> None:
    async with leading(tmp_path) as (app, channel):
        assert app.state.id == ""
        first = await register(channel)
        assert first.cluster_id == app.state.id == new_cluster_id("popwheel", app.state.receipt_key)
        assert (await register(channel, group="b-1")).cluster_id == first.cluster_id
        assert (await watched(channel)).cluster.id == first.cluster_id
    async with leading(tmp_path) as (app, channel):
        assert app.state.id == first.cluster_id
        assert (await register(channel, first.cluster_id)).cluster_id == first.cluster_id


async def test_a_broker_of_another_cluster_is_refused_by_name(tmp_path: Path) -> None:
    async with leading(tmp_path) as (app, channel):
        ours = (await register(channel)).cluster_id
        with pytest.raises(InconsistentClusterIdError) as refused:
            await register(channel, OTHER, "b-9")
        assert refused.value.message.startswith("INCONSISTENT_CLUSTER_ID: replica 0 of b-9 belongs to")
        assert OTHER in refused.value.message and ours in refused.value.message
        assert "broker.controller" in refused.value.message
        assert "b-9" not in app.state.brokers and "b-9" not in app.overseer.names()


async def test_a_process_that_belongs_to_another_cluster_watches_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path) as (_, channel):
        ours = (await register(channel)).cluster_id
        assert (await watched(channel, ours)).cluster.id == ours
        with pytest.raises(InconsistentClusterIdError, match="the proxy p-0 belongs to"):
            await watched(channel, OTHER)


async def test_a_state_that_was_lost_takes_over_the_id_of_its_brokers(tmp_path: Path) -> None:
    """It is made anew without one, so that the first of them gives it back; others are refused as before."""
    async with leading(tmp_path) as (app, channel):
        await watched(channel, OTHER)  # its proxies go on meanwhile
        assert (await register(channel, OTHER)).cluster_id == OTHER == app.state.id
        assert (await register(channel, group="empty")).cluster_id == OTHER
        with pytest.raises(InconsistentClusterIdError):
            await register(channel, "popwheel-00000000000000bb", "b-2")
    async with leading(tmp_path) as (app, channel):
        assert app.state.id == OTHER


async def test_a_cluster_of_another_name_takes_over_no_id(tmp_path: Path) -> None:
    async with leading(tmp_path, cluster_name="billing") as (app, channel):
        with pytest.raises(InconsistentClusterIdError, match="this is the cluster billing, which has no broker yet"):
            await register(channel, OTHER)
        with pytest.raises(InconsistentClusterIdError):
            await watched(channel, OTHER)
        assert app.state.id == ""
        assert (await register(channel)).cluster_id.startswith("billing-")


async def test_what_watches_is_notified_when_the_cluster_gets_its_id(tmp_path: Path) -> None:
    async with leading(tmp_path) as (_, channel):
        stream = channel.open(WATCH)
        await stream.send([WatchRequest(process="p-0")])
        snapshot = await stream.receive()
        assert snapshot is not None and snapshot.cluster.id == ""
        ours = (await register(channel)).cluster_id
        update = await stream.receive()
        assert update is not None and not update.snapshot and update.cluster.id == ours
        assert update.cluster.receipt_key == snapshot.cluster.receipt_key
        stream.cancel()


async def test_calls_that_name_another_cluster_change_nothing(tmp_path: Path) -> None:
    async with leading(tmp_path) as (app, channel):
        ours = (await register(channel)).cluster_id
        request = EnsureTopicRequest(name="orders", type=TopicType.MIXED)
        with pytest.raises(InconsistentClusterIdError, match=ours):
            await channel.call(ENSURE_TOPIC, request, metadata={"popwheel-cluster": OTHER})
        with pytest.raises(InconsistentClusterIdError):
            await channel.call(
                DESCRIBE_BROKER_GROUP, DescribeBrokerGroupRequest(group="b-0"), metadata={"popwheel-cluster": OTHER}
            )
        assert "orders" not in app.state.topics
        await channel.call(ENSURE_TOPIC, request, metadata={"popwheel-cluster": ours})


async def test_what_is_no_id_is_refused_and_names_no_cluster(tmp_path: Path) -> None:
    async with leading(tmp_path) as (app, channel):
        for text in ("x" * 1000, "popwheel", "popwheel-XYZ", "pop wheel-00000000000000aa"):
            with pytest.raises(StatusError) as refused:
                await register(channel, text)
            assert refused.value.code == Code.BAD_REQUEST
        assert app.state.id == ""


async def test_a_state_of_an_earlier_release_gets_its_id_from_the_first_broker(tmp_path: Path) -> None:
    async with leading(tmp_path) as (app, channel):
        await channel.call(ENSURE_TOPIC, EnsureTopicRequest(name="orders", type=TopicType.MIXED))
        text = (tmp_path / "controller" / "cluster.json").read_text()
    assert "id" not in json.loads(text)["state"], "a state without brokers is as earlier releases know it"
    async with leading(tmp_path) as (app, channel):
        assert (await register(channel)).cluster_id == app.state.id != ""
        assert list(app.state.topics) == ["orders"]


async def test_a_process_of_another_cluster_at_a_replicas_address_is_not_that_replica() -> None:
    async def refuse(call: Call, request: ReplicaStatusRequest) -> ReplicaStatusResponse:
        raise error

    service = Service()
    service.unary(REPLICA_STATUS, refuse)
    probe = ReplicaProbe(lambda info: LocalChannel(service), 1.0)
    error: StatusError = InconsistentClusterIdError("INCONSISTENT_CLUSTER_ID: two clusters")
    assert await probe.finds("b-0", 0, "one:1") is False
    with pytest.raises(AnotherThereError):
        await probe.check(ReplicaReport(group="b-0", address="one:1"))
    error = StatusError(Code.HA_NOT_AVAILABLE, "its term is about to begin")
    assert await probe.finds("b-0", 0, "one:1") is True


async def test_a_change_whose_caller_has_gone_leaves_no_error_behind() -> None:
    """It is carried out all the same, and may fail."""

    class Keeper:
        state = ClusterState("test", bytes(32))

        async def change(self, decision: object) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise StatusError(Code.INTERNAL_SERVER_ERROR, "the store is away") from None

    def leads_no_more() -> None:
        raise StatusError(Code.HA_NOT_AVAILABLE, "another one leads")

    left: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: left.append(context))
    looks = iter((lambda: None, leads_no_more))
    admission = Admission(Keeper(), lambda: None, lambda: next(looks)())  # type: ignore[arg-type]
    with pytest.raises(StatusError, match="another one leads"):
        await admission.admit("", "the broker b1", "")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert left == []
