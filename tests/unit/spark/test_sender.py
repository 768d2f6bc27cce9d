"""Sending: each message until it is stored, and those that are stored not again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from popwheel_spark.errors import RefusedError
from popwheel_spark.methods import SEND
from popwheel_spark.proxies import Proxies
from popwheel_spark.row_requests import RowRequest
from popwheel_spark.sender import Sender
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.apache.rocketmq.v2.service_pb2 import SendMessageResponse
from services.rpc.local import LocalChannel
from services.rpc.service import Call, Channel, Service

T = TypeVar("T")
OK, AWAY, EMPTY = Code.OK, Code.HA_NOT_AVAILABLE, Code.MESSAGE_BODY_EMPTY


class Answering(Proxies):
    """A proxy with an answer for each call in turn; what may pass is tried again at once.

    Args:
        answers: their status, then that of each message.
    """

    def __init__(self, *answers: tuple[Code.ValueType, ...]) -> None:
        self.metadata = {}
        self.asked: list[bytes] = []
        self._answers = iter(answers)

    async def call(self, what: str, once: Callable[[Channel], Awaitable[T]]) -> T:
        service = Service()
        service.unary(SEND, self._answer)
        channel = LocalChannel(service)
        while True:
            try:
                return await once(channel)
            except StatusError as error:
                if error.code != AWAY:
                    raise RefusedError(f"{what}: {error}") from error

    async def _answer(self, call: Call, request: bytes) -> SendMessageResponse:
        self.asked.append(request)
        response = SendMessageResponse()
        response.status.code, *entries = next(self._answers)
        for code in entries:
            response.entries.add().status.code = code
        return response


def send(proxies: Answering) -> int:
    """Send two requests in turn; how many messages there were."""
    requests = [RowRequest("q/0/0/0", [b"a", b"b", b"c"]), RowRequest("q/0/0/3", [b"d"])]
    return asyncio.run(Sender(proxies, 1).send(requests))


def test_messages_that_are_stored_are_sent_once() -> None:
    proxies = Answering((OK, OK, OK, OK), (OK, OK))
    assert (send(proxies), proxies.asked) == (4, [b"abc", b"d"])


def test_only_those_that_are_not_stored_are_sent_again() -> None:
    proxies = Answering((Code.MULTIPLE_RESULTS, AWAY, OK, AWAY), (Code.MULTIPLE_RESULTS, OK, AWAY), (OK, OK), (OK, OK))
    assert (send(proxies), proxies.asked) == (4, [b"abc", b"ac", b"c", b"d"])


def test_a_request_of_which_nothing_was_looked_at_is_sent_again_whole() -> None:
    proxies = Answering((AWAY,), (AWAY, AWAY, AWAY, AWAY), (OK, OK, OK, OK), (OK, OK))
    assert (send(proxies), proxies.asked) == (4, [b"abc", b"abc", b"abc", b"d"])


def test_what_is_refused_is_named_by_its_first_row() -> None:
    with pytest.raises(RefusedError, match="sending 1 rows from q/0/0/3 on: MESSAGE_BODY_EMPTY"):
        send(Answering((OK, OK, OK, OK), (EMPTY, EMPTY)))
