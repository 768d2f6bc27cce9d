"""A broker in memory that has messages and dead letters, as the admin API asks for them."""

from collections.abc import Sequence

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.methods import DEAD_LETTER_LIST, DEAD_LETTER_SELECT, MESSAGE_LIST, MESSAGE_TAIL
from popwheel_rpc.service import Call
from popwheel_rpc.status import RpcError
from tests.unit.controller.fake_audit_broker import NOW_MS, FakeAuditBroker


def message(number: int, body: bytes = b"") -> bytes:
    """The message of an offset."""
    properties = SystemProperties(message_id=f"id-{number}", queue_offset=number, keys=["k"])
    properties.dead_letter_queue.topic = "orders"
    made = Message(system_properties=properties, user_properties={"p": "v"}, body=body or b"%d" % number)
    return made.SerializeToString()


class FakeMessageBroker(FakeAuditBroker):
    """Has messages 0, 1, 2 ... in queue 0, and as many dead letters. A list looks at few of them at a time.

    Args:
        name: the broker's.
        count: how many messages.
        looks_at: how many a list looks at.
    """

    def __init__(self, name: str, count: int, looks_at: int = 3) -> None:
        super().__init__(name, count)
        self.looks_at = looks_at
        self.body = b""
        self.connections = 0
        self.asked: list[pb.MessageListRequest] = []
        self.tails: list[pb.MessageTailRequest] = []
        self.came: list[pb.MessageTailResponse] = []
        """What the next questions of tails are answered."""
        self.service.unary(MESSAGE_LIST, self._messages)
        self.service.unary(MESSAGE_TAIL, self._tail)
        self.service.unary(DEAD_LETTER_LIST, self._letters)
        self.service.unary(DEAD_LETTER_SELECT, self._select)

    def fails(self, error: StatusError | RpcError | None) -> None:
        """Answer all questions so from now on."""
        self.error = error

    async def _messages(self, call: Call, request: pb.MessageListRequest) -> pb.MessageListResponse:
        self.asked.append(request)
        numbers, rest = self._page(request.begin, self.looks_at)
        found = [number for number in numbers if not request.tag or number % 2][: request.limit]
        if found and len(found) == request.limit:
            numbers = range(numbers.start, found[-1] + 1)
            rest = str(numbers.stop) if numbers.stop < self.count else ""
        answer = pb.MessageListResponse(next=rest, epoch=3, looked_through=len(numbers))
        answer.messages.extend(self.traced(number) for number in found)
        return answer

    def traced(self, number: int) -> pb.TracedMessage:
        """A message at its place."""
        return pb.TracedMessage(
            topic="orders", queue_offset=number, stored_ms=NOW_MS + number, message=message(number, self.body)
        )

    def comes(self, numbers: Sequence[int], passed_over: int = 0) -> None:
        """These are seen by the next question of a tail."""
        answer = pb.MessageTailResponse(passed_over=passed_over, places=[pb.TailPlace(offset=numbers[-1] + 1)])
        answer.messages.extend(self.traced(number) for number in numbers)
        self.came.append(answer)

    async def _tail(self, call: Call, request: pb.MessageTailRequest) -> pb.MessageTailResponse:
        if self.error is not None:
            raise self.error
        self.tails.append(request)
        if not request.places or not self.came:
            return pb.MessageTailResponse(places=request.places or [pb.TailPlace(offset=7)], begun=not request.places)
        answer = self.came.pop(0)
        over = max(0, len(answer.messages) - request.limit)
        del answer.messages[:over]
        answer.passed_over += over
        return answer

    async def _letters(self, call: Call, request: pb.DeadLetterListRequest) -> pb.DeadLetterListResponse:
        numbers, _ = self._page(str(request.begin_offset), min(self.looks_at, request.limit))
        return pb.DeadLetterListResponse(
            messages=[message(number, self.body) for number in numbers],
            next_offset=numbers.stop,
            max_offset=self.count,
            total=self.count,
        )

    async def _select(self, call: Call, request: pb.DeadLetterSelectRequest) -> pb.DeadLetterSelectResponse:
        if self.error is not None:
            raise self.error
        there = [each for each in request.offsets if each < self.count]
        if not request.dry_run and there and there[0] == 13:
            raise StatusError(Code.INTERNAL_ERROR, "the disk is full")
        return pb.DeadLetterSelectResponse(
            redriven=len(there), moved=1, gone=[each for each in request.offsets if each >= self.count]
        )
