"""Spans of sends and deliveries, in the traces that messages bring along (docs/operate/monitor.md).

It wraps the handlers of two calls, so a proxy that does not trace does nothing of it. It needs the extra `otel`; only
`app.py` loads it, and only if `otel.traces` is set.
"""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from popwheel_common.contract.wire_format import LENGTH_DELIMITED, read_varint, skip
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.payload import messages_of
from popwheel_rpc.service import Call, Service, Stream

_NAME: Final = "popwheel"
_STATE_LENGTH_MAX: Final = 512
"""Longest tracestate that goes into spans: as much as W3C asks others to pass on."""
_LAST_SPANS_S_MAX: Final = 1.0
_BODY_TAG: Final = 4 << 3 | LENGTH_DELIMITED
_DELIVERED_TAG: Final = 2 << 3 | LENGTH_DELIMITED
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Exporting:
    """Collects spans in a bounded queue that a thread empties by OTLP over HTTP; variables `OTEL_...` say where to."""

    def __init__(self) -> None:
        resource = Resource({SERVICE_NAME: _NAME}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer(_NAME)

    async def stop(self) -> None:
        """Export what is left, for a second at the most."""
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _LAST_SPANS_S_MAX)


def trace_calls(service: Service, tracer: Tracer, messages_max: int) -> None:
    """Wrap a service of the client protocol so that it makes spans of messages that are sent and delivered.

    Args:
        service: its handlers are wrapped.
        tracer: makes the spans.
        messages_max: of one send.
    """
    send_method, send = service.unary_handlers[protocol.SEND_MESSAGE.path]
    receive_method, receive = service.stream_handlers[protocol.RECEIVE_MESSAGE.path]

    async def traced_send(call: Call, request: bytes) -> bytes:
        spans = list(_spans_of_send(tracer, request, messages_max))
        answer: bytes = b""
        try:
            answer = await send(call, request)
        finally:
            _end_sends(spans, answer)
        return answer

    async def traced_receive(call: Call, stream: Stream[pb.ReceiveMessageRequest, bytes]) -> None:
        await receive(call, _TracedDeliveries(stream, tracer))

    service.unary(send_method, traced_send)
    service.stream(receive_method, traced_receive)


class _TracedDeliveries:
    """A poll's stream that makes a span of each traced message that is delivered.

    Args:
        stream: does the work.
        tracer: makes the spans.
    """

    def __init__(self, stream: Stream[pb.ReceiveMessageRequest, bytes], tracer: Tracer) -> None:
        self._stream = stream
        self._tracer = tracer
        self._group = ""

    async def receive(self) -> pb.ReceiveMessageRequest | None:
        """The client's next message."""
        request = await self._stream.receive()
        if request is not None:
            self._group = request.group.name
        return request

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send parts of the answer."""
        spans = [span for part in messages if (span := self._span_of(part)) is not None]
        failure: Status | None = Status(StatusCode.ERROR, "the client had gone")
        try:
            await self._stream.send(messages)
            failure = None
        finally:
            for span in spans:
                if failure is not None:
                    span.set_status(failure)
                span.end()

    def _span_of(self, part: bytes) -> Span | None:
        """Begin the span of a delivery; None if the part of the answer holds no message, or one without a trace."""
        if not part or part[0] != _DELIVERED_TAG:
            return None
        message = _without_body(part)
        properties = message.system_properties
        context = context_of(message.user_properties, properties)
        if context is None:
            return None
        span = _span(self._tracer, "receive", message.topic.name, properties.message_id, context)
        span.set_attribute("messaging.consumer.group.name", self._group)
        span.set_attribute("popwheel.delivery_attempt", properties.delivery_attempt)
        return span


def context_of(user_properties: Any, properties: SystemProperties) -> Context | None:
    """The trace that a message belongs to, by W3C's trace context; None if it names none.

    Args:
        user_properties: may have `traceparent` and `tracestate`.
        properties: may have `trace_context`, which is a `traceparent`; it counts if the user properties have none.
    """
    parent = user_properties.get("traceparent", "") or properties.trace_context
    if not parent:
        return None
    state = user_properties.get("tracestate", "")
    carrier = {"traceparent": parent, "tracestate": state if len(state) <= _STATE_LENGTH_MAX else ""}
    context = _PROPAGATOR.extract(carrier, Context())
    return context if get_current_span(context).get_span_context().is_valid else None


def _spans_of_send(tracer: Tracer, request: bytes, messages_max: int) -> Iterator[Span | None]:
    """Begin a span for each message of a send, None for those without a trace; none if the request is to be refused."""
    try:
        messages = messages_of(request, messages_max)
        contexts = [context_of(each.head.user_properties, each.properties) for each in messages]
    except StatusError:
        return
    for message, context in zip(messages, contexts, strict=True):
        if context is None:
            yield None
        else:
            yield _span(tracer, "send", message.head.topic.name, message.message_id, context)


def _span(tracer: Tracer, operation: str, topic: str, message_id: str, context: Context) -> Span:
    return tracer.start_span(
        f"{operation} {topic}",
        context,
        SpanKind.SERVER,
        {
            "messaging.system": "rocketmq",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            "messaging.message.id": message_id,
        },
    )


def _end_sends(spans: Sequence[Span | None], answer: bytes) -> None:
    """End the spans of a send by what was answered; empty if it was given up."""
    if not any(spans):
        return
    response = pb.SendMessageResponse.FromString(answer)
    for index, span in enumerate(spans):
        if span is None:
            continue
        status = response.entries[index].status if index < len(response.entries) else response.status
        if not answer:
            span.set_status(Status(StatusCode.ERROR, "the call was given up"))
        elif status.code != Code.OK:
            span.set_status(Status(StatusCode.ERROR, f"{Code.Name(status.code)}: {status.message}"))
        span.end()


def _without_body(part: bytes) -> Message:
    """The message in a part of an answer, but for its body; an empty one if it is garbled."""
    kept = []
    try:
        length, at = read_varint(part, 1, len(part))
        run, end = at, at + length
        while at < end:
            start = at
            tag, at = read_varint(part, at, end)
            at = skip(part, tag & 7, at, end)
            if tag == _BODY_TAG:
                kept.append(part[run:start])
                run = at
        return Message.FromString(b"".join((*kept, part[run:end])))
    except (StatusError, DecodeError):
        return Message()
