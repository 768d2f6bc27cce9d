"""A channel to a process that is not there."""

from typing import Any, NoReturn

from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_rpc.service import Channel
from popwheel_rpc.status import GrpcStatus, RpcError


class Nowhere:
    """Refuses every call as a machine does at which nobody listens."""

    async def call(self, *_: Any, **__: Any) -> NoReturn:
        raise RpcError(GrpcStatus.UNAVAILABLE, "connection refused")

    def open(self, *_: Any, **__: Any) -> NoReturn:
        raise RpcError(GrpcStatus.UNAVAILABLE, "connection refused")

    async def close(self) -> None:
        pass


def no_broker(info: BrokerInfo) -> Channel:
    """What makes channels to brokers, where there are none."""
    return Nowhere()
