"""The trace context of messages: kept as it is, and joined by the server's own spans where these are exported."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_testing import PopwheelServer, ServerFailedError
from tests.harness.client import MessagingClient, make_message
from tests.harness.standalone import StandaloneProcess

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
OF_TRACES = {"traceparent": PARENT, "tracestate": "vendor=value,other=t61rcWkgMzE"}


def traced_message(topic: str) -> d.Message:
    made = make_message(topic, b"body")
    made.user_properties.update({**OF_TRACES, "own": "1"})
    made.system_properties.trace_context = PARENT
    return made


async def test_a_trace_context_comes_out_as_it_went_in_each_time(
    client: MessagingClient, server: StandaloneProcess
) -> None:
    assert (await client.send_messages(traced_message("Traced"))).status.code == Code.OK
    for attempt in (1, 2):
        (delivered,) = await client.receive_all("traced", "Traced", 1, invisible_s=0.5)
        assert delivered.system_properties.delivery_attempt == attempt
        assert dict(delivered.user_properties) == {**OF_TRACES, "own": "1"}
        assert delivered.system_properties.trace_context == PARENT
    await client.ack("traced", "Traced", [delivered])


class Collector(HTTPServer):
    """Takes spans over OTLP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorRequest)
        self.bodies: list[bytes] = []


class CollectorRequest(BaseHTTPRequestHandler):
    """One export."""

    server: Collector

    def do_POST(self) -> None:
        """Take it."""
        assert self.path == "/v1/traces"
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
        """Be silent."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collects:
        thread = threading.Thread(target=collects.serve_forever)
        thread.start()
        yield collects
        collects.shutdown()
        thread.join()


async def test_spans_are_exported_to_where_the_environment_says(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "the extra otel is not installed"
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=reason)
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with PopwheelServer({"otel.traces": True}) as server:
        async with MessagingClient(server.endpoints) as client:
            await client.send_messages(traced_message("Traced"))
            await client.receive_all("traced", "Traced", 1)
    resources = [
        each for body in collector.bodies for each in ExportTraceServiceRequest.FromString(body).resource_spans
    ]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["receive Traced", "send Traced"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {each.value.int_value for span in spans for each in span.attributes if each.key.endswith("attempt")} == {1}
    about = {each.key: each.value.string_value for each in resources[0].resource.attributes}
    assert about["service.name"] == "popwheel"
    assert about["deployment.environment"] == "test"


async def test_messages_pass_though_no_collector_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with PopwheelServer({"otel.traces": True}) as server:
        async with MessagingClient(server.endpoints) as client:
            await client.send_messages(traced_message("Traced"))
            assert len(await client.receive_all("traced", "Traced", 1)) == 1


def test_a_library_that_is_missing_is_said_by_the_name_of_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("missing")
    (folder / "opentelemetry.py").write_text("raise ModuleNotFoundError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    with pytest.raises(ServerFailedError, match=r'popwheel: otel.traces: must be false.*"popwheel\[otel\]"'):
        PopwheelServer({"otel.traces": True}).start()
