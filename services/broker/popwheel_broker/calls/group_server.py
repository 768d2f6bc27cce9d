"""Requests of operators about a consumer group: reset its offsets, and handle its dead letters."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.consume import delivered_message
from popwheel_broker.core.dead_letters import Redriven
from popwheel_broker.core.offset_reset import ResetPlan
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.flusher import Flusher
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.pace import Pace
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

_AT_ONCE_MAX = 1_000
"""Limit of dead letters that one call lists or redrives. A chosen one must be among this many of the oldest."""
_CHOSEN_AT_ONCE = 32
"""Dead letters that are handled in one turn of the loop."""


class GroupServer:
    """Serves groups' offsets and dead letters of popwheel.v1.Broker.

    Args:
        context: of the replica; its core decides.
        flusher: makes durable.
        reads: the reads of this term.
    """

    def __init__(self, context: BrokerContext, flusher: Flusher, reads: TermReads) -> None:
        self._core = context.files.core
        self._clock = context.clock
        self._pace = Pace(context.clock)
        self._flusher = flusher
        self._reads = reads
        self._options = context.options

    async def reset_offsets(self, call: Call, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        """Set a group back or forward in a topic, durably; or report what that would change."""
        names.group(request.group)
        names.topic(request.topic, Use.COMMIT)
        self._core.cluster_changes.apply((request.topic,), (request.group,))
        found: dict[ConsumeQueue, int] = {}
        for queue in sorted(self._core.store.queues.of_topic(request.topic), key=lambda each: each.queue_id):
            if not request.HasField("queue_id") or queue.queue_id == request.queue_id:
                found[queue] = await self._reads.run(partial(self._read_offset, queue, request))
        plan, answer = await self._reads.run(partial(self._reset_or_preview, request, found))
        if request.dry_run:
            return answer
        try:
            more = bool(plan.deliveries)
            while more:
                began_s = self._clock.monotonic()
                more = await self._reads.run(partial(self._core.offset_reset.revoke_some, plan))
                await self._pace.let_others(self._clock.monotonic() - began_s)
        finally:
            self._core.offset_reset.end(plan)
        await self._flusher.durable()
        return answer

    def _read_offset(self, queue: ConsumeQueue, request: pb.ResetOffsetsRequest) -> int:
        """Return the offset of the requested time, or else of the first message stored; both may have to be read."""
        if request.policy == pb.TIMESTAMP:
            return self._core.store.records.offset_at(queue, request.timestamp_ms)
        return queue.min_offset

    def _asked_offset(self, queue: ConsumeQueue, request: pb.ResetOffsetsRequest, found: int) -> int:
        """Return the requested offset in a queue, which the queue may not have."""
        if request.policy == pb.END:
            return queue.max_offset
        if request.policy == pb.AT_OFFSET:
            return request.offset
        if request.policy == pb.SHIFT:
            return self._core.state.merge_buffer.of(request.group, queue).next_offset + request.offset
        return found

    def _reset_or_preview(
        self, request: pb.ResetOffsetsRequest, found: dict[ConsumeQueue, int]
    ) -> tuple[ResetPlan, pb.ResetOffsetsResponse]:
        # Deleted, and created again, while times were looked up: those queues do not exist any more.
        asked = {each: self._asked_offset(each, request, at) for each, at in found.items() if self._is_here(each)}
        clamped = {queue: min(max(at, queue.min_offset), queue.max_offset) for queue, at in asked.items()}
        queue_id = request.queue_id if request.HasField("queue_id") else None
        plan = self._core.offset_reset.plan(request.group, request.topic, clamped, queue_id)
        answer = self._said(plan)
        for each, queue in zip(answer.queues, plan.queues, strict=True):
            each.clamped = asked[queue] != clamped[queue]
        if not request.dry_run:
            self._core.offset_reset.begin(plan)
        return plan, answer

    def _is_here(self, queue: ConsumeQueue) -> bool:
        return self._core.store.queue(queue.topic, queue.queue_id) is queue

    def _said(self, plan: ResetPlan) -> pb.ResetOffsetsResponse:
        progress_of = self._core.state.merge_buffer.of
        answer = pb.ResetOffsetsResponse(
            in_flight=plan.in_flight,
            retries=sum(progress_of(plan.group, queue).available for queue in plan.retries),
            retries_kept=sum(progress_of(plan.group, queue).available for queue in plan.retries_kept),
            consumers=self._consumers(plan.group, plan.topic),
        )
        for queue, offset in plan.queues.items():
            answer.queues.add(
                queue_id=queue.queue_id,
                from_offset=progress_of(plan.group, queue).next_offset,
                to_offset=offset,
                max_offset=queue.max_offset,
            )
        return answer

    def _consumers(self, group: str, topic: str) -> int:
        """Count the consumers, at least, that poll for a group in a topic now.

        Those that find messages pop again and again. Those that wait do not: their proxies do it for them.
        """
        core = self._core
        waiting = {id(each.subscriber) for each in core.interests.of_topic(topic) if each.group == group}
        return max(core.pops.recent_polls.count(group, topic, core.pop_clock.now_ms()), len(waiting))

    async def list_dead_letters(self, call: Call, request: pb.DeadLetterListRequest) -> pb.DeadLetterListResponse:
        """Return some dead letters of a group."""
        names.group(request.group)
        letters = self._core.dead_letters
        self._core.cluster_changes.apply((), (request.group,))
        queue = letters.queue(request.group)
        if queue is None:
            return pb.DeadLetterListResponse()
        first = letters.first_offset(request.group, queue)
        begin = min(max(first, request.begin_offset), queue.max_offset)
        limit = min(max(1, request.limit), _AT_ONCE_MAX)
        found = await self._reads.run(partial(letters.read, queue, begin, limit, self._options.pop.response_bytes_max))
        common = delivered_message.common_properties(self._options.name, None)
        messages: list[bytes] = []
        for stored in found:
            with suppress(RecordFaultError), RECORD_STEP:
                messages.append(delivered_message.pulled_message(stored, common))
        return pb.DeadLetterListResponse(
            messages=messages,
            next_offset=begin + len(found),
            max_offset=queue.max_offset,
            total=queue.max_offset - first,
        )

    async def redrive_dead_letters(
        self, call: Call, request: pb.DeadLetterRedriveRequest
    ) -> pb.DeadLetterRedriveResponse:
        """Redrive some dead letters to their group, durably."""
        names.group(request.group)
        limit = min(max(1, request.limit), _AT_ONCE_MAX)
        result = await self._reads.run(partial(self._redrive_once, request, limit))
        await self._flusher.durable()
        return pb.DeadLetterRedriveResponse(redriven=result.redriven, kept=result.kept)

    async def redrive_chosen(self, call: Call, request: pb.DeadLetterSelectRequest) -> pb.DeadLetterSelectResponse:
        """Redrive dead letters that are named by their offsets, durably; or report what that would do."""
        names.group(request.group)
        self._core.cluster_changes.apply((), (request.group,))
        letters, group, answer = self._core.dead_letters, request.group, pb.DeadLetterSelectResponse()
        queue = letters.queue(group)
        first = 0 if queue is None else letters.first_offset(group, queue)
        end = 0 if queue is None else queue.max_offset
        asked = sorted(set(request.offsets[:_AT_ONCE_MAX]))
        chosen = [each for each in asked if first <= each < min(end, first + _AT_ONCE_MAX)]
        answer.gone.extend(each for each in asked if not first <= each < end)
        answer.too_far.extend(each for each in asked if first + _AT_ONCE_MAX <= each < end)
        if queue is None or not chosen:
            return answer
        if request.dry_run:
            answer.moved = chosen[-1] + 1 - first - len(chosen)
            for begin in range(0, len(chosen), _CHOSEN_AT_ONCE):
                some = chosen[begin : begin + _CHOSEN_AT_ONCE]
                await self._choose(
                    answer, partial(letters.would_redrive, group, queue, some, self._options.pop.response_bytes_max)
                )
            return answer
        at, behind, wanted = first, chosen[-1] + 1, frozenset(chosen)
        while at < behind:
            await self._choose(answer, partial(self._redrive_some_chosen, group, behind, wanted))
            before, at = at, letters.first_offset(group, queue)
            if at <= before:
                break  # the group was set back meanwhile, or is gone
        await self._flusher.durable()
        return answer

    async def _choose(self, answer: pb.DeadLetterSelectResponse, step: Callable[[], Redriven]) -> None:
        """Handle some chosen dead letters, and leave the loop to other work."""
        began_s = self._clock.monotonic()
        done = await self._reads.run(step)
        answer.redriven += done.redriven
        answer.kept += done.kept
        answer.moved += done.moved
        await self._pace.let_others(self._clock.monotonic() - began_s)

    def _redrive_some_chosen(self, group: str, behind: int, chosen: frozenset[int]) -> Redriven:
        self._core.cluster_changes.apply((), (group,))
        bytes_max = self._options.pop.response_bytes_max
        return self._core.dead_letters.redrive(group, _CHOSEN_AT_ONCE, behind, bytes_max, chosen)

    def _redrive_once(self, request: pb.DeadLetterRedriveRequest, limit: int) -> Redriven:
        self._core.cluster_changes.apply((), (request.group,))
        return self._core.dead_letters.redrive(
            request.group, limit, request.end_offset, self._options.pop.response_bytes_max
        )
