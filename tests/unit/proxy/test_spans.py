"""Spans of sends and deliveries are in the traces of their messages, and nothing of it is there if nobody asked."""

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import pytest

from popwheel_common.errors import ConfigurationError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.otel_options import OtelOptions
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, StreamClosedError
from tests.unit.proxy.world import CLIENT, World, message, poll_request, world

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from popwheel_proxy.protocol.spans import context_of, trace_calls

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
STATE = "vendor=value"


@asynccontextmanager
async def traced_world() -> AsyncIterator[tuple[World, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with world() as w:
        trace_calls(w.app.service, provider.get_tracer("test"), 128)
        w.channel = LocalChannel(w.app.service, clock=w.clock)
        yield w, exporter


def traced(body: bytes = b"hello", parent: str = PARENT, **user_properties: str) -> d.Message:
    made = message(body=body)
    made.user_properties.update({"traceparent": parent, **user_properties})
    return made


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_send_and_its_delivery_are_spans_below_the_senders() -> None:
    async with traced_world() as (w, exporter):
        sent = traced(b"x" * 100_000, tracestate=STATE)
        assert (await w.send(sent)).status.code == Code.OK
        received = await w.receive(poll_request())
    assert dict(received.messages[0].user_properties) == {"traceparent": PARENT, "tracestate": STATE}
    send, deliver = exporter.get_finished_spans()
    for span in (send, deliver):
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
        assert span.parent.trace_state.to_header() == STATE
        assert span.kind is SpanKind.SERVER
        assert span.status.status_code is StatusCode.UNSET
        assert attributes(span)["messaging.system"] == "rocketmq"
        assert attributes(span)["messaging.destination.name"] == "orders"
        assert attributes(span)["messaging.message.id"] == sent.system_properties.message_id
    assert (send.name, deliver.name) == ("send orders", "receive orders")
    assert attributes(deliver)["messaging.consumer.group.name"] == "group"
    assert "popwheel.delivery_attempt" in attributes(deliver)


async def test_the_field_of_the_protocol_counts_if_the_properties_name_no_trace() -> None:
    in_field, in_both = message(body=b"a"), traced(b"b")
    in_field.system_properties.trace_context = PARENT
    in_both.system_properties.trace_context = "00-11111111111111111111111111111111-1111111111111111-01"
    async with traced_world() as (w, exporter):
        await w.send(in_field, in_both)
        received = await w.receive(poll_request())
    assert [each.system_properties.trace_context for each in received.messages] == [
        in_field.system_properties.trace_context,
        in_both.system_properties.trace_context,
    ]
    assert {span.parent.trace_id for span in exporter.get_finished_spans() if span.parent} == {int(TRACE, 16)}
    assert len(exporter.get_finished_spans()) == 4


async def test_messages_without_a_trace_make_no_spans() -> None:
    async with traced_world() as (w, exporter):
        for other in (message(body=b"none"), traced(parent="garbage"), traced(parent=f"00-{'0' * 32}-{'0' * 16}-01")):
            assert (await w.send(other)).status.code == Code.OK
        await w.send(message(body=b"one of two"), traced())
        assert len((await w.receive(poll_request())).messages) == 5
    assert [span.name for span in exporter.get_finished_spans()] == ["send orders", "receive orders"]


async def test_a_trace_that_is_not_sampled_makes_no_spans() -> None:
    async with traced_world() as (w, exporter):
        await w.send(traced(parent=f"{PARENT[:-2]}00"))
        assert len((await w.receive(poll_request())).messages) == 1
    assert exporter.get_finished_spans() == ()


async def test_a_refused_send_is_a_failed_span() -> None:
    refused = traced()
    refused.system_properties.tag = "a|b"
    async with traced_world() as (w, exporter):
        answer = await w.send(refused)
    (span,) = exporter.get_finished_spans()
    assert answer.status.code != Code.OK
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{Code.Name(answer.status.code)}: {answer.status.message}"


@pytest.mark.parametrize("request_bytes", [b"\xff", b"\x0a\x05", b"\x0a\x00" * 129], ids=["tag", "cut", "many"])
async def test_requests_that_are_none_are_refused_as_ever(request_bytes: bytes) -> None:
    async with traced_world() as (w, exporter), world() as plain:
        answers = [
            await each.channel.call(protocol.SEND_MESSAGE, request_bytes, metadata=CLIENT) for each in (w, plain)
        ]
    assert answers[0] == answers[1]
    assert exporter.get_finished_spans() == ()


async def test_a_delivery_to_a_client_that_has_gone_is_a_failed_span() -> None:
    async with traced_world() as (w, exporter):
        await w.send(traced())
        _, receive = w.app.service.stream_handlers[protocol.RECEIVE_MESSAGE.path]
        stream = mock.AsyncMock()
        stream.receive.side_effect = [poll_request(), None]
        stream.send.side_effect = StreamClosedError("gone")
        call = Call(protocol.RECEIVE_MESSAGE.path, CLIENT, None, "local")
        await receive(call, stream)
    assert [span.status.status_code for span in exporter.get_finished_spans()] == [StatusCode.UNSET, StatusCode.ERROR]


def test_a_state_of_any_length_is_taken() -> None:
    long = ",".join(f"vendor{number}=value" for number in range(30))
    context = context_of({"traceparent": PARENT, "tracestate": long}, d.SystemProperties())
    assert len(long) < 512
    assert context is not None
    assert context_of({"traceparent": PARENT, "tracestate": long * 2}, d.SystemProperties()) is not None


def test_a_proxy_that_does_not_trace_loads_nothing_of_it() -> None:
    program = "import sys, popwheel_proxy.app; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_tracing_without_its_library_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "popwheel_proxy.protocol.spans", None)
    with pytest.raises(ConfigurationError, match=r'otel.traces.*pip install "popwheel\[otel\]"'):
        async with world(otel=OtelOptions(traces=True)):
            pass
