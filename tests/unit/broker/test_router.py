"""Who is let through to the present term, and what the others are told."""

import asyncio
from typing import Any

import pytest

from popwheel_broker.calls.router import Router
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, Service, Stream

REQUEST = pb.GetOffsetRequest(group="g", topic="t", queue_id=0)


class Term:
    """Answers with its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.streams = 0
        self.service = Service()
        self.service.unary(methods.GET_OFFSET, self._get_offset)
        self.service.stream(methods.NOTIFY, self._notify)

    async def _get_offset(self, call: Call, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        return pb.GetOffsetResponse(offset=self.number)

    async def _notify(self, call: Call, stream: Stream[pb.NotifyInterest, pb.NotifyEvents]) -> None:
        self.streams += 1
        try:
            await stream.send([pb.NotifyEvents()])
            await asyncio.Event().wait()
        finally:
            self.streams -= 1

    async def replicate(self, call: Call, stream: Stream[Any, Any]) -> None:
        return


async def refused(channel: LocalChannel) -> str:
    with pytest.raises(StatusError) as caught:
        await channel.call(methods.GET_OFFSET, REQUEST)
    assert caught.value.code == Code.HA_NOT_AVAILABLE
    return caught.value.message


async def test_calls_go_to_the_present_term() -> None:
    router = Router("b")
    channel = LocalChannel(router.service)
    router.refuse("is led by another replica, at x:1")
    assert await refused(channel) == "the broker b is led by another replica, at x:1"
    for number in (1, 2):
        term = Term(number)
        router.open(term.service, term.replicate)
        assert (await channel.call(methods.GET_OFFSET, REQUEST)).offset == number
    router.hold("passes its role on")
    assert "passes its role on" in await refused(channel)


async def test_a_call_waits_for_a_term_that_is_about_to_begin() -> None:
    router = Router("b")
    channel = LocalChannel(router.service)
    router.refuse("has no master at this moment")
    router.expect()
    calling = asyncio.create_task(channel.call(methods.GET_OFFSET, REQUEST))
    await asyncio.sleep(0)
    assert not calling.done()
    term = Term(7)
    router.open(term.service, term.replicate)
    assert (await calling).offset == 7


async def test_streams_end_with_the_term() -> None:
    router = Router("b")
    channel = LocalChannel(router.service)
    term = Term(1)
    router.open(term.service, term.replicate)
    stream = channel.open(methods.NOTIFY)
    assert await stream.receive() is not None
    router.hold("passes its role on")
    await asyncio.sleep(0)
    assert term.streams == 1, "the role may not be passed on after all"
    router.refuse("is led by another replica now")
    with pytest.raises(StatusError, match="another replica now"):
        await stream.receive()
    assert term.streams == 0
    again = channel.open(methods.NOTIFY)
    with pytest.raises(StatusError, match="another replica now"):
        await again.receive()
