"""Settings as official clients need them, and a stream that is not ended from here while all is well."""

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pydantic import ValidationError

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, ExponentialBackoff, Group
from popwheel_common.settings.otel_options import OtelOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.session import telemetry
from popwheel_rpc.service import ClientStream
from tests.unit.proxy.world import CLIENT, World, until, world

TelemetryStream = ClientStream[pb.TelemetryCommand, pb.TelemetryCommand]

PRODUCER = d.Settings(
    client_type=ClientType.PRODUCER,
    request_timeout=Duration(seconds=3),
    publishing=d.Publishing(topics=[d.Resource(name="orders")]),
    user_agent=d.UA(language=d.Language.PYTHON),
)


def consumer(group: str = "group", **more: object) -> d.Settings:
    return d.Settings(
        client_type=ClientType.PUSH_CONSUMER,
        subscription=d.Subscription(
            group=d.Resource(name=group),
            subscriptions=[d.SubscriptionEntry(topic=d.Resource(name="orders"))],
            **more,  # type: ignore[arg-type]
        ),
    )


def open_stream(w: World, metadata: dict[str, str] = CLIENT) -> TelemetryStream:
    return w.channel.open(protocol.TELEMETRY, metadata=metadata)


async def answer_to(stream: TelemetryStream, settings: d.Settings) -> pb.TelemetryCommand:
    await stream.send((pb.TelemetryCommand(settings=settings),))
    answer = await stream.receive()
    assert answer is not None
    return answer


async def reported(settings: d.Settings, **options: Any) -> d.Settings:
    async with world(**options) as w:
        answer = await answer_to(open_stream(w), settings)
        assert answer.status.code == Code.OK
        return answer.settings


async def test_a_producer_is_notified_its_backoff_and_limits() -> None:
    settings = await reported(PRODUCER)
    assert settings.WhichOneof("pub_sub") == "publishing"
    assert settings.publishing.topics == PRODUCER.publishing.topics
    assert settings.publishing.max_body_size == 4 * 1024 * 1024
    assert settings.publishing.validate_message_type
    assert settings.client_type == ClientType.PRODUCER
    assert settings.request_timeout == Duration(seconds=3)
    backoff = settings.backoff_policy
    assert backoff.max_attempts == 3
    assert backoff.exponential_backoff.initial.ToMilliseconds() == 10
    assert backoff.exponential_backoff.max.ToMilliseconds() == 1000
    assert backoff.exponential_backoff.multiplier == 2


@pytest.mark.parametrize(
    ("endpoint", "scheme", "host"),
    [
        ("collector.example.com:4317", d.AddressScheme.DOMAIN_NAME, "collector.example.com"),
        ("127.0.0.1:4317", d.AddressScheme.IPv4, "127.0.0.1"),
        ("[::1]:4317", d.AddressScheme.IPv6, "::1"),
    ],
)
@pytest.mark.parametrize("settings", [PRODUCER, consumer()], ids=["producer", "consumer"])
async def test_clients_are_notified_where_their_metrics_go(
    settings: d.Settings, endpoint: str, scheme: d.AddressScheme.ValueType, host: str
) -> None:
    asked = d.Settings()
    asked.CopyFrom(settings)
    asked.metric.endpoints.addresses.add(host="of.the.client", port=1)  # what it says of it does not count
    metric = (await reported(asked, otel=OtelOptions(client_metrics_endpoint=endpoint))).metric
    assert metric.on
    assert metric.endpoints == d.Endpoints(scheme=scheme, addresses=[d.Address(host=host, port=4317)])


async def test_clients_send_no_metrics_if_nobody_collects_them() -> None:
    settings = await reported(PRODUCER)
    assert settings.HasField("metric")
    assert settings.metric == d.Metric(on=False)


@pytest.mark.parametrize(
    "endpoint",
    [
        *("collector", "collector:", ":4317", "collector:0", "collector:65536", "collector:4317:1", "::1:4317"),
        *("http://collector:4317", "collector:4317/v1/metrics", "collector:٤٣١٧", "a b:4317", "[]:4317"),
    ],
)
def test_an_endpoint_of_metrics_must_be_host_and_port(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="must be host:port, such as"):
        OtelOptions(client_metrics_endpoint=endpoint)


async def test_a_consumer_is_notified_its_groups_backoff() -> None:
    settings = await reported(consumer())
    assert settings.WhichOneof("pub_sub") == "subscription"
    subscription = settings.subscription
    assert subscription.group.name == "group"
    assert len(subscription.subscriptions) == 1
    assert subscription.HasField("fifo")
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    backoff = settings.backoff_policy
    assert backoff.max_attempts == 5
    assert [one.seconds for one in backoff.customized_backoff.next] == [1, 5]


async def test_a_consumer_is_notified_of_waits_that_grow() -> None:
    async with world() as w:
        grows = ExponentialBackoff(initial_ms=1_000, max_ms=60_000, multiplier=1.5)
        w.controller.publish(ClusterUpdate(groups=[Group(name="grows", max_attempts=7, exponential_backoff=grows)]))
        await until(lambda: "grows" in w.app.view.groups)
        policy = (await answer_to(open_stream(w), consumer("grows"))).settings.backoff_policy
        assert policy.max_attempts == 7
        reported = policy.exponential_backoff
        assert (reported.initial.ToMilliseconds(), reported.max.ToMilliseconds(), reported.multiplier) == (
            1_000,
            60_000,
            1.5,
        )


async def test_a_node_consumer_is_notified_the_only_kind_of_backoff_that_it_reads() -> None:
    settings = consumer()
    settings.user_agent.language = d.Language.NODE_JS
    backoff = (await reported(settings)).backoff_policy
    assert backoff.max_attempts == 5, "without it a message in order would be dead at its first failure"
    exponential = backoff.exponential_backoff
    assert (exponential.initial.seconds, exponential.max.seconds, exponential.multiplier) == (1, 5, 2)


@pytest.mark.parametrize(("asked_s", "reported_s"), [(1, 5), (10, 10), (60, 20)])
async def test_the_poll_time_is_clamped(asked_s: int, reported_s: int) -> None:
    settings = await reported(consumer(long_polling_timeout=Duration(seconds=asked_s)))
    assert settings.subscription.long_polling_timeout.seconds == reported_s


async def test_an_unknown_group_is_made_or_refused() -> None:
    assert (await reported(consumer("fresh"))).backoff_policy.max_attempts == 5
    async with world(auto_create_groups=False) as w:
        answer = await answer_to(open_stream(w), consumer("fresh"))
        assert answer.status.code == Code.CONSUMER_GROUP_NOT_FOUND
        assert (await answer_to(open_stream(w), consumer("group"))).status.code == Code.OK


async def test_a_consumer_starts_while_the_controller_is_away() -> None:
    async with world() as w:
        w.controller.away = True
        answer = await answer_to(open_stream(w), consumer("fresh"))
        assert answer.status.code == Code.OK
        assert answer.settings.backoff_policy.max_attempts == 17
        assert len(answer.settings.backoff_policy.customized_backoff.next) == 18


async def test_settings_are_sent_a_second_time() -> None:
    async with world(client={"settings_repeat_ms": 20}) as w:
        stream = open_stream(w)
        first = await answer_to(stream, PRODUCER)
        assert await stream.receive() == first
        async with asyncio.timeout(5):
            assert await answer_to(stream, PRODUCER) == first  # and the stream lives on
        assert await stream.receive() == first


async def test_settings_that_wait_to_be_sent_again_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has no room for that gets them once."""
    monkeypatch.setattr(telemetry, "_REPEATED_BYTES_MAX", 1500)
    async with world(client={"settings_repeat_ms": 60_000}) as w:
        large = d.Settings(publishing=d.Publishing(topics=[d.Resource(name="t" * 100)] * 10))
        streams = [open_stream(w), open_stream(w)]
        assert (await answer_to(streams[0], PRODUCER)).status.code == Code.OK
        kept = w.metric("popwheel_proxy_repeated_bytes")
        assert 0 < kept < 500
        assert (await answer_to(streams[1], large)).status.code == Code.OK
        assert w.metric("popwheel_proxy_repeated_bytes") == kept
        assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "repeated_bytes_max"}) == 1
        streams[0].cancel()
        await until(lambda: w.metric("popwheel_proxy_repeated_bytes") == 0)


async def test_settings_without_a_role_are_refused_but_the_stream_stays() -> None:
    async with world() as w:
        stream = open_stream(w)
        assert (await answer_to(stream, d.Settings())).status.code == Code.INVALID_CLIENT_PROPERTIES
        assert (await answer_to(stream, PRODUCER)).status.code == Code.OK
        old = open_stream(w, {"x-mq-client-id": "old"})
        assert (await answer_to(old, d.Settings())).status.code == Code.BAD_REQUEST


async def test_settings_with_a_bad_filter_are_refused_with_its_position() -> None:
    def consumer(expression: str) -> d.Settings:
        settings = d.Settings(subscription=d.Subscription(group=d.Resource(name="group")))
        entry = settings.subscription.subscriptions.add(topic=d.Resource(name="orders"))
        entry.expression.CopyFrom(d.FilterExpression(type=d.FilterType.SQL, expression=expression))
        return settings

    async with world() as w:
        stream = open_stream(w)
        refused = await answer_to(stream, consumer(" a > 'x'"))
        assert refused.status.code == Code.ILLEGAL_FILTER_EXPRESSION
        assert "at position 6 of the filter" in refused.status.message
        # The Go client overlooks a status while it waits for its first settings; it sees that the stream has failed.
        with pytest.raises(StatusError, match="at position 6 of the filter"):
            await stream.receive()
        stream = open_stream(w)
        assert (await answer_to(stream, consumer("a > 1"))).status.code == Code.OK
        assert (await answer_to(stream, consumer("a >"))).status.code == Code.ILLEGAL_FILTER_EXPRESSION
        assert (await answer_to(stream, consumer("a > 2"))).status.code == Code.OK


async def test_streams_are_counted_and_forgotten() -> None:
    async with world() as w:
        streams = [open_stream(w) for _ in range(3)]
        for stream in streams:
            await answer_to(stream, PRODUCER)
        assert w.metric("popwheel_proxy_telemetry_streams") == 3
        assert w.metric("popwheel_proxy_clients") == 1
        await streams[0].end()
        streams[1].cancel()
        await until(lambda: w.metric("popwheel_proxy_telemetry_streams") == 1)


async def test_one_client_too_many_is_refused() -> None:
    async with world(client={"sessions_max": 1}) as w:
        await answer_to(open_stream(w), PRODUCER)
        refused = await answer_to(open_stream(w, {**CLIENT, "x-mq-client-id": "client-2"}), PRODUCER)
        assert refused.status.code == Code.TOO_MANY_REQUESTS


async def test_a_stream_without_client_id_is_refused() -> None:
    async with world() as w:
        answer = await open_stream(w, {}).receive()
        assert answer is not None
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
