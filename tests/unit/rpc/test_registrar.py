"""Log lines of a broker about a controller that takes no registration."""

import asyncio
import random
from typing import Any

import pytest
from structlog.testing import capture_logs

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_rpc.membership.registrar import BrokerRegistrar


class Refusing:
    """A channel to a controller, and its stream, that refuses whoever registers."""

    def __init__(self, code: Code.ValueType) -> None:
        self.error = StatusError(code, "not here")
        self.refused = asyncio.Event()

    def open(self, method: Any) -> Any:
        return self

    async def send(self, messages: Any) -> None:
        pass

    async def receive(self) -> Any:
        self.refused.set()
        raise self.error

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "level"),
    [
        (Code.HA_NOT_AVAILABLE, "info"),  # as each broker of a fresh install may find it
        (Code.BAD_REQUEST, "error"),
        (Code.PRECONDITION_FAILED, "error"),
    ],
)
async def test_only_a_refusal_that_is_one_is_an_error(code: Code.ValueType, level: str) -> None:
    channel: Any = Refusing(code)
    registrar = BrokerRegistrar(channel, ReplicaReport, lambda _: None, random.Random(1), 1.0)
    with capture_logs() as logs:
        await registrar.start()
        await channel.refused.wait()
        await asyncio.sleep(0)
        await registrar.stop()
    assert [each["log_level"] for each in logs] == [level]
    assert "not here" in logs[0]["reason"]
