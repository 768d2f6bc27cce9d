"""Asks the brokers about their delayed messages, for the admin API: each broker knows its own only."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from services.common import names, recall_handle
from services.common.errors import StatusError
from services.common.names import Use
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from services.controller.state_keeper import StateKeeper
from services.rpc.methods import RECALL, TIMER_LIST, TIMER_STATS
from services.rpc.service import Channel, Method
from services.rpc.status import GrpcStatus, RpcError

_TIMEOUT_S = 5.0  # below that of `popwheel admin`

Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Answers(Generic[Response]):
    """What the registered brokers said.

    Args:
        given: by the broker's name, in the order of the names.
        missing: why there is none, by the name of each other broker.
    """

    given: Mapping[str, Response]
    missing: Mapping[str, str]


class Timers:
    """Delayed messages, wherever they are.

    Args:
        keeper: knows the brokers and the key that recall handles are signed with.
        broker_channels: makes a channel to a broker; one for each question, as they are rare.
    """

    def __init__(self, keeper: StateKeeper, broker_channels: Callable[[BrokerInfo], Channel]) -> None:
        self._keeper = keeper
        self._broker_channels = broker_channels

    async def stats(self) -> Answers[pb.TimerStatsResponse]:
        """How many messages wait at each broker."""
        return await self._ask_all(TIMER_STATS, pb.TimerStatsRequest())

    async def due(self, topic: str, within_ms: int, limit: int) -> Answers[pb.TimerListResponse]:
        """The messages of a topic that are due within a time, up to `limit` of each broker.

        Raises:
            StatusError: TOPIC_NOT_FOUND.
        """
        self._keeper.state.topic(topic)
        return await self._ask_all(TIMER_LIST, pb.TimerListRequest(topic=topic, within_ms=within_ms, limit=limit))

    async def recall(self, topic: str, handle: str) -> str:
        """Take a message back; its id.

        Raises:
            StatusError: ILLEGAL_TOPIC; as the broker says; HA_NOT_AVAILABLE if it is away, BAD_REQUEST if the handle is
                of no broker.
        """
        names.topic(topic, Use.SEND)
        name = recall_handle.broker_name(handle)
        state = self._keeper.state
        broker = state.brokers.get(name)
        if broker is None:
            recall_handle.decode(state.receipt_key, topic, handle)
            raise _away(name)
        answer = await self._ask(broker, RECALL, pb.RecallRequest(topic=topic, recall_handle=handle))
        return answer.message_id

    async def _ask_all(self, method: Method[Request, Response], request: Request) -> Answers[Response]:
        brokers = sorted(self._keeper.state.brokers.items())
        results = await asyncio.gather(
            *(self._ask(broker, method, request) for _, broker in brokers), return_exceptions=True
        )
        given: dict[str, Response] = {}
        missing: dict[str, str] = {}
        for (name, _), result in zip(brokers, results, strict=True):
            if isinstance(result, StatusError):
                missing[name] = result.message
            elif isinstance(result, BaseException):
                raise result
            else:
                given[name] = result
        return Answers(given, missing)

    async def _ask(self, broker: BrokerInfo, method: Method[Request, Response], request: Request) -> Response:
        if not broker.address:
            raise _away(broker.name)
        channel = self._broker_channels(broker)
        try:
            return await channel.call(method, request, timeout_s=_TIMEOUT_S)
        except RpcError as error:
            raise _explained(error, broker.name) from error
        finally:
            await channel.close()


def _away(broker: str) -> StatusError:
    """There is no such broker now, or it is a group without a master."""
    return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {broker} is not there now; try again")


def _explained(error: RpcError, broker: str) -> StatusError:
    """Why a question did not get through, in words for an operator."""
    if error.status is GrpcStatus.UNAVAILABLE:
        return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {broker} cannot be reached now; try again")
    if error.status is GrpcStatus.DEADLINE_EXCEEDED:
        return StatusError(
            Code.PROXY_TIMEOUT, f"the broker {broker} did not answer within {_TIMEOUT_S:.0f} s; ask again"
        )
    if error.status is GrpcStatus.UNIMPLEMENTED:
        return StatusError(Code.UNSUPPORTED, f"the broker {broker} is of a release without delayed messages")
    return StatusError(Code.INTERNAL_SERVER_ERROR, f"the call to the broker {broker} failed: {error.message}")
