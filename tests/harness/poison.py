"""Records that fail by themselves: makes the steps that handle one record raise for those that are marked.

What is marked carries `MARK` in its body. Slaves fold records without their bodies, so the fold is reported by
`is_marked` which positions of the log are meant.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from popwheel_broker.consume import acks, delivered_message, redelivery, relocation
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.delivery_messages import DeliveryMessages
from popwheel_broker.delay import dequeue_stages, enqueue_stages
from popwheel_broker.log import raw_records, record
from popwheel_broker.log import timer_record as delay
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.log.fold import Folds
from popwheel_broker.log.record import Record, StoredRecord
from popwheel_common.contract import names
from popwheel_common.contract.put import MessageRun

MARK = b"poison"
ERRORS: tuple[type[Exception], ...] = (ValueError, KeyError, TypeError, IndexError, AssertionError, ArithmeticError)
STEPS = (
    *("redelivery", "answer", "reading", "firing", "rolling", "scheduling", "writing", "intake", "decoding"),
    *("retention", "folding", "replication"),
)

Now = Callable[[], type[Exception] | None]
"""The error that marked records raise at this moment; None for none."""


class Poison:
    """Which steps fail for marked records, and how.

    Args:
        steps: of `STEPS`.
        error: what they raise now.
        is_marked: whether a message is meant, by its payload and the inside of its system properties.
    """

    def __init__(
        self,
        steps: Sequence[str],
        error: Now = lambda: KeyError,
        is_marked: Callable[[bytes, bytes], bool] = lambda payload, properties: MARK in payload,
    ) -> None:
        assert set(steps) <= set(STEPS)
        self._steps = steps
        self._error = error
        self._is_marked = is_marked
        self.hits = 0
        """How often a step has raised."""

    def _bite(self, payload: bytes, properties: bytes = b"") -> None:
        error = self._error()
        if error is not None and self._is_marked(payload, properties):
            self.hits += 1
            raise error("poison")

    @contextlib.contextmanager
    def spread(self) -> Iterator["Poison"]:
        """Have the steps raise."""
        with contextlib.ExitStack() as stack:
            for step in self._steps:
                owners, name, wrapper = getattr(self, f"_{step}")()
                for owner in owners if isinstance(owners, tuple) else (owners,):
                    stack.enter_context(mock.patch.object(owner, name, wrapper))
            yield self

    def _redelivery(self) -> tuple[Any, str, Any]:
        before = redelivery.redelivered

        def redelivered(delivery: Delivery, index: int, stored: StoredRecord, **how: Any) -> Record:
            self._bite(stored.payload, stored.system_properties)
            return before(delivery, index, stored, **how)

        return acks, "redelivered", redelivered

    def _answer(self) -> tuple[Any, str, Any]:
        before = delivered_message.popped_messages

        def popped_messages(records: Sequence[StoredRecord], common: bytes, handles: Sequence[str]) -> list[bytes]:
            for stored in records:
                self._bite(stored.payload, stored.system_properties)
            return before(records, common, handles)

        return delivered_message, "popped_messages", popped_messages

    def _reading(self) -> tuple[Any, str, Any]:
        before = delivered_message.pulled_message

        def pulled_message(stored: StoredRecord, common: bytes) -> bytes:
            self._bite(stored.payload, stored.system_properties)
            return before(stored, common)

        return delivered_message, "pulled_message", pulled_message

    def _firing(self) -> tuple[Any, str, Any]:
        before = dequeue_stages.moved

        def moved(stored: StoredRecord, topic: str, queue_id: int, origin: bytes) -> Record:
            self._bite(stored.payload, stored.system_properties)
            return before(stored, topic, queue_id, origin)

        return dequeue_stages, "moved", moved

    def _rolling(self) -> tuple[Any, str, Any]:
        """Of recalls, which have neither body nor properties."""
        before = delay.recall_record

        def recall_record(recall: delay.Delay) -> Record:
            self._bite(b"")
            return before(recall)

        return dequeue_stages, "recall_record", recall_record

    def _scheduling(self) -> tuple[Any, str, Any]:
        before = enqueue_stages.TimerEnqueuePut._chain_in

        def chain_in(stage: Any, request: Any, now_ms: int, farthest_ms: int) -> None:
            stored = stage._faults._store.records.read(Entry(request.position, request.length, 0))
            self._bite(stored.payload, stored.system_properties)
            before(stage, request, now_ms, farthest_ms)

        return enqueue_stages.TimerEnqueuePut, "_chain_in", chain_in

    def _writing(self) -> tuple[Any, str, Any]:
        before = record.encode

        def encode(each: Record, *place: Any) -> Any:
            if each.kind == record.RecordKind.MESSAGE and each.origin:
                self._bite(each.payload, each.system_properties)
            return before(each, *place)

        return record, "encode", encode

    def _intake(self) -> tuple[Any, str, Any]:
        before = record.encode_run

        def encode_run(run: MessageRun, *place: Any) -> Any:
            for payload, properties in zip(run.payloads, run.system_properties, strict=True):
                self._bite(payload, properties)
            return before(run, *place)

        return record, "encode_run", encode_run

    def _decoding(self) -> tuple[Any, str, Any]:
        """Of what is read again, not of what the log is checked with."""
        before = delay.decode_delay

        def decode_delay(data: bytes) -> Any:
            self._bite(data)
            return before(data)

        return (enqueue_stages, dequeue_stages), "decode_delay", decode_delay

    def _retention(self) -> tuple[Any, str, Any]:
        """Of what is copied, as its segment is to go."""
        before = DeliveryMessages.message

        def message(self_: DeliveryMessages, delivery: Delivery, index: int) -> StoredRecord | None:
            stored = before(self_, delivery, index)
            if stored is not None and sys._getframe(1).f_globals["__name__"] == relocation.__name__:
                self._bite(stored.payload, stored.system_properties)
            return stored

        return DeliveryMessages, "message", message

    def _folding(self) -> tuple[Any, str, Any]:
        """Of messages that come from nowhere but a sender; neither body nor properties are read for it."""
        before = Folds.replay

        def replay(folds: Folds, found: StoredRecord) -> None:
            is_sent = found.kind == record.RecordKind.MESSAGE and not found.origin
            if is_sent and not found.topic.startswith(names.SYSTEM_PREFIX):
                self._bite(b"")
            before(folds, found)

        return Folds, "replay", replay

    def _replication(self) -> tuple[Any, str, Any]:
        """Of all that a master sends."""
        before = raw_records.checked_records

        def checked_records(position: int, data: bytes) -> list[StoredRecord]:
            self._bite(b"")
            return before(position, data)

        return sys.modules["popwheel_broker.replication.replica_store"], "checked_records", checked_records


@contextlib.contextmanager
def failing_fold(is_marked: Callable[[StoredRecord], bool], error: type[Exception] = KeyError) -> Iterator[None]:
    """Have no fold take in the records that are marked, as they are read again."""
    before = Folds.replay

    def replay(folds: Folds, found: StoredRecord) -> None:
        if is_marked(found):
            raise error("poison")
        before(folds, found)

    with mock.patch.object(Folds, "replay", replay), mock.patch.object(Folds, "appended", before):
        yield
