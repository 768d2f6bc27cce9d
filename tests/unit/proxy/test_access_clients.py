"""A client id is its user's: what nobody else can take, change or end under it while access is checked."""

from pathlib import Path

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.service import ClientStream
from tests.unit.proxy.test_access import ORDERS, Rules, change, denials, document, guarded, signed
from tests.unit.proxy.world import World, message, poll_request, turns, until

TelemetryStream = ClientStream[pb.TelemetryCommand, pb.TelemetryCommand]
PLEDGED: Rules = [{"topic": "pledged", "allow": ["publish"]}]
HALF = message("pledged", message_type=d.MessageType.TRANSACTION)


async def open_telemetry(w: World, user: str, *topics: str) -> tuple[TelemetryStream, d.Status]:
    """A producer's Telemetry stream, and what its settings were answered."""
    stream = w.channel.open(protocol.TELEMETRY, metadata=signed(w, user))
    publishing = d.Publishing(topics=[d.Resource(name=topic) for topic in topics])
    settings = d.Settings(client_type=ClientType.PRODUCER, publishing=publishing)
    await stream.send((pb.TelemetryCommand(settings=settings),))
    answer = await stream.receive()
    assert answer is not None
    return stream, answer.status


async def beat(w: World, user: str) -> int:
    request = pb.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER)
    return (await w.channel.call(protocol.HEARTBEAT, request, metadata=signed(w, user))).status.code


async def say_goodbye(w: World, user: str) -> int:
    request = pb.NotifyClientTerminationRequest()
    return (await w.channel.call(protocol.NOTIFY_CLIENT_TERMINATION, request, metadata=signed(w, user))).status.code


async def check(w: World) -> None:
    """A broker has somebody asked about a half message."""
    check = broker.TransactionCheck(topic="pledged", transaction_id="id", message=HALF.SerializeToString())
    await w.broker.checking[0].send((check,))


async def commands(stream: TelemetryStream, w: World) -> list[str]:
    """Return what was sent on a stream after its settings, until it has nothing more for a while."""
    found: list[str] = []

    async def read() -> None:
        while (command := await stream.receive()) is not None:
            found.append(command.WhichOneof("command") or "")

    task = w.app._background.start(read())
    await turns(50)
    task.cancel()
    return [each for each in found if each != "settings"]


async def pledged_world(w: World) -> None:
    w.controller.add_topic("pledged", TopicType.TRANSACTION)
    await until(lambda: "pledged" in w.app.view.topics)


@pytest.mark.parametrize("is_first", [True, False])
async def test_half_messages_go_to_streams_of_users_that_may_publish_only(tmp_path: Path, is_first: bool) -> None:
    """The seen fault: whoever opened a stream last under a client id was sent its half messages."""
    async with guarded(tmp_path) as (w, file):
        await pledged_world(w)
        await change(w, file, document(owner=PLEDGED, thief=[], orders=ORDERS))
        if is_first:  # a client id that nobody has yet is anybody's
            thief = w.channel.open(protocol.TELEMETRY, metadata=signed(w, "thief"))
            await turns()
            owner, answer = await open_telemetry(w, "owner", "pledged")
        else:
            owner, answer = await open_telemetry(w, "owner", "pledged")
            thief, refused = await open_telemetry(w, "thief")
            assert refused.code == Code.FORBIDDEN
        assert answer.code == Code.OK
        await until(lambda: w.broker.producer_topics == {"pledged"})
        await w.send(HALF, metadata=signed(w, "owner"))
        for _ in range(3):
            await check(w)
        assert await commands(owner, w) == ["recover_orphaned_transaction_command"] * 3
        if is_first:
            assert await commands(thief, w) == []
        thief.cancel()
        owner.cancel()


async def test_half_messages_of_one_user_make_nobody_else_a_producer(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        await pledged_world(w)
        await change(w, file, document(owner=PLEDGED, other=PLEDGED))
        stream, answer = await open_telemetry(w, "other")
        assert answer.code == Code.OK
        assert (await w.send(HALF, metadata=signed(w, "owner"))).status.code == Code.OK
        await turns()
        assert w.broker.producer_topics == set()
        await w.send(HALF, metadata=signed(w, "other"))
        await until(lambda: w.broker.producer_topics == {"pledged"})
        stream.cancel()


async def test_who_may_publish_no_longer_is_asked_no_more(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        await pledged_world(w)
        await change(w, file, document(owner=PLEDGED))
        stream, _ = await open_telemetry(w, "owner", "pledged")
        await until(lambda: w.broker.producer_topics == {"pledged"})
        await change(w, file, document(owner=[], other=PLEDGED))
        await check(w)
        assert await commands(stream, w) == []
        assert w.broker.producer_topics == set()
        stream.cancel()


async def test_nobody_speaks_for_anothers_client(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        await change(w, file, document(orders=ORDERS, thief=ORDERS))
        await w.send(message(), metadata=signed(w))
        held = await w.receive(poll_request(auto_renew=True), signed(w))
        assert len(held.messages) == 1
        assert await beat(w, "orders") == Code.OK
        assert await beat(w, "thief") == Code.FORBIDDEN
        assert await say_goodbye(w, "thief") == Code.FORBIDDEN
        poll = await w.receive(poll_request(wait_s=0), signed(w, "thief"))
        assert poll.code == Code.FORBIDDEN
        assert "in use by another user" in poll.status.message
        sync = pb.SyncLiteSubscriptionRequest(topic=d.Resource(name="orders"), group=d.Resource(name="group"))
        refused = await w.channel.call(protocol.SYNC_LITE_SUBSCRIPTION, sync, metadata=signed(w, "thief"))
        assert refused.status.code == Code.FORBIDDEN
        _, status = await open_telemetry(w, "thief")
        assert status.code == Code.FORBIDDEN
        await turns()
        assert w.broker.asked("Release") == []
        assert w.metric("popwheel_proxy_renewed_handles") == 1
        for method in ("Heartbeat", "NotifyClientTermination", "ReceiveMessage", "SyncLiteSubscription", "Telemetry"):
            assert denials(w, method, "foreign_client_id") == 1, method
        assert await say_goodbye(w, "orders") == Code.OK
        await until(lambda: len(w.broker.asked("Release")) == 1)
        assert await beat(w, "thief") == Code.OK, "nobody has the id any more"


async def test_a_client_id_outlives_no_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        await w.send(message(), metadata=signed(w))
        await w.receive(poll_request(auto_renew=True), signed(w))
        await change(w, file, document(next=ORDERS))
        assert await beat(w, "next") == Code.OK
        await until(lambda: len(w.broker.asked("Release")) == 1)
