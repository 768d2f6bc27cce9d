"""What operators do with a consumer group: set it back or forward, and look after its dead letters."""

from functools import partial

from services.broker.calls.term_reads import TermReads
from services.broker.options import BrokerOptions
from services.broker.pace import Pace
from services.broker.pop import delivery
from services.broker.state.core import BrokerCore
from services.broker.state.dead_letters import Redriven
from services.broker.state.offset_reset import ResetPlan
from services.broker.store.consume_queue import ConsumeQueue
from services.broker.store.flusher import Flusher
from services.common.clock import Clock
from services.common.contract import names
from services.common.contract.names import Use
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.rpc.service import Call

_AT_ONCE_MAX = 1_000
"""So many dead letters are listed or given back by one call."""


class GroupServer:
    """Serves that part of popwheel.v1.Broker.

    Args:
        core: decides.
        flusher: makes durable.
        reads: the reads of this term.
        options: the broker's name; how long answers may be.
        clock: how long a step takes.
    """

    def __init__(
        self, core: BrokerCore, flusher: Flusher, reads: TermReads, options: BrokerOptions, clock: Clock
    ) -> None:
        self._core = core
        self._clock = clock
        self._pace = Pace(clock)
        self._flusher = flusher
        self._reads = reads
        self._options = options

    async def reset_offsets(self, call: Call, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        """Set a group back or forward in a topic, durably; or say what that would change."""
        names.group(request.group)
        names.topic(request.topic, Use.COMMIT)
        self._core.settlement.settle((request.topic,), (request.group,))
        offsets: dict[ConsumeQueue, int] = {}
        for queue in sorted(self._core.store.queues.of_topic(request.topic), key=lambda each: each.queue_id):
            offsets[queue] = await self._reads.run(partial(self._offset, queue, request))
        plan, answer = await self._reads.run(partial(self._reset_or_preview, request, offsets))
        if request.dry_run:
            return answer
        try:
            more = bool(plan.given_out)
            while more:
                began_s = self._clock.monotonic()
                more = await self._reads.run(partial(self._core.offset_reset.go_on, plan))
                await self._pace.let_others(self._clock.monotonic() - began_s)
        finally:
            self._core.offset_reset.end(plan)
        await self._flusher.durable(self._core.store.log.end_position)
        return answer

    def _offset(self, queue: ConsumeQueue, request: pb.ResetOffsetsRequest) -> int:
        """Where the group is to go on in a queue."""
        if request.policy == pb.BEGINNING:
            return queue.min_offset
        if request.policy == pb.END:
            return queue.max_offset
        return self._core.store.records.offset_at(queue, request.timestamp_ms)

    def _reset_or_preview(
        self, request: pb.ResetOffsetsRequest, offsets: dict[ConsumeQueue, int]
    ) -> tuple[ResetPlan, pb.ResetOffsetsResponse]:
        # Deleted, and made again, while times were looked up: those queues are nobody's any more.
        here = {queue: at for queue, at in offsets.items() if self._is_here(queue)}
        plan = self._core.offset_reset.plan(request.group, request.topic, here)
        answer = self._said(plan)
        if not request.dry_run:
            self._core.offset_reset.begin(plan)
        return plan, answer

    def _is_here(self, queue: ConsumeQueue) -> bool:
        return self._core.store.queue(queue.topic, queue.queue_id) is queue

    def _said(self, plan: ResetPlan) -> pb.ResetOffsetsResponse:
        progress_of = self._core.state.merge_buffer.of
        retries = sum(progress_of(plan.group, queue).available for queue in plan.retries)
        answer = pb.ResetOffsetsResponse(in_flight=plan.in_flight, retries=retries)
        for queue, offset in plan.queues.items():
            answer.queues.add(
                queue_id=queue.queue_id,
                from_offset=progress_of(plan.group, queue).next_offset,
                to_offset=offset,
                max_offset=queue.max_offset,
            )
        return answer

    async def list_dead_letters(self, call: Call, request: pb.DeadLetterListRequest) -> pb.DeadLetterListResponse:
        """Some dead letters of a group."""
        names.group(request.group)
        letters = self._core.dead_letters
        self._core.settlement.settle((), (request.group,))
        queue = letters.queue(request.group)
        if queue is None:
            return pb.DeadLetterListResponse()
        first = letters.first_offset(request.group, queue)
        begin = min(max(first, request.begin_offset), queue.max_offset)
        limit = min(max(1, request.limit), _AT_ONCE_MAX)
        found = await self._reads.run(partial(letters.read, queue, begin, limit, self._options.pop.response_bytes_max))
        common = delivery.common_properties(self._options.name, None)
        return pb.DeadLetterListResponse(
            messages=[delivery.pulled_message(stored, common) for stored in found],
            next_offset=begin + len(found),
            max_offset=queue.max_offset,
            total=queue.max_offset - first,
        )

    async def redrive_dead_letters(
        self, call: Call, request: pb.DeadLetterRedriveRequest
    ) -> pb.DeadLetterRedriveResponse:
        """Give some dead letters back to their group, durably."""
        names.group(request.group)
        limit = min(max(1, request.limit), _AT_ONCE_MAX)
        result = await self._reads.run(partial(self._redrive_once, request, limit))
        await self._flusher.durable(self._core.store.log.end_position)
        return pb.DeadLetterRedriveResponse(redriven=result.given_back, kept=result.kept)

    def _redrive_once(self, request: pb.DeadLetterRedriveRequest, limit: int) -> Redriven:
        self._core.settlement.settle((), (request.group,))
        return self._core.dead_letters.redrive(
            request.group, limit, request.end_offset, self._options.pop.response_bytes_max
        )
