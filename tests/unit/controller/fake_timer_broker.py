"""A broker in memory of which only the delayed messages are asked."""

from popwheel_common.contract import recall_handle
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.methods import RECALL, TIMER_LIST, TIMER_STATS
from popwheel_rpc.service import Call, Channel, Service
from popwheel_rpc.status import RpcError

NOW_MS = 1_700_000_000_000
HORIZONS_MS = (60_000, 600_000, 3_600_000, 86_400_000, 0)


class FakeTimerBroker:
    """Serves TimerStats, TimerList and Recall.

    Args:
        name: the broker's.
        dues: topic and delivery time of each message that waits.
    """

    def __init__(self, name: str, *dues: tuple[str, int]) -> None:
        self.name = name
        self.key = b""
        self.dues = list(dues)
        self.recalled = 0
        self.at_once = 1000
        """Limit of the timers that are listed, however many are asked for."""
        self.error: StatusError | RpcError | None = None
        self.channels: list[Channel] = []
        self.service = Service()
        self.service.unary(TIMER_STATS, self._stats)
        self.service.unary(TIMER_LIST, self._list)
        self.service.unary(RECALL, self._recall)

    def connect(self, info: BrokerInfo) -> Channel:
        """A channel to this broker."""
        assert info.name == self.name
        self.channels.append(LocalChannel(self.service))
        return self.channels[-1]

    def handle(self, topic: str, due_ms: int) -> str:
        """The recall handle of a message."""
        return recall_handle.encode(self.key, topic, RecallHandle(self.name, due_ms, due_ms, f"id-{due_ms - NOW_MS}"))

    async def _stats(self, call: Call, request: pb.TimerStatsRequest) -> pb.TimerStatsResponse:
        self._fail()
        answer = pb.TimerStatsResponse(
            read_time_ms=NOW_MS, write_time_ms=NOW_MS + 1, behind_ms=7, pending=len(self.dues), recalled=self.recalled
        )
        counted = 0
        for within_ms in HORIZONS_MS:
            until = sum(not within_ms or due_ms <= NOW_MS + within_ms for _, due_ms in self.dues)
            answer.horizons.add(within_ms=within_ms, count=until - counted)
            counted = until
        for topic in sorted({topic for topic, _ in self.dues}):
            answer.topics.add(topic=topic, count=sum(one == topic for one, _ in self.dues))
        return answer

    async def _list(self, call: Call, request: pb.TimerListRequest) -> pb.TimerListResponse:
        self._fail()
        until_ms = NOW_MS + request.within_ms
        found = [(due_ms, topic) for topic, due_ms in self.dues if request.topic in ("", topic) and due_ms <= until_ms]
        begin = request.begin
        rest = [
            each
            for each in sorted(found, key=lambda each: (each[0] // 1000, -each[0]))  # the latest of a second first
            if _slot(each[0]) > begin.slot_ms
            or (
                _slot(each[0]) == begin.slot_ms
                and (not begin.HasField("unit_position") or each[0] < begin.unit_position)
            )
        ]
        here = rest[: min(request.limit, self.at_once)]
        answer = pb.TimerListResponse(more=len(rest) > len(here))
        for due_ms, topic in here:
            answer.timers.add(
                due_ms=due_ms,
                topic=topic,
                message_id=f"id-{due_ms - NOW_MS}",
                tag="t",
                keys=["k1", "k2"],
                recall_handle=self.handle(topic, due_ms),
                body=b"soon",
                body_bytes=4,
                after=pb.TimerPlace(slot_ms=_slot(due_ms), unit_position=due_ms, record_position=due_ms),
            )
        if answer.more:
            answer.next.CopyFrom(answer.timers[-1].after if here else pb.TimerPlace(slot_ms=_slot(rest[0][0])))
        return answer

    async def _recall(self, call: Call, request: pb.RecallRequest) -> pb.RecallResponse:
        self._fail()
        shown = recall_handle.decode(self.key, request.topic, request.recall_handle)
        if (request.topic, shown.due_ms) not in self.dues:
            raise StatusError(Code.PRECONDITION_FAILED, "it is too late: it has been or is being delivered")
        self.dues.remove((request.topic, shown.due_ms))
        self.recalled += 1
        return pb.RecallResponse(message_id=shown.message_id)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def _slot(due_ms: int) -> int:
    return due_ms - due_ms % 1000
