"""Puts messages into topics: decides which may be stored and which are already, and waits until they are durable."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.dedup import Dedup, Stored
from popwheel_broker.calls.send_admission import SendAdmission
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.queues import QUEUE_ID_MAX
from popwheel_broker.log.repaired_reads import RepairedReads
from popwheel_broker.log.run_batch import RunWriter, put_alone
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.service import Call

_OK: Final = int(Code.OK)
_OUTCOME_UNKNOWN: Final = (
    "an earlier try may have stored the messages, which is unknown now; none was stored by this one"
)
_NOT_TOGETHER: Final = (
    "another try has stored some of the messages, so they do not stand one behind the other; ask about each by itself"
)
_Found = Sequence[Stored | None] | CorruptDataError
"""Messages of a run that are stored already, or why that is unknown; empty if its topic was forgotten meanwhile."""


class PutHandler:
    """Answers Put.

    Each step has the verdict on some runs; the others go on to the next.

    Args:
        context: of the replica; its core decides.
        flusher: makes durable.
        dedup: finds messages that an earlier try has stored.
        admission: whether messages may be accepted.
        writers: append messages that do not go into their queue at once.
    """

    def __init__(
        self,
        context: BrokerContext,
        flusher: Flusher,
        dedup: Dedup,
        admission: SendAdmission,
        writers: Sequence[RunWriter],
    ) -> None:
        self._core: BrokerCore = context.files.core
        self._flusher = flusher
        self._dedup = dedup
        self._admission = admission
        self._statistics = context.statistics
        self._writers = {each.kind: each for each in writers}
        self._reads = RepairedReads(context.files.core.store.reads, context.repair)

    async def put(self, call: Call, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append messages and wait until they are durable."""
        core = self._core
        refusal_of = core.cluster_changes.refusal_of_sends
        verdicts = [_refused(refusal_of(run.topic, run.topic_id)) for run in runs]
        left = _left(runs, verdicts)
        if not left:
            return _filled(verdicts, ())
        core.cluster_changes.apply(run.topic for run in left)
        refusal_of_all = self._admission.refusal()
        if refusal_of_all is not None:
            if self._admission.disk_is_full():
                self._statistics.refused_disk_full += 1
            raise refusal_of_all
        for run in left:
            _check(run)
        for run in left:
            if run.lite_topic or self._is_of_another(run):
                unplaced = self._without_place(left)
                left = _left(left, unplaced)
                stored = await self._put_current(left) if left else ()
                return _filled(verdicts, _filled(unplaced, stored))
        return _filled(verdicts, await self._put_current(left))

    def _is_of_another(self, run: MessageRun) -> bool:
        """Return whether a run is for another topic than the log knows by its name."""
        return bool(run.topic_id) and run.topic_id != self._core.topic_registry.topic_ids.get(run.topic)

    def _without_place(self, runs: Sequence[MessageRun]) -> list[PutResult | None]:
        """Return verdicts on runs without a place: a lite topic would be one too many, or another topic has the name
        now.

        New topics are recorded.
        """
        core = self._core
        verdicts = [self._refusal_of_lite(run) if run.lite_topic else None for run in runs]
        left = _left(runs, verdicts)
        if not any(map(self._is_of_another, left)):
            return verdicts
        for run in left:
            core.cluster_changes.apply_topic_id(run.topic, run.topic_id)
        return [
            _of_another_topic(run.topic)
            if verdict is None and not core.topic_registry.is_current(run.topic, run.topic_id)
            else verdict
            for run, verdict in zip(runs, verdicts, strict=True)
        ]

    def _refusal_of_lite(self, run: MessageRun) -> PutResult | None:
        """Return why the lite topic of a run cannot be created; None if it exists now."""
        try:
            self._core.store.ensure_queue((run.stored_topic, run.queue_id))
        except StatusError as error:
            return _refused(error)
        return None

    async def _put_current(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append runs for topics that have their names; if a topic is deleted before that is durable, refuse it."""
        if self._dedup.remembered_ids:
            runs = [replace(run, is_retry=True) if self._dedup.is_late(run) else run for run in runs]
        before = self._ids_of(runs)
        put = self._put_again if any(run.is_retry for run in runs) else self._put_new
        results = await put(runs)
        assert len(results) == len(runs), "not every run has its result"
        if before == self._ids_of(runs):
            return results
        return [
            _of_another_topic(run.topic) if is_deleted else result
            for run, is_deleted, result in zip(runs, self._were_deleted(runs, before), results, strict=True)
        ]

    def _ids_of(self, runs: Sequence[MessageRun]) -> list[int | None]:
        """Return the ids of the topics that have the runs' names now."""
        topic_ids = self._core.topic_registry.topic_ids
        return [topic_ids.get(run.topic) for run in runs]

    def _were_deleted(self, runs: Sequence[MessageRun], before: Sequence[int | None]) -> list[bool]:
        """Return for each run whether the topic was forgotten that had its name before."""
        names = self._core.topic_registry
        return [
            topic_id is not None and not (run.topic in names.topic_ids and names.is_topic(run.topic, topic_id))
            for run, topic_id in zip(runs, before, strict=True)
        ]

    async def _put_new(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append new messages: runs of each kind by one write."""
        refusals: list[StatusError] = []
        if any(run.kind for run in runs):
            results = self._append_kinds(runs, refusals)
        else:
            results = self._append_of(PutKind.NOW, runs, refusals)
        for refusal in refusals:  # only now: while this waits, topics may be forgotten
            await self._flusher.sync_refused(refusal)
        if any(result.code == _OK for result in results):
            await self._flusher.durable()
        return results

    def _append_kinds(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        results: list[PutResult | None] = [None] * len(runs)
        for kind in sorted({run.kind for run in runs}, reverse=True):
            indexes = [index for index, run in enumerate(runs) if run.kind == kind]
            of_kind = self._append_of(kind, [runs[index] for index in indexes], refusals)
            for index, result in zip(indexes, of_kind, strict=True):
                results[index] = result
        return [result for result in results if result is not None]

    def _append_of(self, kind: PutKind, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append runs of one kind; the reason why the device refused some, or all, is added to `refusals`."""
        writer = self._writers.get(kind)
        try:
            return self._append(runs, refusals) if writer is None else writer.put(runs, refusals)
        except StatusError as error:
            refusals.append(error)
            return [PutResult(int(error.code), error.message) for _ in runs]

    def _append(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append runs to their queues, in one write; if one of them is poison, each is appended alone."""
        try:
            with RECORD_STEP:
                appended = self._core.store.put_runs(runs)
        except RecordFaultError as fault:
            return put_alone(runs, self._append, fault, refusals)
        self._statistics.put(runs)
        return [PutResult(_OK, "", offset, appended.store_time_ms) for offset in appended.queue_offsets]

    async def _put_again(self, runs: Sequence[MessageRun]) -> Sequence[PutResult]:
        """Append the messages of retried runs that are not stored yet; refuse runs that cannot be checked."""
        before = self._ids_of(runs)
        found = await self._find(runs)
        tried: set[int] = set()
        while any(isinstance(each, CorruptDataError) for each in found):
            damaged = self._core.store.log.damaged - tried
            tried |= damaged
            if not await self._reads.mend(damaged):
                break
            found = await self._find(runs)  # all of it: other tries of them may have been stored meanwhile
        # Behind the record that forgets its topic it would belong to the topic created again.
        found = [() if gone else each for gone, each in zip(self._were_deleted(runs, before), found, strict=True)]
        rests = [_without(run, stored) for run, stored in zip(runs, found, strict=True)]
        missing = [rest for rest in rests if rest.payloads]
        put = iter(await self._put_new(missing)) if missing else iter(())
        if len(missing) < len(runs):
            await self._flusher.durable()
        results: list[PutResult] = []
        for run, stored, rest in zip(runs, found, rests, strict=True):
            if isinstance(stored, CorruptDataError):
                results.append(PutResult(int(Code.INTERNAL_ERROR), f"{stored}; {_OUTCOME_UNKNOWN}"))
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
        """Find the messages of each run that are stored as this returns, or why that is unknown.

        Raises:
            StatusError: the device refused a read.
        """
        try:
            return await self._core.store.reads.run(lambda: self._find_in_memory(runs))
        except OSError as error:
            raise StatusError(
                Code.INTERNAL_ERROR, f"the broker's device refused a read ({error}): {_OUTCOME_UNKNOWN}; try again"
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

    def _with_found(self, run: MessageRun, stored: Sequence[Stored | None], result: PutResult) -> PutResult:
        """Return the answer for a run of which some was stored already, given that for the rest."""
        first = next(each for each in stored if each is not None)
        appended = count(result.queue_offset)
        offsets = [next(appended) if each is None else each.queue_offset for each in stored]
        writer = self._writers.get(run.kind)
        if writer is None and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            return PutResult(int(Code.SLAVE_PERSISTENCE_TIMEOUT), _NOT_TOGETHER)
        result.queue_offset = offsets[0]
        result.store_time_ms = first.store_time_ms
        if writer is not None:
            references = iter(result.references)
            result.references = [
                next(references) if each is None else writer.reference(run, index, each.position)
                for index, each in enumerate(stored)
            ]
        return result


def _check(run: MessageRun) -> None:
    """Check a request. Raises StatusError."""
    names.topic(run.topic, Use.SEND)
    if not run.is_even:
        raise StatusError(Code.BAD_REQUEST, "a run is empty or its columns differ in length; nothing was stored")
    if not 0 <= run.queue_id <= QUEUE_ID_MAX:
        raise StatusError(Code.BAD_REQUEST, f"a queue's number goes from 0 to {QUEUE_ID_MAX}; nothing was stored")
    if run.lite_topic:
        names.checked_lite_topic(run.lite_topic)
        if run.kind:
            raise StatusError(
                Code.BAD_REQUEST,
                "a message for a lite topic is neither delayed nor of a transaction; nothing was stored",
            )


def _left(runs: Sequence[MessageRun], verdicts: Sequence[PutResult | None]) -> Sequence[MessageRun]:
    """Return the runs without a verdict."""
    if not any(verdicts):
        return runs
    return [run for run, verdict in zip(runs, verdicts, strict=True) if verdict is None]


def _filled(verdicts: Sequence[PutResult | None], results: Sequence[PutResult]) -> Sequence[PutResult]:
    """Return verdicts, and the results of the runs without one."""
    if not any(verdicts):
        return results
    rest = iter(results)
    return [next(rest) if verdict is None else verdict for verdict in verdicts]


def _refused(refusal: StatusError | None) -> PutResult | None:
    return None if refusal is None else PutResult(int(refusal.code), refusal.message)


def _without(run: MessageRun, stored: _Found) -> MessageRun:
    """Return the part of a run that is to be stored: all that is not yet, or nothing if that is unknown."""
    left = [] if isinstance(stored, CorruptDataError) else [index for index, each in enumerate(stored) if each is None]
    if len(left) == len(run.payloads):
        return run
    return replace(
        run,
        payloads=[run.payloads[index] for index in left],
        system_properties=[run.system_properties[index] for index in left],
        tags=[run.tags[index] for index in left],
        times_ms=[run.times_ms[index] for index in left] if run.times_ms else (),
        is_retry=False,
    )


def _of_another_topic(topic: str) -> PutResult:
    return PutResult(
        int(Code.TOPIC_NOT_FOUND), f"the topic {topic} of this message was deleted; nothing was stored, try again"
    )
