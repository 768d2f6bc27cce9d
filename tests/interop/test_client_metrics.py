"""The official Python client sends its metrics to the collector that the server names."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from popwheel_testing import PopwheelServer
from tests.harness.programs import run_program

STOP_S_MAX = 5.0


class Collector(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Takes metrics over OTLP."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Serve the one method of OTLP's metrics."""
        if details.method != "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export":
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._export, ExportMetricsServiceRequest.FromString, ExportMetricsServiceResponse.SerializeToString
        )

    def _export(
        self, request: ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> ExportMetricsServiceResponse:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                self.names.update(metric.name for metric in scope.metrics)
        return ExportMetricsServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    """A collector, and its port."""
    with ThreadPoolExecutor(2) as pool:
        server, collects = grpc.server(pool), Collector()
        server.add_generic_rpc_handlers((collects,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collects, port
        server.stop(0).wait(STOP_S_MAX)


def test_clients_send_their_metrics_where_they_are_reported(collector: tuple[Collector, int], tmp_path: Path) -> None:
    collects, port = collector
    with PopwheelServer({"otel.client_metrics_endpoint": f"127.0.0.1:{port}"}) as server:
        outcome = run_program(["examples/push_consumers.py", server.endpoints], tmp_path)
    assert outcome.exit_code == 0, outcome.explain()
    assert collects.names >= {
        *("rocketmq_send_cost_time", "rocketmq_delivery_latency", "rocketmq_await_time", "rocketmq_process_time"),
        *("rocketmq_consumer_cached_messages", "rocketmq_consumer_cached_bytes"),
    }, outcome.explain()
