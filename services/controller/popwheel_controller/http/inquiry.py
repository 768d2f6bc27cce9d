"""Calls of the admin API to the brokers; each broker knows only its own data."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_rpc.service import Channel, Method
from popwheel_rpc.status import GrpcStatus, RpcError

_TIMEOUT_S = 5.0  # below that of `popwheel admin`

Request = TypeVar("Request")
Response = TypeVar("Response")


class Silence(BaseModel):
    """Broker that did not answer: its data is missing."""

    broker: str = Field(description="Name of the broker group.")
    reason: str = Field(description="Why it did not answer, in a sentence.")


@dataclass(frozen=True, slots=True)
class Answers(Generic[Response]):
    """Answers of the registered brokers.

    Args:
        given: by the broker's name, in the order of the names.
        unanswered: the other brokers, likewise.
    """

    given: Mapping[str, Response]
    unanswered: list[Silence]


class Inquiry:
    """Client of the brokers.

    Args:
        state_writer: of the cluster's state.
        broker_channels: opens a channel to a broker; one per call, as calls are rare.
    """

    def __init__(self, state_writer: StateWriter, broker_channels: Callable[[BrokerInfo], Channel]) -> None:
        self._state_writer = state_writer
        self._broker_channels = broker_channels

    @property
    def state(self) -> ClusterState:
        """Current state of the cluster."""
        return self._state_writer.state

    async def of(self, name: str, method: Method[Request, Response], request: Request) -> Response:
        """Ask one broker.

        Raises:
            StatusError: as the broker says; HA_NOT_AVAILABLE if it is away.
        """
        broker = self.state.brokers.get(name)
        if broker is None:
            raise away(name)
        return await self._ask(broker, method, request)

    async def of_all(self, method: Method[Request, Response], request: Request) -> Answers[Response]:
        """Ask all registered brokers."""
        return await self.ask_by_broker(method, dict.fromkeys(self.state.brokers, request))

    async def ask_by_broker(
        self, method: Method[Request, Response], requests: Mapping[str, Request]
    ) -> Answers[Response]:
        """Ask some brokers concurrently, each its own question, by name."""
        asked = sorted(requests)
        results = await asyncio.gather(
            *(self.of(name, method, requests[name]) for name in asked), return_exceptions=True
        )
        given: dict[str, Response] = {}
        unanswered: list[Silence] = []
        for name, result in zip(asked, results, strict=True):
            if isinstance(result, StatusError):
                unanswered.append(Silence(broker=name, reason=result.message))
            elif isinstance(result, BaseException):
                raise result
            else:
                given[name] = result
        return Answers(given, unanswered)

    async def _ask(self, broker: BrokerInfo, method: Method[Request, Response], request: Request) -> Response:
        if not broker.address:
            raise away(broker.name)
        try:
            async with self._way(broker) as channel:
                return await channel.call(method, request, timeout_s=_TIMEOUT_S)
        except RpcError as error:
            raise _explained(error, broker.name) from error

    @asynccontextmanager
    async def _way(self, broker: BrokerInfo) -> AsyncIterator[Channel]:
        """Return a channel for one call."""
        channel = self._broker_channels(broker)
        try:
            yield channel
        finally:
            await channel.close()

    def lasting(self) -> "LastingInquiry":
        """Return a client for repeated calls."""
        return LastingInquiry(self._state_writer, self._broker_channels)


class LastingInquiry(Inquiry):
    """Client for repeated calls: the channel to a broker stays open until `close`."""

    def __init__(self, state_writer: StateWriter, broker_channels: Callable[[BrokerInfo], Channel]) -> None:
        super().__init__(state_writer, broker_channels)
        self._by_broker: dict[str, tuple[str, Channel]] = {}
        """Address and channel by broker name."""

    @asynccontextmanager
    async def _way(self, broker: BrokerInfo) -> AsyncIterator[Channel]:
        address, channel = self._by_broker.get(broker.name, ("", None))
        if channel is None or address != broker.address:
            if channel is not None:
                await channel.close()
            channel = self._broker_channels(broker)
            self._by_broker[broker.name] = broker.address, channel
        try:
            yield channel
        except RpcError:
            del self._by_broker[broker.name]
            await channel.close()
            raise

    async def close(self) -> None:
        """Close the channels."""
        for _, channel in self._by_broker.values():
            await channel.close()
        self._by_broker.clear()


def away(broker: str) -> StatusError:
    """Return the error for a broker that does not exist now, or for a group without a master."""
    return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {broker} is not there now; try again")


def _explained(error: RpcError, broker: str) -> StatusError:
    """Return the error of a failed request, worded for an operator."""
    if error.status is GrpcStatus.UNAVAILABLE:
        return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {broker} cannot be reached now; try again")
    if error.status is GrpcStatus.DEADLINE_EXCEEDED:
        return StatusError(
            Code.PROXY_TIMEOUT, f"the broker {broker} did not answer within {_TIMEOUT_S:.0f} s; ask again"
        )
    if error.status is GrpcStatus.UNIMPLEMENTED:
        return StatusError(Code.UNSUPPORTED, f"the broker {broker} is of an older release, which cannot answer this")
    return StatusError(Code.INTERNAL_SERVER_ERROR, f"the call to the broker {broker} failed: {error.message}")
