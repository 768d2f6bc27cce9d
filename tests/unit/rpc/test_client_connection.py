"""A client's connection that ends before anybody waits for it."""

import asyncio
import gc
from typing import Any

import pytest

from services.common.clock import SystemClock
from services.rpc.client.client_connection import ClientConnection
from services.rpc.deadline_timer import DeadlineTimer
from services.rpc.limits import Limits
from services.rpc.status import RpcError


async def test_a_connection_that_nobody_waits_for_any_more_ends_in_silence() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    clock = SystemClock()
    connection = ClientConnection(Limits(), clock, DeadlineTimer(clock), None)
    connection.connection_lost(None)
    with pytest.raises(RpcError):
        await connection.ready
    connection = ClientConnection(Limits(), clock, DeadlineTimer(clock), None)
    connection.connection_lost(None)
    del connection
    gc.collect()
    assert said == []
