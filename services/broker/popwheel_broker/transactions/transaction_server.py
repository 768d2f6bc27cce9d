"""Requests of proxies about transactions: to store half messages, to end them, and to check them at producers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from popwheel_broker.consume.delivered_message import common_properties, pulled_message
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.record import Record, StoredRecord
from popwheel_broker.log.refusals import naming_trouble
from popwheel_broker.log.repaired_reads import RepairedReads
from popwheel_broker.log.run_batch import RunBatch, Sent, put_alone
from popwheel_broker.transactions.checkers import Checker, Checkers
from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_broker.transactions.half import HALF_QUEUE, HALF_TOPIC, Resolution, decode_half
from popwheel_broker.transactions.transaction_ids import TransactionIds
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.contract.transaction_id import TransactionId
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service, Stream

_OK = int(Code.OK)
_ENDED = (Code.INVALID_TRANSACTION_ID, Code.PRECONDITION_FAILED)


class TransactionServer:
    """Serves the transactions' part of popwheel.v1.Broker.

    Args:
        coordinator: the transactions.
        flusher: makes durable.
        ids: makes transaction ids.
        checkers: proxies with producers.
        apply_changes: drops deleted topics.
        refusal_of_commits: why no commit may be accepted now; None if it may.
        reads: reads records, of which a damaged one is mended.
    """

    kind: Final = PutKind.HALF
    queue: Final = (HALF_TOPIC, HALF_QUEUE)
    leaves_by_itself: Final = False

    def __init__(
        self,
        coordinator: Coordinator,
        flusher: Flusher,
        ids: TransactionIds,
        checkers: Checkers,
        apply_changes: Callable[[Sequence[str]], None],
        refusal_of_commits: Callable[[], StatusError | None],
        reads: RepairedReads,
    ) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._flusher = flusher
        self._ids = ids
        self._checkers = checkers
        self._apply_changes = apply_changes
        self._refusal_of_commits = refusal_of_commits
        self._reads = reads

    def bind(self, service: Service) -> None:
        """Serve the methods."""
        service.unary(methods.END_TRANSACTION, naming_trouble(self.end))
        service.stream(methods.CHECK_TRANSACTIONS, self.check)

    def put(self, runs: Sequence[MessageRun], refusals: list[StatusError]) -> list[PutResult]:
        """Append runs of half messages (`RunWriter.put`)."""
        key = self._ids.key()  # without it no message may be stored that needs a transaction id
        taken: Counter[str] = Counter()
        batch, records = RunBatch(), list[Record]()
        for run in runs:
            batch.take(run, lambda each: records.extend(self._coordinator.accept(each, taken)))
        if not batch.accepted:
            return batch.results
        try:
            with RECORD_STEP:
                appended = self._store.put(records)
        except RecordFaultError as fault:
            return put_alone(runs, self.put, fault, refusals)
        self._coordinator.schedule_checks(appended.positions)
        for run, result, own in batch.appended(appended.queue_offsets, appended.store_time_ms):
            result.references = [
                self._ids.encode(key, run.topic, position, self._store.epoch, _message_id(properties))
                for position, properties in zip(appended.positions[own], run.system_properties, strict=True)
            ]
        return batch.results

    @staticmethod
    def sent(found: StoredRecord) -> Sent | None:
        """Return the send that a HALF record came from (`RunWriter.sent`)."""
        target = decode_half(found.origin)
        return Sent(target.topic, target.topic_id, found.position)

    def reference(self, run: MessageRun, index: int, position: int) -> str:
        """Return the transaction id of a message of a run that is stored already, its HALF record at `position`."""
        table = self._coordinator.table
        half = table.get(position) or table.ended(position)
        epoch = self._store.epoch if half is None else half.epoch
        message_id = _message_id(run.system_properties[index])
        return self._ids.encode(self._ids.key(), run.topic, position, epoch, message_id)

    async def end(self, call: Call, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit a half message, or roll it back; the answer is durable (X2)."""
        names.topic(request.topic, Use.SEND)
        half = self._ids.decode(request.topic, request.transaction_id)
        if half.epoch > self._store.epoch:
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"a later master of {self._ids.broker_name} issued this id, so this one leads no more; try again",
            )
        resolution = Resolution.COMMITTED if request.commit else Resolution.ROLLED_BACK
        end = partial(self._end_once, request.topic, half, resolution)
        refusal = await self._reads.run(end, half.position)
        if refusal is None or refusal.code in _ENDED:
            # The outcome is durable before a client acts on it: a message sent again must not be committed, too.
            await self._flusher.durable()
        else:
            await self._flusher.sync_refused(refusal)
        if refusal is not None:
            raise refusal
        return pb.EndTransactionResponse()

    def _end_once(self, topic: str, half: TransactionId, resolution: Resolution) -> StatusError | None:
        """Append the record that ends a transaction; return why it could not be, or that it has ended otherwise. Raises
        as `Coordinator.end` does.
        """
        self._apply_changes((topic,))
        try:
            try:
                with RECORD_STEP:
                    record = self._coordinator.end(half.position, half.epoch, resolution)
            except StatusError as ended:
                return ended
            if record is None:
                return None
            refusal = self._refusal_of_commits() if resolution == Resolution.COMMITTED else None
            if refusal is not None:
                raise refusal  # it is still open, and can be committed later
            try:
                with RECORD_STEP:
                    self._store.put([record])
            except StatusError as error:
                return error
        except RecordFaultError as fault:
            raise StatusError(Code.INTERNAL_ERROR, f"the transaction can't be ended ({fault}); it is open") from fault
        self._coordinator.resolved[resolution] += 1
        return None

    # Checks

    async def check(self, call: Call, stream: Stream[pb.TransactionProducers, pb.TransactionCheck]) -> None:
        """Send checks to a proxy, for as long as its stream lives."""
        changed = asyncio.Event()
        checker = Checker(changed.set)
        sender = asyncio.create_task(self._send_checks(checker, changed, stream), name="check-transactions")
        try:
            while (received := await stream.receive()) is not None:
                self._checkers.change(checker, filter(names.is_topic, received.topics), received.gone_topics)
        finally:
            self._checkers.remove(checker)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _send_checks(
        self,
        checker: Checker,
        changed: asyncio.Event,
        stream: Stream[pb.TransactionProducers, pb.TransactionCheck],
    ) -> None:
        while True:
            await changed.wait()
            changed.clear()
            while checker.waiting:
                position = checker.waiting.popleft()
                try:
                    check = await self._store.reads.run(partial(self._check_of, position))
                except (CorruptDataError, RecordFaultError, OSError):
                    continue  # damage is recorded, and mended if it can be; the check is repeated
                if check is not None:
                    await stream.send((check,))

    def _check_of(self, position: int) -> pb.TransactionCheck | None:
        """Return the check of a half message for a proxy; None if it is not open any more."""
        half = self._coordinator.table.get(position)
        if half is None:
            return None
        with RECORD_STEP:
            stored = self._coordinator.read(position)
            message_id = _message_id(stored.system_properties)
            topic = half.target.topic
            return pb.TransactionCheck(
                topic=topic,
                transaction_id=self._ids.encode(self._ids.key(), topic, position, half.epoch, message_id),
                message=pulled_message(stored, common_properties(self._ids.broker_name, None)),
            )


def _message_id(system_properties: bytes) -> str:
    return SystemProperties.FromString(system_properties).message_id
