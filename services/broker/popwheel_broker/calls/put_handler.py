"""Putting messages into topics: what may be taken, what is there already, and when it is durable."""

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.dedup import Dedup, Stored
from popwheel_broker.calls.send_admission import SendAdmission
from popwheel_broker.records.fault import RECORD_STEP, RecordFaultError, failed_run
from popwheel_broker.state.core import BrokerCore
from popwheel_broker.store.flusher import Flusher
from popwheel_broker.store.queues import QUEUE_ID_MAX
from popwheel_broker.store.refusals import disk_refusal
from popwheel_broker.timer.timer_server import TimerServer
from popwheel_broker.transactions.transaction_server import TransactionServer
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.contract.put import MessageRun, PutResult
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.service import Call

_OK: Final = int(Code.OK)
_AT_ONCE, _DELAYED, _HALF = range(3)
_CANNOT_TELL: Final = (
    "an earlier try may have stored the messages, which can't be told now; none was stored by this one"
)
_NOT_TOGETHER: Final = (
    "another try has stored some of the messages, so they do not stand one behind the other; ask about each by itself"
)
_Found = Sequence[Stored | None] | CorruptDataError
"""What of a run is there already, or why that can't be told; nothing at all if its topic was forgotten meanwhile."""


class PutHandler:
    """Answers Put.

    Args:
        context: of the replica; its core decides.
        flusher: makes durable.
        dedup: finds what an earlier try has stored.
        admission: whether messages may be taken.
        timer: takes delayed messages.
        transactions: takes half messages.
    """

    def __init__(
        self,
        context: BrokerContext,
        flusher: Flusher,
        dedup: Dedup,
        admission: SendAdmission,
        timer: TimerServer,
        transactions: TransactionServer,
    ) -> None:
        self._core: BrokerCore = context.files.core
        self._flusher = flusher
        self._dedup = dedup
        self._admission = admission
        self._statistics = context.statistics
        self._timer = timer
        self._transactions = transactions
        self._repair = context.repair

    async def put(self, call: Call, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append messages and wait until they are durable."""
        refusal_of = self._core.settlement.refusal_of_sends
        refusals = [refusal_of(run.topic, run.topic_id) for run in runs]
        if any(refusals):
            others = [run for run, refusal in zip(runs, refusals, strict=True) if refusal is None]
            put = iter(await self.put(call, others) if others else ())
            return [
                next(put) if refusal is None else PutResult(int(refusal.code), refusal.message) for refusal in refusals
            ]
        self._core.settlement.settle(run.topic for run in runs)
        refusal_of_all = self._admission.refusal()
        if refusal_of_all is not None:
            if self._admission.disk_is_full():
                self._statistics.refused_disk_full += 1
            raise refusal_of_all
        has_lite = False
        for run in runs:
            names.topic(run.topic, Use.SEND)
            if run.lite_topic:
                has_lite = True
        if not all(run.is_even for run in runs):
            raise StatusError(Code.BAD_REQUEST, "a run is empty or its columns differ in length; nothing was stored")
        if not all(0 <= run.queue_id <= QUEUE_ID_MAX for run in runs):
            raise StatusError(Code.BAD_REQUEST, f"a queue's number goes from 0 to {QUEUE_ID_MAX}; nothing was stored")
        return await (self._put_some_lite(runs) if has_lite else self._put_admitted(runs))

    async def _put_some_lite(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append runs of which some are for lite topics; each that would make one too many is refused by itself."""
        for run in runs:
            if run.lite_topic:
                names.checked_lite_topic(run.lite_topic)
                if run.due_ms or run.first_check_ms:
                    raise StatusError(
                        Code.BAD_REQUEST,
                        "a message for a lite topic is neither delayed nor of a transaction; nothing was stored",
                    )
        refused = [self._refusal_of_lite(run) if run.lite_topic else None for run in runs]
        admitted = [run for run, refusal in zip(runs, refused, strict=True) if refusal is None]
        put = iter(await self._put_admitted(admitted) if admitted else ())
        return [next(put) if refusal is None else refusal for refusal in refused]

    def _refusal_of_lite(self, run: MessageRun) -> PutResult | None:
        """Why the lite topic of a run can't be made; None if it is there now."""
        try:
            self._core.store.ensure_queue((run.stored_topic, run.queue_id))
        except StatusError as error:
            return PutResult(int(error.code), error.message)
        return None

    def _put_admitted(self, runs: Sequence[MessageRun]) -> Awaitable[Sequence[PutResult]]:
        topic_ids = self._core.names.topic_ids
        for run in runs:
            if run.topic_id and run.topic_id != topic_ids.get(run.topic):
                return self._put_of_topics(runs)
        return self._put_current(runs)

    async def _put_of_topics(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append runs of which some are for topics that were not heard of yet, or for others than have their names now;
        those are refused.
        """
        core = self._core
        for run in runs:
            core.settlement.hear_of_topic(run.topic, run.topic_id)
        are_current = [core.names.is_current(run.topic, run.topic_id) for run in runs]
        current = [run for run, is_current in zip(runs, are_current, strict=True) if is_current]
        put = iter(await self._put_current(current) if current else ())
        return [
            next(put) if is_current else _of_another_topic(run.topic)
            for run, is_current in zip(runs, are_current, strict=True)
        ]

    async def _put_current(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append runs for topics that have their names; if a topic goes before that is durable, it is refused."""
        if self._dedup.kept_ids:
            runs = [replace(run, is_retry=True) if self._dedup.is_late(run) else run for run in runs]
        before = self._ids_of(runs)
        for run in runs:
            if run.is_retry or run.due_ms or run.first_check_ms:
                put = self._put_again if any(run.is_retry for run in runs) else self._put_some_hidden
                break
        else:
            put = self._put_at_once
        results = await put(runs)
        assert len(results) == len(runs), "not every run has its result"
        if before == self._ids_of(runs):
            return results
        return [
            _of_another_topic(run.topic) if is_gone else result
            for run, is_gone, result in zip(runs, self._are_gone(runs, before), results, strict=True)
        ]

    def _ids_of(self, runs: Sequence[MessageRun]) -> list[int | None]:
        """Of the topics that have the names of those of the runs now."""
        topic_ids = self._core.names.topic_ids
        return [topic_ids.get(run.topic) for run in runs]

    def _are_gone(self, runs: Sequence[MessageRun], before: Sequence[int | None]) -> list[bool]:
        """Of each run whether the topic was forgotten that had its name before."""
        names = self._core.names
        return [
            topic_id is not None and not (run.topic in names.topic_ids and names.is_topic(run.topic, topic_id))
            for run, topic_id in zip(runs, before, strict=True)
        ]

    def _put_new(self, runs: Sequence[MessageRun]) -> Awaitable[Sequence[PutResult]]:
        """Append what was not stored before."""
        if any(run.due_ms or run.first_check_ms for run in runs):
            return self._put_some_hidden(runs)
        return self._put_at_once(runs)

    async def _put_at_once(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        refusals: list[StatusError] = []
        try:
            results = self._append(runs, refusals)
        except StatusError as error:
            await self._flusher.keep_refused(error)
            raise
        for refusal in refusals:
            await self._flusher.keep_refused(refusal)
        await self._flusher.durable(self._core.store.log.end_position)
        return results

    def _append(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append runs in one write; the caller makes them durable. If one of them fails by itself, each is appended
        alone, and why others of them were refused is added to `refusals`.
        """
        try:
            with RECORD_STEP:
                appended = self._core.store.put_runs(runs)
        except RecordFaultError as fault:
            if len(runs) == 1:
                return [failed_run(fault)]
            return [self._append_alone(run, refusals) for run in runs]
        self._statistics.put(runs)
        return [PutResult(_OK, "", offset, appended.store_time_ms) for offset in appended.queue_offsets]

    def _append_alone(self, run: MessageRun, refusals: list[StatusError]) -> PutResult:
        try:
            return self._append([run], refusals)[0]
        except StatusError as error:
            refusals.append(error)
            return PutResult(int(error.code), error.message)

    async def _put_again(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append of runs that were tried before what is not there yet; those are refused of which it can't be told."""
        before = self._ids_of(runs)
        found = await self._find(runs)
        tried: set[int] = set()
        while any(isinstance(each, CorruptDataError) for each in found):
            damaged = self._core.store.log.damaged - tried
            tried |= damaged
            if not await self._mended(damaged):
                break
            found = await self._find(runs)  # all of it: other tries of them may have been stored meanwhile
        # Behind the record that forgets its topic it would belong to the one that is made anew.
        found = [() if gone else each for gone, each in zip(self._are_gone(runs, before), found, strict=True)]
        rests = [_without(run, stored) for run, stored in zip(runs, found, strict=True)]
        missing = [rest for rest in rests if rest.payloads]
        put = iter(await self._put_new(missing)) if missing else iter(())
        if len(missing) < len(runs):
            await self._flusher.durable(self._core.store.log.end_position)
        results: list[PutResult] = []
        for run, stored, rest in zip(runs, found, rests, strict=True):
            if isinstance(stored, CorruptDataError):
                results.append(PutResult(int(Code.INTERNAL_ERROR), f"{stored}; {_CANNOT_TELL}"))
                continue
            if not stored:
                results.append(_of_another_topic(run.topic))
                continue
            result = next(put) if rest.payloads else PutResult(_OK)
            if len(rest.payloads) < len(run.payloads) and result.code == _OK:
                result = self._with_found(run, stored, result)
            results.append(result)
        return results

    async def _find(self, runs: Sequence[MessageRun]) -> list[_Found]:
        """What of each run is there already as this returns, or why that can't be told.

        Raises:
            StatusError: the device refused a read.
        """
        try:
            return await self._core.store.reads.run(lambda: self._find_in_memory(runs))
        except OSError as error:
            raise StatusError(
                Code.INTERNAL_ERROR, f"the broker's device refused a read ({error}): {_CANNOT_TELL}; try again"
            ) from error

    def _find_in_memory(self, runs: Sequence[MessageRun]) -> list[_Found]:
        found: list[_Found] = []
        for run in runs:
            try:
                with RECORD_STEP:
                    found.append(self._dedup.find(run) if run.is_retry else [None] * len(run.payloads))
            except CorruptDataError as error:
                found.append(error)
            except RecordFaultError as fault:
                found.append(CorruptDataError(str(fault)))
        return found

    async def _mended(self, damaged: Iterable[int]) -> bool:
        """Have damaged records mended; whether any was."""
        try:
            return bool([position for position in sorted(damaged) if await self._repair(position)])
        except OSError as error:
            raise disk_refusal(error) from error

    def _with_found(self, run: MessageRun, stored: Sequence[Stored | None], result: PutResult) -> PutResult:
        """The answer for a run of which some was there already, given that for the rest."""
        handles, transaction_ids = iter(result.recall_handles), iter(result.transaction_ids)
        first = next(each for each in stored if each is not None)
        appended = count(result.queue_offset)
        offsets = [next(appended) if each is None else each.queue_offset for each in stored]
        if not (run.due_ms or run.first_check_ms) and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            return PutResult(int(Code.SLAVE_PERSISTENCE_TIMEOUT), _NOT_TOGETHER)
        result.queue_offset = offsets[0]
        result.store_time_ms = first.store_time_ms
        if run.due_ms:
            result.recall_handles = [
                next(handles) if each is None else self._timer.handle(run, index, each.timer_position)
                for index, each in enumerate(stored)
            ]
        if run.first_check_ms:
            result.transaction_ids = [
                next(transaction_ids) if each is None else self._transactions.id_of(run, index, each.timer_position)
                for index, each in enumerate(stored)
            ]
        return result

    async def _put_some_hidden(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append runs of which some are delayed or of transactions; each of those is stored or refused by itself."""
        refusals: list[StatusError] = []
        results: list[PutResult | None] = [None] * len(runs)
        for put, kind in ((self._timer.put, _DELAYED), (self._transactions.put, _HALF), (self._append, _AT_ONCE)):
            indexes = [index for index, run in enumerate(runs) if _kind_of(run) == kind]
            some = [runs[index] for index in indexes]
            if not some:
                continue
            try:
                of_some = put(some, refusals)
            except StatusError as error:
                refusals.append(error)
                of_some = [PutResult(int(error.code), error.message) for _ in some]
            for index, result in zip(indexes, of_some, strict=True):
                results[index] = result
        for refusal in refusals:  # only now: while this waits, topics may be forgotten
            await self._flusher.keep_refused(refusal)
        await self._flusher.durable(self._core.store.log.end_position)
        return [result for result in results if result is not None]


def _kind_of(run: MessageRun) -> int:
    """Where a run goes first."""
    if run.due_ms:
        return _DELAYED
    return _HALF if run.first_check_ms else _AT_ONCE


def _without(run: MessageRun, stored: _Found) -> MessageRun:
    """What of a run is to be stored: all that is not yet, or nothing if that can't be told."""
    left = [] if isinstance(stored, CorruptDataError) else [index for index, each in enumerate(stored) if each is None]
    if len(left) == len(run.payloads):
        return run
    return MessageRun(
        run.topic,
        run.queue_id,
        [run.payloads[index] for index in left],
        [run.system_properties[index] for index in left],
        [run.tags[index] for index in left],
        [run.due_ms[index] for index in left] if run.due_ms else (),
        topic_id=run.topic_id,
        first_check_ms=[run.first_check_ms[index] for index in left] if run.first_check_ms else (),
        lite_topic=run.lite_topic,
    )


def _of_another_topic(topic: str) -> PutResult:
    return PutResult(
        int(Code.TOPIC_NOT_FOUND), f"the topic {topic} that this is for was deleted; nothing was stored, try again"
    )
