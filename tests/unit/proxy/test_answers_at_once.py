"""How soon a poll that waits is answered, run as servers run their handlers."""

import asyncio
from collections.abc import Sequence

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.server.light_task import LightTask
from popwheel_rpc.service import Call
from tests.unit.proxy.virtual import LoopClock, arrive, run
from tests.unit.proxy.world import CLIENT, World, poll_request, world


class AnswerStream:
    """A poll's stream that reads its request, and keeps what it is answered."""

    def __init__(self, request: pb.ReceiveMessageRequest) -> None:
        self._request = request
        self.sent: list[bytes] = []
        self.errors: list[BaseException | None] = []

    async def receive(self) -> pb.ReceiveMessageRequest:
        return self._request

    async def send(self, messages: Sequence[bytes]) -> None:
        self.sent += messages

    def ended(self, result: object, error: BaseException | None) -> None:
        self.errors.append(error)


async def waiting_poll(w: World) -> AnswerStream:
    """A poll that waits, run as servers run it."""
    stream = AnswerStream(poll_request())
    _, handler = w.app.service.stream_handlers[protocol.RECEIVE_MESSAGE.path]
    call = Call(protocol.RECEIVE_MESSAGE.path, CLIENT, None, "peer")
    LightTask(asyncio.get_running_loop(), handler(call, stream), stream.ended).start_within()
    await asyncio.sleep(0.5)
    assert not stream.sent
    return stream


def test_a_message_that_comes_alone_is_answered_in_the_turn_of_its_notification() -> None:
    async def body() -> None:
        async with world(clock=LoopClock(), poll_mode="notify") as w:
            stream = await waiting_poll(w)
            await arrive(w.broker)
            assert len(stream.sent) == 3 and stream.errors == [None]

    run(body())


def test_several_are_answered_in_the_next_turn_which_other_calls_share() -> None:
    async def body() -> None:
        async with world(clock=LoopClock(), poll_mode="notify") as w:
            stream = await waiting_poll(w)
            await arrive(w.broker, count=3)
            assert not stream.sent
            await asyncio.sleep(0)
            assert len(stream.sent) == 5 and stream.errors == [None]

    run(body())


def test_one_that_comes_right_behind_another_is_popped_in_a_later_turn_with_what_joins_it() -> None:
    async def body() -> None:
        async with world(clock=LoopClock(), poll_mode="notify") as w:
            first, second = await waiting_poll(w), await waiting_poll(w)
            await arrive(w.broker)
            await arrive(w.broker)
            await arrive(w.broker)
            assert (len(first.sent), second.sent) == (3, [])
            await asyncio.sleep(0.1)
            assert len(second.sent) == 4

    run(body())
