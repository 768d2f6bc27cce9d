"""Pulls, of consumers that keep their own offsets: a queue is read from an offset on. A pull may wait for a message."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.consume import delivered_message
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.log.consume_queue import ConsumeQueue, Entry
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record_block import choose
from popwheel_broker.log.tag import wanted_hashes
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.contract.record_block import NOTHING, encode_block
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

Response = TypeVar("Response")

_PullOnce = Callable[[pb.PullRequest, int, frozenset[int] | None], tuple[Response, bool, int]]
"""Pulls without waiting, from an offset on, messages with one of some tags: returns the answer, whether it has a
message, and the next offset."""

_SCAN_ENTRIES = 4096
_NO_INVISIBLE_DURATION = None


class PullHandler:
    """Answers pulls.

    Args:
        context: of the replica; its core decides.
        reads: the reads of this term.
    """

    def __init__(self, context: BrokerContext, reads: TermReads) -> None:
        self._core = context.files.core
        self._reads = reads
        self._options = context.options
        self._clock = context.clock
        self._statistics = context.statistics
        self._waiting: dict[tuple[str, int], list[asyncio.Event]] = defaultdict(list)

    def arrived(self, queue: ConsumeQueue) -> None:
        """Wake the pulls that wait for a message, as one has become readable."""
        for event in self._waiting.get((queue.topic, queue.queue_id), ()):
            event.set()

    def end(self) -> None:
        """End the waiting pulls, as the term has ended."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def pull(self, call: Call, request: pb.PullRequest) -> pb.PullResponse:
        """Read by offset, waiting for a first message if asked to."""
        return await self._pull(request, self._pull_once)

    async def pull_records(self, call: Call, request: pb.PullRequest) -> bytes:
        """Read by offset, likewise; return records of the log."""
        return await self._pull(request, self._pull_records_once)

    async def _pull(self, request: pb.PullRequest, once: "_PullOnce[Response]") -> Response:
        names.group(request.group)
        names.topic(request.topic, Use.PULL)
        deadline = self._clock.monotonic() + request.wait_ms / 1000
        wanted = wanted_hashes(request.filter)
        offset = request.offset
        while True:
            response, found, offset = await self._reads.run(partial(once, request, offset, wanted))
            remaining = deadline - self._clock.monotonic()
            if found or remaining <= 0:
                return response
            if self._reads.has_ended:
                raise self._reads.refusal()
            queue = self._core.store.queue(request.topic, request.queue_id)
            if queue is not None and offset < queue.max_offset:
                # A rare filter: there is more to scan, and no arrival might wake it.
                await asyncio.sleep(0)
                continue
            self._check_waiting_pulls(request.group)
            self._statistics.pulls_waiting.take(request.group)
            try:
                await self._wait_for_arrival((request.topic, request.queue_id), remaining)
            finally:
                self._statistics.pulls_waiting.give(request.group)

    def _check_waiting_pulls(self, group: str) -> None:
        waiting = self._statistics.pulls_waiting
        if not waiting.room(group, self._options.pop.pulls_waiting_max):
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{waiting.total} pulls wait for messages, {waiting.share(group)} of them of the group {group}: "
                "that is its share of the limit (broker.pop.pulls_waiting_max); pull again later",
            )

    def _pull_once(
        self, request: pb.PullRequest, offset: int, wanted: frozenset[int] | None
    ) -> tuple[pb.PullResponse, bool, int]:
        queue = self._queue_to_pull(request, offset)
        if queue is None:
            return pb.PullResponse(next_offset=offset), False, offset
        at = max(offset, queue.min_offset)
        entries: list[Entry] = []
        offsets: list[int] = []
        size = 0
        for entry in queue.read(at, request.max_messages if wanted is None else _SCAN_ENTRIES):
            if wanted is None or entry.tag_hash in wanted:
                size += entry.length
                if entries and size > self._options.pop.response_bytes_max:
                    break
                entries.append(entry)
                offsets.append(at)
            at += 1
            if len(entries) == request.max_messages:
                break
        common = delivered_message.common_properties(self._options.name, _NO_INVISIBLE_DURATION)
        try:
            with RECORD_STEP:
                records = self._core.store.records.read_checked(queue, offsets, entries)
                messages = [delivered_message.pulled_message(stored, common) for stored in records]
        except RecordFaultError:
            messages = self._pulled_one_by_one(queue, offsets, entries, common)
        return pb.PullResponse(messages=messages, next_offset=at), bool(messages), at

    def _queue_to_pull(self, request: pb.PullRequest, offset: int) -> ConsumeQueue | None:
        """Return the queue; None if it has never had a message. Raises StatusError: it has no such offset."""
        self._core.cluster_changes.apply((request.topic,))
        queue = self._core.store.queue(request.topic, request.queue_id)
        max_offset = 0 if queue is None else queue.max_offset
        if offset < 0 or offset > max_offset:
            raise illegal_offset(offset, max_offset)
        return queue

    def _pull_records_once(
        self, request: pb.PullRequest, offset: int, wanted: frozenset[int] | None
    ) -> tuple[bytes, bool, int]:
        queue = self._queue_to_pull(request, offset)
        at = offset if queue is None else max(offset, queue.min_offset)
        entries = (
            b"" if queue is None else queue.read_packed(at, request.max_messages if wanted is None else _SCAN_ENTRIES)
        )
        if queue is None or not entries:
            return encode_block(at, NOTHING, ()), False, at
        places, at = choose(entries, at, wanted, request.max_messages, self._options.pop.response_bytes_max)
        records = self._core.store.records.read_block(queue, places) if len(places.offsets) else ()
        return encode_block(at, places.lengths, records), bool(records), at

    def _pulled_one_by_one(
        self, queue: ConsumeQueue, offsets: Sequence[int], entries: Sequence[Entry], common: bytes
    ) -> list[bytes]:
        """Return the messages without poison ones, which are skipped and recorded."""
        messages: list[bytes] = []
        for offset, entry in zip(offsets, entries, strict=True):
            try:
                with RECORD_STEP:
                    (stored,) = self._core.store.records.read_checked(queue, (offset,), (entry,))
                    messages.append(delivered_message.pulled_message(stored, common))
            except RecordFaultError as fault:
                self._core.quarantine.record(Step.READING, entry.position, queue.topic, queue.queue_id, offset, fault)
        return messages

    async def _wait_for_arrival(self, queue: tuple[str, int], timeout_s: float) -> None:
        event = asyncio.Event()
        waiting = self._waiting[queue]
        waiting.append(event)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return
        finally:
            waiting.remove(event)
            if not waiting:
                self._waiting.pop(queue, None)


def illegal_offset(offset: int, max_offset: int) -> StatusError:
    """Return the refusal of an offset that a queue does not have."""
    return StatusError(
        Code.ILLEGAL_OFFSET,
        f"offset {offset} is not between 0 and the queue's end {max_offset}; query the offset first",
    )
