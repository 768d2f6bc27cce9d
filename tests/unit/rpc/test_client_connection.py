"""A client's connection that ends before anybody waits for it, and one that has no numbers left for streams."""

import asyncio
import gc
from typing import Any

import pytest

from popwheel_common.clock import SystemClock
from popwheel_rpc.client.client_connection import ClientConnection
from popwheel_rpc.client.socket_channel import SocketChannel
from popwheel_rpc.deadline_timer import DeadlineTimer
from popwheel_rpc.http2.frames import STREAM_ID_MAX
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.server import Server
from popwheel_rpc.status import RpcError
from tests.unit.rpc.contract_service import ECHO, WAIT, ContractService


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


async def test_a_connection_whose_streams_have_all_been_opened_makes_room_for_another() -> None:
    contract = ContractService()
    server = Server(contract.service)
    await server.start("127.0.0.1", 0)
    channel = SocketChannel(f"127.0.0.1:{server.port}", None, Limits(), SystemClock())
    assert await channel.call(ECHO, b"before", timeout_s=10) == b"before"
    first = channel._connection
    assert first is not None
    first.http2._last_stream_id = STREAM_ID_MAX - 4  # one is left
    waiting = asyncio.create_task(channel.call(WAIT, b"the last number", timeout_s=10))
    await contract.waiting.wait()
    assert await channel.call(ECHO, b"behind", timeout_s=10) == b"behind"
    assert channel._connection is not first and not first.lost  # what is under way there may end
    contract.released.set()
    assert await waiting == b"the last number"
    while not first.lost:
        await asyncio.sleep(0)
    await channel.close()
    await server.stop(0)
