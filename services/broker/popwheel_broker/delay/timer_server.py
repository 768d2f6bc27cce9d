"""Requests of proxies and operators to the timer: storing delayed messages, recalling them, listing them."""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

from popwheel_broker.delay import overview
from popwheel_broker.delay.histogram import TopicHistogram
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.overview import PendingMessage, TimerPlace
from popwheel_broker.delay.recovery import delay_of
from popwheel_broker.delay.timer_metrics import TimerStatistics
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.log.refusals import naming_trouble
from popwheel_broker.log.repaired_reads import RepairedReads
from popwheel_broker.log.run_batch import RunBatch, Sent, put_alone
from popwheel_broker.log.timer_record import NONE, TIMER_QUEUE, TIMER_TOPIC, Delay
from popwheel_common.clock import Clock
from popwheel_common.contract import names, recall_handle
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.contract.names import Use
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service

_LIST_MAX = 1000
_LIST_STEPS_MAX = 16
"""Limit of steps of a list, each of a few milliseconds; other calls run in between."""
_NOT_DELAYED = ""
_BOUNDS_MAX = 100
_HISTOGRAM_STEPS = 4


class TimerServer:
    """Serves the timer's part of popwheel.v1.Broker.

    Args:
        timer: the timer.
        flusher: makes durable.
        view: the key that recall handles are signed with.
        broker_name: for recall handles.
        clock: the time.
        statistics: counts.
        reads: reads records, of which a damaged one is mended.
    """

    kind: Final = PutKind.AT_TIME
    queue: Final = (TIMER_TOPIC, TIMER_QUEUE)
    leaves_by_itself: Final = True

    def __init__(
        self,
        timer: MessageTimer,
        flusher: Flusher,
        view: ClusterView,
        broker_name: str,
        clock: Clock,
        statistics: TimerStatistics,
        reads: RepairedReads,
    ) -> None:
        self._timer = timer
        self._store = timer.store
        self._flusher = flusher
        self._view = view
        self._broker_name = broker_name
        self._clock = clock
        self._statistics = statistics
        self._reads = reads
        self._pace = Pace(clock)

    def bind(self, service: Service) -> None:
        """Serve the methods."""
        service.unary(methods.RECALL, naming_trouble(self.recall))
        service.unary(methods.TIMER_STATS, self.stats)
        service.unary(methods.TIMER_LIST, naming_trouble(self.list))
        service.unary(methods.TIMER_HISTOGRAM, naming_trouble(self.histogram))

    def put(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append delayed runs (`RunWriter.put`)."""
        timer = self._timer
        key = self._view.receipt_key  # without it no message may be stored that needs a recall handle
        batch, taken = RunBatch(), timer.intake.batch()
        for run in runs:
            batch.take(run, taken.accept)
        if not batch.accepted:
            return batch.results
        try:
            with RECORD_STEP:
                appended = self._store.put(taken.records)
        except RecordFaultError as fault:
            return put_alone(runs, self.put, fault, refusals)
        timer.intake.stored(taken)
        for run, result, own in batch.appended(appended.queue_offsets, appended.store_time_ms):
            self._statistics.accepted.row(run.topic).total += len(run.payloads)
            result.references = [
                _NOT_DELAYED
                if delay is None
                else self._handle(key, delay, overview.system_properties(properties).message_id, position)
                for properties, delay, position in zip(
                    run.system_properties, taken.delays[own], appended.positions[own], strict=True
                )
            ]
        return batch.results

    def reference(self, run: MessageRun, index: int, position: int) -> str:
        """Return the recall handle of a message of a run whose TIMER record stands at `position`; none if it is
        negative.
        """
        if position < 0:
            return _NOT_DELAYED
        delay = Delay(run.topic, run.queue_id, self._timer.intake.topic_id(run.topic), run.times_ms[index])
        message_id = overview.system_properties(run.system_properties[index]).message_id
        return self._handle(self._view.receipt_key, delay, message_id, position)

    @staticmethod
    def sent(found: StoredRecord) -> Sent | None:
        """Return the send that a record of the timer queue came from (`RunWriter.sent`)."""
        delay = delay_of(found)
        return None if delay is None else Sent(delay.topic, delay.topic_id, delay.root_at(found.position))

    def _handle(self, key: bytes, delay: Delay, message_id: str, position: int) -> str:
        epoch = self._store.epoch
        message = RecallHandle(self._broker_name, position, delay.due_ms, message_id, epoch, delay.topic_id)
        return recall_handle.encode(key, delay.topic, message)

    async def recall(self, call: Call, request: pb.RecallRequest) -> pb.RecallResponse:
        """Recall a message that is not due yet; the answer is durable (T4)."""
        names.topic(request.topic, Use.SEND)
        handle = recall_handle.decode(self._view.receipt_key, request.topic, request.recall_handle)
        if handle.epoch > self._store.epoch:
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"a later master of {self._broker_name} issued this handle, so this one leads no more; try again",
            )
        recall = partial(self._recall_once, request.topic, handle)
        refusal = await self._reads.run(recall, handle.position)
        if refusal is not None:
            await self._flusher.sync_refused(refusal)
            raise refusal
        await self._flusher.durable()
        return pb.RecallResponse(message_id=handle.message_id)

    def _recall_once(self, topic: str, handle: RecallHandle) -> StatusError | None:
        """Append the record that recalls a message; return why it could not be. Raises as `TimerIntake.recall` does."""
        record = self._timer.intake.recall(topic, handle)
        if record is not None:
            try:
                self._store.put([record])
            except StatusError as error:
                return error
            self._statistics.recalls += 1
        return None

    async def stats(self, call: Call, request: pb.TimerStatsRequest) -> pb.TimerStatsResponse:
        """Return how many messages are pending, and how late the timer is."""
        return overview.stats(self._timer, self._clock.wall_ms())

    async def histogram(self, call: Call, request: pb.TimerHistogramRequest) -> pb.TimerHistogramResponse:
        """Return how many messages are due within given times from now.

        Messages of one topic are counted as far as its units can be.

        Raises:
            StatusError: ILLEGAL_TOPIC; BAD_REQUEST, the times are too many or out of order.
        """
        if request.topic:
            names.topic(request.topic, Use.QUERY)
        bounds_ms = [*request.bounds_ms]
        if len(bounds_ms) > _BOUNDS_MAX or sorted({*bounds_ms}) != bounds_ms or (bounds_ms and bounds_ms[0] <= 0):
            raise StatusError(
                Code.BAD_REQUEST,
                f"bounds_ms: pass at most {_BOUNDS_MAX} times above 0, each greater than the one before",
            )
        pending, now_ms = self._timer.state.pending, self._clock.wall_ms()
        of_topic = pending.of_topic(request.topic) if request.topic else pending.total
        answer = pb.TimerHistogramResponse(pending=of_topic, behind_ms=self._timer.dequeue_behind_ms())
        if of_topic == pending.total:
            answer.counts.extend(pending.histogram(now_ms, bounds_ms))
        elif not of_topic:
            answer.counts.extend([0] * (len(bounds_ms) + 1))
        else:
            found = TopicHistogram(self._timer, request.topic, now_ms, bounds_ms)
            if found.is_known:
                steps = found.steps()
                goes_on = True
                while goes_on:
                    began_s = self._clock.monotonic()
                    goes_on = sum(1 for _ in islice(steps, _HISTOGRAM_STEPS)) == _HISTOGRAM_STEPS
                    await self._pace.let_others(self._clock.monotonic() - began_s)
                answer.counts.extend(found.counts)
        return answer

    async def list(self, call: Call, request: pb.TimerListRequest) -> pb.TimerListResponse:
        """Return some delayed messages of a topic, or of all, and where the list continues."""
        if request.topic:
            names.topic(request.topic, Use.QUERY)
        limit = min(max(1, request.limit), _LIST_MAX)
        now_ms = self._clock.wall_ms()
        until_ms = now_ms + max(0, request.within_ms)
        begin = _place(request.begin)
        found: list[PendingMessage] = []
        rest: TimerPlace | None = begin
        for _ in range(_LIST_STEPS_MAX):
            if rest is None or len(found) >= limit:
                break
            began_s = self._clock.monotonic()
            search = partial(
                overview.pending_messages,
                self._timer,
                self._store,
                request.topic,
                now_ms,
                until_ms,
                rest,
                limit - len(found),
            )
            messages, rest = await self._store.reads.run(search)
            found += messages
            # Also after the last: the answer is made in another turn of the loop.
            await self._pace.let_others(self._clock.monotonic() - began_s)
        answer = pb.TimerListResponse(more=rest is not None)
        if rest is not None:
            answer.next.CopyFrom(_said(rest))
        for message in found:
            key, message_id = self._view.receipt_key, message.properties.message_id
            handle = self._handle(key, message.delay, message_id, message.root)
            answer.timers.add(
                due_ms=message.delay.due_ms,
                topic=message.delay.topic,
                message_id=message.properties.message_id,
                tag=message.properties.tag,
                keys=message.properties.keys,
                recall_handle=handle,
                after=_said(message.place),
                body=message.body,
                body_bytes=message.body_bytes,
            )
        return answer


def _place(said: pb.TimerPlace) -> TimerPlace:
    if said.HasField("unit_position"):
        return TimerPlace(said.slot_ms, said.unit_position, said.record_position)
    return TimerPlace(said.slot_ms)


def _said(place: TimerPlace) -> pb.TimerPlace:
    if place.unit_position == NONE:
        return pb.TimerPlace(slot_ms=place.slot_ms)
    return pb.TimerPlace(
        slot_ms=place.slot_ms, unit_position=place.unit_position, record_position=place.record_position
    )
