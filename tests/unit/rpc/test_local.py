"""What ends a call within one process, when more than one thing does (the rest: test_channel_contract.py)."""

import asyncio

import pytest

from popwheel_rpc.local import LocalChannel, LocalStream
from popwheel_rpc.service import RAW, Call, Method, Service, Stream, StreamClosedError
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


TALK = Method("test.Local", "Talk", RAW, RAW)


def talking(steps: list[object]) -> LocalChannel:
    async def talk(call: Call, stream: Stream[bytes, bytes]) -> None:
        await stream.send([b"early"])
        await stream.receive()
        try:
            await stream.send([b"one", b"two"])
            steps.append("sent")
        except StreamClosedError:
            steps.append("closed")
            raise

    service = Service()
    service.stream(TALK, talk)
    return LocalChannel(service)


async def test_messages_that_are_taken_at_once_come_in_order_within_the_handlers_send() -> None:
    steps: list[object] = []
    stream = talking(steps).open(TALK)
    assert isinstance(stream, LocalStream)
    await asyncio.sleep(0)

    def take(message: bytes) -> bool:
        steps.append(message)
        return True

    stream.take_at_once(take)
    assert await stream.receive() == b"early", "it came before"
    await stream.send([b"go on"])
    assert await stream.receive() is None
    assert steps == [b"one", b"two", "sent"]


async def test_a_message_that_is_not_taken_at_once_is_received_and_those_behind_it_too() -> None:
    offered: list[bytes] = []

    def take(message: bytes) -> bool:
        offered.append(message)
        return False

    stream = talking([]).open(TALK)
    assert isinstance(stream, LocalStream)
    stream.take_at_once(take)
    await stream.send([b"go on"])
    assert [await stream.receive() for _ in range(4)] == [b"early", b"one", b"two", None]
    assert offered == [b"early"], "what is queued goes first"


async def test_an_error_of_what_takes_at_once_ends_the_call() -> None:
    steps: list[object] = []
    stream = talking(steps).open(TALK)
    assert isinstance(stream, LocalStream)

    def fail(message: bytes) -> bool:
        raise ValueError(message)

    assert await stream.receive() == b"early"
    stream.take_at_once(fail)
    await stream.send([b"go on"])
    with pytest.raises(RpcError) as raised:
        await stream.receive()
    assert raised.value.status is GrpcStatus.INTERNAL
    assert steps == ["closed"]
