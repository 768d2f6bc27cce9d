"""What all clients of the simulator share."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    TelemetryCommand,
)
from popwheel_rpc.service import Method
from tests.sim.history import History
from tests.sim.trace import Trace

Request = TypeVar("Request")
Response = TypeVar("Response")

OPEN_CODES = (d.Code.INTERNAL_ERROR, d.Code.INTERNAL_SERVER_ERROR, d.Code.HA_NOT_AVAILABLE, d.Code.PROXY_TIMEOUT)
"""Refusals that may come though the thing was done."""
_DEFINITE = ("nothing was stored", "takes no messages")
"""Sentences of refusals with INTERNAL_ERROR after which nothing is stored."""


class WayToProxy(Protocol):
    """How clients reach a proxy (`tests.sim.network.Network`)."""

    async def call(
        self, method: Method[Request, Response], request: Request, metadata: Mapping[str, str], timeout_s: float
    ) -> Response:
        """Call a unary method."""

    async def receive(
        self,
        request: ReceiveMessageRequest,
        metadata: Mapping[str, str],
        timeout_s: float,
        taken: Callable[[ReceiveMessageResponse], None],
        vanish_after_s: float | None,
    ) -> bool:
        """Call ReceiveMessage; whether the answer is complete."""

    async def telemetry(
        self, command: TelemetryCommand, metadata: Mapping[str, str], taken: Callable[[TelemetryCommand], None]
    ) -> None:
        """Open a Telemetry stream and say a first command; returns, or raises `RpcError`, when the stream ends."""


class LogEnd:
    """Where the commit log ends, as the simulator sees it from outside."""

    position: int = 0


@dataclass(slots=True)
class Tools:
    """What all clients share.

    Args:
        network: the way to the proxy.
        history: what they note.
        trace: likewise, for people.
        log_end: where the log ends now, or ended when the process died.
    """

    network: WayToProxy
    history: History
    trace: Trace
    loop: asyncio.AbstractEventLoop
    log_end: LogEnd

    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()


def headers(client_id: str) -> dict[str, str]:
    """What a client of the newest kind sends along."""
    return {"x-mq-client-id": client_id, "x-mq-client-version": "5.1.2", "x-mq-language": "PYTHON"}


def is_definite(status: d.Status) -> bool:
    """Whether a refusal says that nothing was done."""
    if status.code == d.Code.INTERNAL_ERROR:
        return any(sentence in status.message for sentence in _DEFINITE)
    return status.code not in OPEN_CODES
