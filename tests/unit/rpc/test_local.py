"""What ends a call within one process, when more than one thing does (the rest: test_channel_contract.py)."""

import asyncio

import pytest

from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import RAW, Call, Method, Service
from popwheel_rpc.status import GrpcStatus, RpcError

WAIT = Method("test.Local", "Wait", RAW, RAW)
STUBBORN = Method("test.Local", "Stubborn", RAW, RAW)


async def wait(call: Call, request: bytes) -> bytes:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def stubborn(call: Call, request: bytes) -> bytes:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        return b"done all the same"
    raise AssertionError


@pytest.fixture
def channel() -> LocalChannel:
    service = Service()
    service.unary(WAIT, wait)
    service.unary(STUBBORN, stubborn)
    return LocalChannel(service)


async def test_a_deadline_leaves_the_callers_task_uncancelled(channel: LocalChannel) -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(RpcError) as raised:
        await channel.call(WAIT, b"", timeout_s=0.01)
    assert raised.value.status is GrpcStatus.DEADLINE_EXCEEDED
    assert await channel.call(STUBBORN, b"", timeout_s=0.01) == b"done all the same"
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_deadline_within_the_caller_s_own_timeout(channel: LocalChannel) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(RpcError):
            await channel.call(WAIT, b"", timeout_s=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.call(WAIT, b"", timeout_s=30)


async def test_a_task_that_is_being_cancelled_can_still_make_a_call_with_a_deadline(channel: LocalChannel) -> None:
    status: list[GrpcStatus] = []

    async def clean_up() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            with pytest.raises(RpcError) as raised:
                await channel.call(WAIT, b"", timeout_s=0.01)
            status.append(raised.value.status)

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert status == [GrpcStatus.DEADLINE_EXCEEDED]


async def test_a_caller_that_is_cancelled_as_its_deadline_passes_is_cancelled(channel: LocalChannel) -> None:
    task = asyncio.create_task(channel.call(WAIT, b"", timeout_s=30))
    await asyncio.sleep(0)
    for running in channel._calls:
        running.expired()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
