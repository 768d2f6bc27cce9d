"""How soon a poll that waits is answered, run as servers run their handlers."""

import asyncio
from collections.abc import Sequence

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.server.light_task import LightTask
from popwheel_rpc.service import Call
from tests.unit.proxy.virtual import LoopClock, arrive, run
from tests.unit.proxy.world import CLIENT, poll_request, world


class AnswerStream:
    """A poll's stream that reads its request, and keeps what it is answered."""

    def __init__(self, request: pb.ReceiveMessageRequest) -> None:
        self._request = request
        self.sent: list[bytes] = []

    async def receive(self) -> pb.ReceiveMessageRequest:
        return self._request

    async def send(self, messages: Sequence[bytes]) -> None:
        self.sent += messages


async def answers_at_once(count: int) -> bool:
    """Whether a waiting poll, run as servers run it, has its answer when the broker has sent its notification."""
    async with world(clock=LoopClock(), poll_mode="notify") as w:
        stream = AnswerStream(poll_request())
        _, handler = w.app.service.stream_handlers[protocol.RECEIVE_MESSAGE.path]
        call = Call(protocol.RECEIVE_MESSAGE.path, CLIENT, None, "peer")
        ended: list[object] = []
        LightTask(
            asyncio.get_running_loop(), handler(call, stream), lambda result, error: ended.append(error)
        ).start_within()
        await asyncio.sleep(0.5)
        assert not stream.sent
        await arrive(w.broker, count=count)
        at_once = bool(stream.sent)
        await asyncio.sleep(0.5)
        assert (len(stream.sent), ended) == (count + 2, [None])
        return at_once


def test_a_message_that_comes_alone_is_answered_in_the_turn_of_its_notification() -> None:
    assert run(answers_at_once(1))


def test_several_are_answered_in_the_next_turn_which_other_calls_share() -> None:
    assert not run(answers_at_once(3))
