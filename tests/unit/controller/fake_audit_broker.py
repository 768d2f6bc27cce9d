"""A broker in memory that is asked who has which message, and how far groups are."""

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import (
    DESCRIBE_USE,
    IN_FLIGHT_LIST,
    IN_FLIGHT_RELEASE,
    IN_FLIGHT_SUMMARY,
    MESSAGE_EVENTS,
    PROGRESS_LIST,
)
from popwheel_rpc.service import Call, Channel, Service
from popwheel_rpc.status import RpcError

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
        self.service.unary(DESCRIBE_USE, self._describe_use)
        self.summary = pb.InFlightSummaryResponse()
        self.service.unary(IN_FLIGHT_SUMMARY, self._summary)
        self.releases: list[pb.InFlightReleaseRequest] = []
        self.service.unary(IN_FLIGHT_RELEASE, self._release)
        self.events: list[pb.MessageEvent] = []
        self.asked_for_events: list[pb.MessageEventsRequest] = []
        self.service.unary(MESSAGE_EVENTS, self._events)

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
                client_id=request.client_id or ("" if number else "consumer@7"),
            )
        answer.known_since_ms = NOW_MS - 1
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

    async def _describe_use(self, call: Call, request: pb.DescribeUseRequest) -> pb.DescribeUseResponse:
        if self.error is not None:
            raise self.error
        return pb.DescribeUseResponse(
            unread=self.count,
            in_flight=2,
            delayed=3 if request.topic else 0,
            dead_letters=4 if request.group else 0,
            others=[f"with-{self.name}"],
            others_total=1,
            polling_proxies=self.count % 3,
        )

    async def _summary(self, call: Call, request: pb.InFlightSummaryRequest) -> pb.InFlightSummaryResponse:
        if self.error is not None:
            raise self.error
        return self.summary

    async def _release(self, call: Call, request: pb.InFlightReleaseRequest) -> pb.InFlightReleaseResponse:
        if self.error is not None:
            raise self.error
        self.releases.append(request)
        return pb.InFlightReleaseResponse(released=not request.dry_run, message_id="id", attempt=2, client_id="c")

    async def _events(self, call: Call, request: pb.MessageEventsRequest) -> pb.MessageEventsResponse:
        """One event a page."""
        self.asked_for_events.append(request)
        numbers, rest = self._page(request.begin, 1)
        events = [self.events[number] for number in numbers if number < len(self.events)]
        return pb.MessageEventsResponse(events=events, next=rest, epoch=3, known_since_ms=NOW_MS, dropped=4)

    def _page(self, begin: str, limit: int) -> tuple[range, str]:
        if self.error is not None:
            raise self.error
        if begin and not begin.isdigit():
            raise StatusError(Code.BAD_REQUEST, "this is no place to go on from")
        end = min(self.count, int(begin or 0) + limit)
        return range(int(begin or 0), end), str(end) if end < self.count else ""
