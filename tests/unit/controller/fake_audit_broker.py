"""A broker in memory that is asked who has which message, and how far groups are."""

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from services.rpc.local import LocalChannel
from services.rpc.methods import IN_FLIGHT_LIST, PROGRESS_LIST
from services.rpc.service import Call, Channel, Service
from services.rpc.status import RpcError

NOW_MS = 1_700_000_000_000


class FakeAuditBroker:
    """Serves InFlightList and ProgressList: messages 0, 1, 2 ... of queue 0, and as many queues of progress.

    Args:
        name: the broker's.
        count: how many messages are in flight, and how many queues there are.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.error: StatusError | RpcError | None = None
        self.service = Service()
        self.service.unary(IN_FLIGHT_LIST, self._in_flight)
        self.service.unary(PROGRESS_LIST, self._progress)

    def connect(self, info: BrokerInfo) -> Channel:
        """A channel to this broker."""
        assert info.name == self.name
        return LocalChannel(self.service)

    async def _in_flight(self, call: Call, request: pb.InFlightListRequest) -> pb.InFlightListResponse:
        numbers, rest = self._page(request.begin, request.limit)
        answer = pb.InFlightListResponse(next=rest, epoch=3)
        for number in numbers:
            answer.messages.add(
                group=request.group or "workers",
                topic=request.topic,
                queue_offset=number,
                message_id=f"id-{number}",
                attempt=1 + number,
                popped_ms=NOW_MS,
                due_ms=NOW_MS + 30_000,
            )
        return answer

    async def _progress(self, call: Call, request: pb.ProgressListRequest) -> pb.ProgressListResponse:
        numbers, rest = self._page(request.begin, request.limit)
        answer = pb.ProgressListResponse(next=rest, epoch=3, dead_letters=2)
        for number in numbers:
            answer.queues.add(
                topic=request.topic or "orders",
                queue_id=number,
                min_offset=1,
                next_offset=5,
                committed_offset=-1 if number else 4,
                max_offset=9,
                in_flight=3,
            )
        return answer

    def _page(self, begin: str, limit: int) -> tuple[range, str]:
        if self.error is not None:
            raise self.error
        if begin and not begin.isdigit():
            raise StatusError(Code.BAD_REQUEST, "this is no place to go on from")
        end = min(self.count, int(begin or 0) + limit)
        return range(int(begin or 0), end), str(end) if end < self.count else ""
