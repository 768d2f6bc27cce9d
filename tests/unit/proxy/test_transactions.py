"""Transactions among fakes: half messages on their way, their ends, and which producer is asked."""

import pytest
from google.protobuf.duration_pb2 import Duration

from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Code, MessageType
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.session import producer_book as book_module
from popwheel_proxy.session import telemetry
from popwheel_proxy.session.producer_book import Producer, ProducerBook
from popwheel_rpc.service import ClientStream
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.world import CLIENT, World, message, until, world

OTHER = {**CLIENT, "x-mq-client-id": "client-2"}
TelemetryStream = ClientStream[pb.TelemetryCommand, pb.TelemetryCommand]


def half(topic: str = "mixed", **more: object) -> d.Message:
    return message(topic, **{"message_type": MessageType.TRANSACTION, **more})  # type: ignore[arg-type]


async def add_topics(w: World) -> None:
    w.controller.add_topic("pledged", TopicType.TRANSACTION)
    w.controller.add_topic("mixed", TopicType.MIXED)
    w.controller.add_topic("plain", TopicType.NORMAL)
    await until(lambda: {"pledged", "mixed", "plain"} <= w.app.view.topics.keys())


def runs_of(w: World) -> list[MessageRun]:
    return [run for request in w.broker.asked("Put") for run in request]  # type: ignore[attr-defined]


async def end(
    w: World, transaction_id: str, resolution: int = d.COMMIT, message_id: str = "", topic: str = "mixed"
) -> d.Status:
    request = pb.EndTransactionRequest(
        topic=d.Resource(name=topic),
        transaction_id=transaction_id,
        message_id=message_id,
        resolution=resolution,  # type: ignore[arg-type]
    )
    answer = await w.channel.call(protocol.END_TRANSACTION, request, metadata=CLIENT)
    return answer.status


async def produce(w: World, *topics: str, metadata: dict[str, str] = CLIENT) -> TelemetryStream:
    """A producer's Telemetry stream; its settings are answered."""
    stream = w.channel.open(protocol.TELEMETRY, metadata=metadata)
    publishing = d.Publishing(topics=[d.Resource(name=topic) for topic in topics])
    await stream.send(
        (pb.TelemetryCommand(settings=d.Settings(client_type=ClientType.PRODUCER, publishing=publishing)),)
    )
    answer = await stream.receive()
    assert answer is not None
    assert answer.status.code == Code.OK
    return stream


async def asked_of(stream: TelemetryStream) -> pb.RecoverOrphanedTransactionCommand:
    while (command := await stream.receive()) is not None:
        if command.HasField("recover_orphaned_transaction_command"):
            return command.recover_orphaned_transaction_command
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("topic", ["mixed", "pledged"])
async def test_a_half_message_goes_with_the_time_of_its_first_check(topic: str) -> None:
    async with world() as w:
        await add_topics(w)
        own_time = half(topic, message_id="own", orphaned_transaction_recovery_duration=Duration(seconds=9))
        for sent in (half(topic), own_time):
            answer = await w.send(sent)
            (entry,) = answer.entries
            assert (answer.status.code, entry.transaction_id in w.broker.halves) == (Code.OK, True)
        assert [list(run.times_ms) for run in runs_of(w)] == [[0], [9000]]
        assert w.broker.topics == {}


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (half("plain"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (half(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (half(priority=1), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (half(lite_topic="l"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (half(delivery_timestamp={"seconds": 5}), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (half(orphaned_transaction_recovery_duration=Duration(seconds=3601)), Code.BAD_REQUEST),
        (half(orphaned_transaction_recovery_duration=Duration(seconds=-1)), Code.BAD_REQUEST),
        (message("pledged"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_what_breaks_a_rule_is_refused(sent: d.Message, code: int) -> None:
    async with world() as w:
        await add_topics(w)
        assert (await w.send(sent)).status.code == code
        assert w.broker.asked("Put") == []


async def test_messages_of_one_request_go_by_their_kinds() -> None:
    async with world() as w:
        await add_topics(w)
        later = message("mixed", message_id="l", message_type=MessageType.DELAY, delivery_timestamp={"seconds": 5})
        sent = [half(message_id="a"), message("mixed", message_id="n"), half(message_id="b"), later]
        answer = await w.send(*sent)
        assert answer.status.code == Code.OK
        ids = [entry.transaction_id for entry in answer.entries]
        assert [identity in w.broker.halves for identity in ids] == [True, False, True, False]
        assert w.broker.halves[ids[2]].system_properties.message_id == "b"
        assert answer.entries[3].recall_handle


async def test_a_broker_that_gives_no_transaction_id_has_not_done_it() -> None:
    async with world() as w:
        await add_topics(w)
        w.broker.put_results = [PutResult(Code.OK)]
        assert (await w.send(half())).status.code == Code.INTERNAL_SERVER_ERROR


async def test_ends_go_to_the_broker_that_holds_the_half_message() -> None:
    async with world() as w:
        await add_topics(w)
        (entry,) = (await w.send(half())).entries
        assert (await end(w, entry.transaction_id, d.COMMIT, entry.message_id)).code == Code.OK
        assert (await end(w, entry.transaction_id, d.ROLLBACK)).code == Code.OK
        asked = [each for each in w.broker.asked("EndTransaction") if isinstance(each, broker.EndTransactionRequest)]
        assert [each.commit for each in asked] == [True, False]
        assert {(each.topic, each.transaction_id) for each in asked} == {("mixed", entry.transaction_id)}


async def test_who_does_not_know_is_answered_and_changes_nothing() -> None:
    async with world() as w:
        await add_topics(w)
        (entry,) = (await w.send(half())).entries
        assert (await end(w, entry.transaction_id, d.TRANSACTION_RESOLUTION_UNSPECIFIED)).code == Code.OK
        assert (await end(w, entry.transaction_id, 77)).code == Code.BAD_REQUEST
        assert w.broker.asked("EndTransaction") == []


async def test_bad_ids_are_refused() -> None:
    async with world() as w:
        await add_topics(w)
        (entry,) = (await w.send(half())).entries
        for status in (
            await end(w, ""),
            await end(w, "nonsense"),
            await end(w, entry.transaction_id, topic="pledged"),
            await end(w, entry.transaction_id, message_id="another"),
        ):
            assert status.code == Code.INVALID_TRANSACTION_ID
        assert (await end(w, entry.transaction_id, topic="rmq_sys_x")).code == Code.ILLEGAL_TOPIC
        assert w.broker.asked("EndTransaction") == []


async def test_an_end_without_an_answer_is_notified_again() -> None:
    async with world() as w:
        await add_topics(w)
        (entry,) = (await w.send(half())).entries
        w.broker.end_errors = [RpcError(GrpcStatus.UNAVAILABLE, "gone")]
        assert (await end(w, entry.transaction_id)).code == Code.OK
        assert len(w.broker.asked("EndTransaction")) == 2
        w.broker.end_errors = [StatusError(Code.PRECONDITION_FAILED, "the other way")]
        assert (await end(w, entry.transaction_id)).code == Code.PRECONDITION_FAILED


async def check(w: World, topic: str, body: bytes = b"half") -> None:
    reported = broker.TransactionCheck(
        topic=topic, transaction_id="some id", message=half(topic, body=body).SerializeToString()
    )
    await w.broker.checking[0].send((reported,))


async def test_producers_of_a_topic_are_asked_in_turn() -> None:
    async with world() as w:
        await add_topics(w)
        assert w.broker.checking == []  # as long as there is nobody to ask
        one = await produce(w, "mixed", "plain", "not-there-yet")
        two = await produce(w, "mixed", metadata=OTHER)
        await until(lambda: w.broker.producer_topics == {"mixed", "not-there-yet"})
        for stream, body in ((one, b"1"), (two, b"2"), (one, b"3")):
            await check(w, "mixed", body)
            asked = await asked_of(stream)
            assert (asked.transaction_id, asked.message.body) == ("some id", body)
        assert w.metric("popwheel_proxy_producer_topics") == 3
        two.cancel()
        one.cancel()
        await until(lambda: w.broker.producer_topics == set())
        await check(w, "mixed")
        assert w.metric("popwheel_proxy_producer_topics") == 0
        assert w.metric("popwheel_proxy_asked_bytes") == 0


async def test_who_sends_half_messages_is_asked_though_its_settings_do_not_say_so() -> None:
    async with world() as w:
        await add_topics(w)
        stream = await produce(w)
        await w.send(half("pledged"))
        await until(lambda: w.broker.producer_topics == {"pledged"})
        await check(w, "pledged")
        assert (await asked_of(stream)).message.topic.name == "pledged"


async def test_half_messages_that_come_before_the_settings_count() -> None:
    async with world() as w:
        await add_topics(w)
        stream = w.channel.open(protocol.TELEMETRY, metadata=CLIENT)
        await until(lambda: w.metric("popwheel_proxy_telemetry_streams") == 1)
        await w.send(half("pledged"))
        await stream.send((pb.TelemetryCommand(settings=d.Settings(publishing=d.Publishing())),))
        await until(lambda: w.broker.producer_topics == {"pledged"})
        await check(w, "pledged")
        assert (await asked_of(stream)).message.topic.name == "pledged"


async def name(stream: TelemetryStream, *topics: str) -> None:
    """Send a producer's settings once more."""
    publishing = d.Publishing(topics=[d.Resource(name=topic) for topic in topics])
    settings = d.Settings(client_type=ClientType.PRODUCER, publishing=publishing)
    await stream.send((pb.TelemetryCommand(settings=settings),))
    answer = await stream.receive()
    assert answer is not None and answer.status.code == Code.OK


async def test_a_stream_is_asked_by_its_latest_settings_only() -> None:
    """The seen fault: settings only added topics, so a stream's end took as long as all that it ever named."""
    async with world() as w:
        await add_topics(w)
        stream = await produce(w, "mixed", "later")
        assert (await w.send(half("pledged"))).status.code == Code.OK
        book = w.app._telemetry._producers
        assert sorted(book) == ["later", "mixed", "pledged"]
        await name(stream, "mixed")
        assert sorted(book) == ["mixed", "pledged"], "what it sent half messages to stays"
        await name(stream)
        assert sorted(book) == ["pledged"]
        for number in range(3):
            await name(stream, *(f"t{number}-{each}" for each in range(2_000)))
            assert book.pairs == 2_001


async def test_the_topics_of_half_messages_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_HALF_TOPICS_MAX", 1)
    async with world() as w:
        await add_topics(w)
        await produce(w)
        for topic in ("mixed", "pledged", "mixed"):
            assert (await w.send(half(topic))).status.code == Code.OK
        assert list(w.app._telemetry._producers) == ["mixed"]
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "producer_topics_max"}) == 1


async def test_each_stream_of_a_client_id_is_asked_by_its_own_settings() -> None:
    async with world() as w:
        await add_topics(w)
        producer = await produce(w, "mixed")
        other = await produce(w, "pledged")
        consumer = w.channel.open(protocol.TELEMETRY, metadata=CLIENT)
        subscription = d.Subscription(group=d.Resource(name="group"))
        await consumer.send((pb.TelemetryCommand(settings=d.Settings(subscription=subscription)),))
        silent = w.channel.open(protocol.TELEMETRY, metadata=CLIENT)
        await until(lambda: w.broker.producer_topics == {"mixed", "pledged"})
        for _ in range(3):
            await check(w, "mixed")
            assert (await asked_of(producer)).message.topic.name == "mixed"
        await check(w, "pledged")
        assert (await asked_of(other)).message.topic.name == "pledged"
        other.cancel()
        await until(lambda: w.broker.producer_topics == {"mixed"})
        await check(w, "mixed")
        assert (await asked_of(producer)).message.topic.name == "mixed"
        for stream in (producer, consumer, silent):
            stream.cancel()
        await until(lambda: w.broker.producer_topics == set())


async def test_a_stream_that_breaks_is_opened_again_with_all_topics() -> None:
    async with world() as w:
        await add_topics(w)
        stream = await produce(w, "mixed")
        await until(lambda: w.broker.producer_topics == {"mixed"})
        (link,) = w.app._check_links._links.values()
        task, link.task = link.task, None
        assert task is not None
        task.cancel()
        await until(lambda: w.broker.checking == [])
        w.app._check_links._links.clear()
        w.app._check_links.follow()
        await until(lambda: w.broker.producer_topics == {"mixed"})
        await check(w, "mixed")
        assert (await asked_of(stream)).transaction_id == "some id"


def test_producers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "PAIRS_MAX", 3)
    book = ProducerBook()
    one, another, two, three = (Producer(*each) for each in (("one", 1), ("one", 2), ("two", 3), ("three", 4)))
    reported: list[tuple[list[str], list[str]]] = []
    book.subscribe(lambda new, gone: reported.append((new, gone)))
    assert not book.add(one, ["a", "b", "c"])
    assert book.add(two, ["a"])
    assert not book.add(three, ["d"])
    assert not book.add(another, ["a"]), "streams of one client have one share"
    assert (book.pairs, reported) == (3, [(["a", "b"], [])])
    assert [book.next_of("a") for _ in range(3)] == [one, two, one]
    book.remove(three)
    book.remove(two, ["b", "x"])
    book.remove(one)
    assert reported[1:] == [([], ["b"])]
    assert (book.next_of("b"), book.next_of("a"), list(book)) == (None, two, ["a"])
    book.remove(two, ["a"])
    assert (book.pairs, list(book), reported[2:]) == (0, [], [([], ["a"])])
