"""Sending: each message until it is stored, and those that are stored not again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pyarrow as pa
import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest, SendMessageResponse
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.service import Call, Channel, Service
from popwheel_spark.errors import RefusedError
from popwheel_spark.sink.row_requests import Origin, RowRequest, RowRequests
from popwheel_spark.sink.sender import Sender
from popwheel_spark.wire.methods import SEND
from popwheel_spark.wire.proxies import Proxies

T = TypeVar("T")
OK, AWAY, EMPTY = Code.OK, Code.HA_NOT_AVAILABLE, Code.MESSAGE_BODY_EMPTY


class Answering(Proxies):
    """A proxy with an answer for each call in turn; what may pass is tried again at once.

    Args:
        answers: their status, then that of each message.
    """

    def __init__(self, *answers: tuple[Code.ValueType, ...]) -> None:
        self.asked: list[bytes] = []
        self._answers = iter(answers)

    @property
    def metadata(self) -> dict[str, str]:
        return {}

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


REQUESTS = (RowRequest("q/0/0/0", [b"a", b"b", b"c"]), RowRequest("q/0/0/3", [b"d"]))


def sent(*answers: tuple[Code.ValueType, ...]) -> list[bytes]:
    """Send two requests in turn; what proxies were asked that answer so."""
    proxies = Answering(*answers)
    asyncio.run(Sender(proxies, 1).send(REQUESTS))
    return proxies.asked


def test_messages_that_are_stored_are_sent_once() -> None:
    assert sent((OK, OK, OK, OK), (OK, OK)) == [b"abc", b"d"]


def test_only_those_that_are_not_stored_are_sent_again() -> None:
    parts = (Code.MULTIPLE_RESULTS, AWAY, OK, AWAY), (Code.MULTIPLE_RESULTS, OK, AWAY)
    assert sent(*parts, (OK, OK), (OK, OK)) == [b"abc", b"ac", b"c", b"d"]


def test_a_request_of_which_nothing_was_looked_at_is_sent_again_whole() -> None:
    assert sent((AWAY,), (AWAY, AWAY, AWAY, AWAY), (OK, OK, OK, OK), (OK, OK)) == [b"abc", b"abc", b"abc", b"d"]


def test_what_is_refused_is_named_by_its_first_row() -> None:
    with pytest.raises(RefusedError, match="sending 1 rows from q/0/0/3 on: MESSAGE_BODY_EMPTY"):
        sent((OK, OK, OK, OK), (EMPTY, EMPTY))


class Counting(Proxies):
    """Proxies that answer when a number of calls is in flight.

    Args:
        at_once: that number.
    """

    def __init__(self, at_once: int) -> None:
        self._met = asyncio.Barrier(at_once)

    async def call(self, what: str, once: Callable[[Channel], Awaitable[T]]) -> T:
        await self._met.wait()
        return None  # type: ignore[return-value]


def test_that_many_requests_are_under_way_at_once() -> None:
    asyncio.run(Sender(Counting(2), 2).send(REQUESTS))


class Slow(Proxies):
    """Proxies that take a different number of turns for each request, and note what they have stored."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.at_once = self._under_way = 0
        self._dice = random.Random(7)

    @property
    def metadata(self) -> dict[str, str]:
        return {}

    async def call(self, what: str, once: Callable[[Channel], Awaitable[T]]) -> T:
        service = Service()
        service.unary(SEND, self._answer)
        self._under_way += 1
        self.at_once = max(self.at_once, self._under_way)
        for _ in range(self._dice.randrange(9)):
            await asyncio.sleep(0)
        answer = await once(LocalChannel(service))
        self._under_way -= 1
        return answer

    async def _answer(self, call: Call, request: bytes) -> SendMessageResponse:
        response = SendMessageResponse()
        response.status.code = OK
        for message in SendMessageRequest.FromString(request).messages:
            self.stored.append(message.body.decode())
            response.entries.add().status.code = OK
        return response


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_message_groups_keep_their_order_however_many_requests_are_under_way(at_once: int) -> None:
    groups = [None if number % 11 == 0 else f"g{number % 23}" for number in range(5_000)]
    bodies = [f"{group} {number}".encode() for number, group in enumerate(groups)]
    proxies = Slow()
    requests = RowRequests("orders", Origin("q/0", 0), 0, at_once)
    sender = Sender(proxies, at_once)

    async def send() -> None:
        for begin in range(0, 5_000, 1_250):
            some = slice(begin, begin + 1_250)
            batch = pa.RecordBatch.from_pydict({"body": bodies[some], "messageGroup": groups[some]})
            await sender.send(requests.of(batch))

    asyncio.run(send())
    assert sorted(proxies.stored) == sorted(body.decode() for body in bodies)
    assert proxies.at_once == at_once
    for group in {group for group in groups if group}:
        numbers = [int(body.split()[1]) for body in proxies.stored if body.startswith(f"{group} ")]
        assert numbers == sorted(numbers), group


def test_a_request_has_few_message_groups_and_rows_keep_their_keys() -> None:
    rows = [{"body": b"%d" % number, "messageGroup": f"g{number % 50}"} for number in range(1_000)]
    requests = list(RowRequests("orders", Origin("q/0", 0), 0, 8).of(pa.RecordBatch.from_pylist(rows)))
    assert max(len(request.messages) for request in requests) == 64
    for request in requests:
        messages = SendMessageRequest.FromString(b"".join(request.messages)).messages
        assert len({message.system_properties.message_group for message in messages}) <= 5
        assert [message.system_properties.keys[-1] for message in messages] == [
            f"q/0/0/{message.body.decode()}" for message in messages
        ]
        assert request.first == messages[0].system_properties.keys[-1]
