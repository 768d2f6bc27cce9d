"""Runs of messages that go into the log by one write, each with its own result (pure)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError, failed_run
from popwheel_broker.log.record import StoredRecord
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_OK = int(Code.OK)

PutRuns = Callable[[Sequence[MessageRun], list[StatusError]], list[PutResult]]
"""Appends runs by one write; the list takes what the device refuses of runs that are appended alone."""


class Sent(NamedTuple):
    """Send that a record came from, besides that send's id.

    Args:
        topic: where its message goes.
        topic_id: which topic of that name; 0 if the record does not say.
        position: by which its message is known; -1 if it has no such name.
    """

    topic: str
    topic_id: int
    position: int


class RunWriter(Protocol):
    """Appends the runs of one kind that do not go into their queue now, and knows its records."""

    @property
    def kind(self) -> PutKind:
        """Kind of its runs."""

    @property
    def queue(self) -> tuple[str, int]:
        """Topic and queue of its records."""

    @property
    def leaves_by_itself(self) -> bool:
        """True if its messages come into their topic without their sender: then a retry may find them there."""

    def put(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append runs in one write, without those that are refused; the caller makes them durable. If one of them fails
        by itself, each is appended alone.

        Args:
            runs: what to append.
            refusals: takes what the device refused of runs that were appended alone.

        Raises:
            StatusError: nothing was stored.
        """

    def reference(self, run: MessageRun, index: int, position: int) -> str:
        """Return the reference of a message of a run that is stored already, under this position."""

    def sent(self, found: StoredRecord) -> Sent | None:
        """Return the send of a record of its queue; None if it is unknown."""


@dataclass(slots=True)
class RunBatch:
    """Runs that wait for one write, without those that are refused.

    Args:
        results: one for each run, in their order.
        accepted: runs that are to be appended, with their results.
    """

    results: list[PutResult] = field(default_factory=list)
    accepted: list[tuple[MessageRun, PutResult]] = field(default_factory=list)

    def take(self, run: MessageRun, accept: Callable[[MessageRun], None]) -> None:
        """Have a run accepted, or note why it is not.

        Args:
            run: the run.
            accept: makes its records; what it raises is the run's result.
        """
        result = PutResult(_OK)
        try:
            with RECORD_STEP:
                accept(run)
        except StatusError as error:
            result.code, result.error = int(error.code), error.message
        except RecordFaultError as fault:
            result = failed_run(fault)
        else:
            self.accepted.append((run, result))
        self.results.append(result)

    def appended(
        self, queue_offsets: Sequence[int], store_time_ms: int
    ) -> Iterator[tuple[MessageRun, PutResult, slice]]:
        """Yield the accepted runs that were appended, with their results, and where among all records theirs are.

        Args:
            queue_offsets: one for each record, in the order of the runs.
            store_time_ms: when they were stored.
        """
        first = 0
        for run, result in self.accepted:
            own = slice(first, first + len(run.payloads))
            result.queue_offset = queue_offsets[first]
            result.store_time_ms = store_time_ms
            yield run, result, own
            first = own.stop


def put_alone(
    runs: Sequence[MessageRun], put: PutRuns, fault: RecordFaultError, refusals: list[StatusError]
) -> list[PutResult]:
    """Put runs one by one after one of them failed by itself: each is appended by a write of its own.

    Args:
        runs: the runs.
        put: appends them.
        fault: why the write of all failed.
        refusals: takes what the device refuses.
    """
    return [failed_run(fault)] if len(runs) == 1 else [_alone(run, put, refusals) for run in runs]


def _alone(run: MessageRun, put: PutRuns, refusals: list[StatusError]) -> PutResult:
    try:
        return put([run], refusals)[0]
    except StatusError as error:
        refusals.append(error)
        return PutResult(int(error.code), error.message)
