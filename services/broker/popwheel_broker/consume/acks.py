"""Acknowledgements by consumers: acks, nacks, renewals, dead letters; and releases of a client's messages."""

from collections.abc import Callable, Mapping, Sequence

from popwheel_broker.consume import delivered_message
from popwheel_broker.consume import delivery as codec
from popwheel_broker.consume.delivery import Delivery, Origin
from popwheel_broker.consume.delivery_events import ACKED, EXPIRED, NACKED, RELEASED
from popwheel_broker.consume.delivery_messages import DeliveryMessage, DeliveryMessages
from popwheel_broker.consume.pop_context import PopContext
from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.consume.receives import Receives
from popwheel_broker.consume.redelivery import dead_letter, redelivered, retry_topic_of
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.record import Record, StoredRecord
from popwheel_common.contract import names, receipt
from popwheel_common.contract.backoff import wait_ms
from popwheel_common.contract.names import Use
from popwheel_common.contract.receipt import HandleReader
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb

_DONE = pb.EntryResult(code=Code.OK)


class Acks:
    """Serves acks and all other calls that end or change a delivery.

    Each message leaves its delivery by one record that says both where it goes and what it came from, so a crash
    between two writes can neither lose nor double it. The ACK record that follows saves recovery a search.

    Args:
        context: store, state and names.
        on_due_changed: called when something may come due earlier than before.
        knows_group: whether a group exists in the log, which may be ahead of the view.
        receives: which receives have the messages of ordered groups.
    """

    def __init__(
        self,
        context: PopContext,
        on_due_changed: Callable[[], None],
        knows_group: Callable[[str], bool],
        receives: Receives,
    ) -> None:
        self._store = context.store
        self._state = context.state
        self._view = context.view
        self._topics = context.topics
        self._clock = context.clock
        self._broker_name = context.broker_name
        self._on_due_changed = on_due_changed
        self._knows_group = knows_group
        self._quarantine = context.quarantine
        self._receives = receives
        self.messages = DeliveryMessages(context.store, context.topics)
        """The messages of deliveries."""

    def ack(
        self, group: str, topic: str, handles: Sequence[str], *, call: int = 0, is_retry: bool = False
    ) -> list[pb.EntryResult]:
        """Mark messages as done; one result for each handle, in their order, or none at all if all succeeded.

        Args:
            group, topic: for which the handles were issued.
            handles: of the messages.
            call: names the client's call and all its tries; 0 if unknown.
            is_retry: whether an earlier try may have done it: messages that it has acknowledged count as acknowledged.
        """
        bits_of: dict[Delivery, int] = {}
        results: list[pb.EntryResult] = []
        refused = False
        reader = HandleReader(self._view.receipt_key, group, topic)
        for handle in handles:
            try:
                delivery_id, queue_offset = reader.read(handle)
                delivery, index = self._open(delivery_id, queue_offset)
                bits = bits_of.get(delivery, 0)
                if bits >> index & 1:
                    raise StatusError(Code.INVALID_RECEIPT_HANDLE, "this receipt handle stands twice in the call")
            except StatusError as error:
                if is_retry and self._is_done(group, topic, handle, call):
                    results.append(_DONE)
                    continue
                results.append(_refusal(error))
                refused = True
                continue
            bits_of[delivery] = bits | 1 << index
            results.append(_DONE)
        if bits_of:
            appended = self._store.put(
                [codec.ack_record(self._topics.revive, delivery.id, bits, call) for delivery, bits in bits_of.items()]
            )
            self._happened(ACKED, bits_of, appended.store_time_ms, appended.positions)
        assert len(results) == len(handles), "not every receipt handle has its result"
        return results if refused else []

    def change_invisible(
        self,
        group: str,
        topic: str,
        handle: str,
        invisible_ms: int | None,
        *,
        call: int = 0,
        is_retry: bool = False,
        suspends: bool = False,
    ) -> str:
        """Hide a message for `invisible_ms` from now; return its new receipt handle, the only valid one (P7).

        Args:
            group, topic: for which the handle was issued.
            handle: of the message.
            invisible_ms: for how long; None for the back-off of its group, which takes a read.
            call: names the client's call and all its tries; 0 if unknown.
            is_retry: whether an earlier try may have done it: then the handle that it returned is returned once more.
            suspends: whether the delivery that ends is no attempt, which only groups that consume in order can say; it
                stays so however often its invisible duration changes.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE, or the disk is full; nothing has changed.
        """
        shown = receipt.decode(self._view.receipt_key, group, topic, handle)
        try:
            old, index = self._open(shown.delivery_id, shown.queue_offset)
        except StatusError:
            done = self._state.table.replacement(shown.delivery_id, shown.queue_offset, call) if is_retry else None
            if done is None:
                raise
            return self._handle_of(done)
        if invisible_ms is None:
            invisible_ms = self._backoff_ms(old, index)
        identity = self._state.table.make_id(old.revive_queue)
        new = old.changed(index, identity, self._clock.now_ms(), invisible_ms, call=call, suspends=suspends)
        appended = self._store.put([codec.delivery_record(self._topics.revive, new)])
        stored_ms = appended.store_time_ms
        self._happened(NACKED, {old: 1 << index}, stored_ms, appended.positions, stored_ms + invisible_ms)
        self._on_due_changed()
        return self._handle_of(new)

    def _handle_of(self, delivery: Delivery) -> str:
        """Return the receipt handle of a delivery's only message."""
        maker = delivered_message.handle_maker(self._view.receipt_key, delivery, self._broker_name)
        return maker.handle(delivery.offsets[0])

    def renew(self, entries: Sequence[pb.RenewEntry], invisible_ms: int) -> list[pb.EntryResult]:
        """Hide messages for `invisible_ms` from now, or for the back-off of their group's policy, which takes a read.
        Their receipt handles stay valid.
        """
        now_ms = self._clock.now_ms()
        bits_of: dict[tuple[Delivery, int], int] = {}  # by delivery and time
        results: list[pb.EntryResult] = []
        for entry in entries:
            try:
                names.group(entry.group)
                names.topic(entry.topic, Use.RECEIVE)
                delivery, index = self._find(entry.group, entry.topic, entry.receipt_handle)
            except StatusError as error:
                results.append(_refusal(error))
                continue
            hidden_ms = self._backoff_ms(delivery, index) if entry.back_off else invisible_ms
            renewed = delivery, now_ms + hidden_ms
            bits_of[renewed] = bits_of.get(renewed, 0) | 1 << index
            results.append(_DONE)
        if bits_of:
            self._store.put(
                [
                    codec.renewal_record(self._topics.revive, delivery.id, bits, due_ms)
                    for (delivery, due_ms), bits in bits_of.items()
                ]
            )
            self._on_due_changed()
        assert len(results) == len(entries), "not every receipt handle has its result"
        return results

    def _backoff_ms(self, delivery: Delivery, index: int) -> int:
        """Return the backoff of a message that its consumer failed on."""
        try:
            with RECORD_STEP:
                stored = self.messages.message(delivery, index)
        except (RecordFaultError, CorruptDataError):
            stored = None  # the next delivery finds that, and handles it
        attempt = 1 if stored is None else stored.attempts + 1
        return wait_ms(self._view.groups.get(delivery.group), attempt)

    def release(
        self, group: str, topic: str, handles: Sequence[str], attempted: bool, *, receive: int = 0
    ) -> list[pb.EntryResult]:
        """Make messages visible at once, for a consumer that has gone.

        Args:
            group, topic: for which the handles were issued.
            handles: of the messages.
            attempted: whether it counts as an attempt.
            receive: which receive has ended: messages that another try of it has stay in flight; 0 releases all.
        """
        messages: dict[DeliveryMessage, None] = {}
        results: list[pb.EntryResult] = []
        for handle in handles:
            try:
                each = self._find(group, topic, handle)
            except StatusError as error:
                results.append(_refusal(error))
                continue
            if not receive or self._receives.ended(each[0], receive):
                messages[each] = None
            results.append(_DONE)
        self.redeliver(list(messages), attempted=attempted, cause=RELEASED)
        assert len(results) == len(handles), "not every receipt handle has its result"
        return results

    def _happened(
        self, kind: int, bits_of: Mapping[Delivery, int], time_ms: int, positions: Sequence[int], number: int = 0
    ) -> None:
        """Record an event of messages, by the record of each."""
        add = self._state.events.add
        for (delivery, bits), position in zip(bits_of.items(), positions, strict=True):
            add(time_ms, position, kind, delivery, bits, number)

    def redeliver(self, messages: Sequence[DeliveryMessage], *, attempted: bool, cause: int = EXPIRED) -> None:
        """Move messages from their deliveries to the retry topic or, past the group's limit, to its dead letter queue.

        Messages of a group that consumes in order stay the first of their message-group queues instead (P6). A message
        that is gone (retention, a deleted topic or group) just leaves its delivery; no other replaces it (P4). A group
        that the log knows and the view does not exists all the same: the view is behind, or the controller has lost its
        state. Its messages are redelivered, and that is no attempt, as its limit is not known. A poison message goes to
        the quarantine. A message that has left its delivery is passed over, so a call may be repeated.

        Args:
            messages: which.
            attempted: whether the deliveries that end by it are attempts.
            cause: why they end: a kind of `DeliveryEvents`.

        Raises:
            StatusError: the disk, or the quarantine, is full; what was not moved has not changed.
            CorruptDataError: one of them is damaged; likewise.
        """
        messages = [(delivery, index) for delivery, index in messages if delivery.open_bits >> index & 1]
        if self._state.revoking:
            messages = self._without_revoked(messages)
        if any(delivery.lines for delivery, _ in messages):
            messages = self._put_back(messages, attempted=attempted, cause=cause)
        try:
            with RECORD_STEP:
                self._put_leaving(messages, self._moved(messages, attempted=attempted), cause=cause)
        except RecordFaultError as fault:
            if len(messages) == 1:
                self._quarantine_message(*messages[0], fault, attempted=attempted)
            else:
                for delivery, index in messages:
                    self.redeliver([(delivery, index)], attempted=attempted, cause=cause)

    def _without_revoked(self, messages: Sequence[DeliveryMessage]) -> list[DeliveryMessage]:
        """Close messages that are being revoked a little earlier; return the others.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        revoked = [each for each in messages if self._state.is_revoked(each[0])]
        self._put_leaving(revoked, [])
        return [each for each in messages if not self._state.is_revoked(each[0])]

    def _put_back(self, messages: Sequence[DeliveryMessage], *, attempted: bool, cause: int) -> list[DeliveryMessage]:
        """Return messages of ordered groups to their message-group queues, to be delivered again; return the others.

        Raises:
            StatusError: the disk is full; nothing has changed.
        """
        rest: list[DeliveryMessage] = []
        returned: dict[Delivery, list[int]] = {}
        for delivery, index in messages:
            if delivery.lines and self._is_redelivered(delivery, index, attempted=attempted):
                returned.setdefault(delivery, []).append(index)
            else:
                rest.append((delivery, index))
        if not returned:
            return rest
        now_ms = self._clock.now_ms()
        blocked = [self._blocked(each, sorted(indexes), attempted, now_ms) for each, indexes in returned.items()]
        appended = self._store.put([codec.delivery_record(self._topics.revive, each) for each in blocked])
        bits_of = {old: sum(1 << index for index in indexes) for old, indexes in returned.items()}
        self._happened(cause, bits_of, appended.store_time_ms, appended.positions)
        return rest

    def _is_redelivered(self, delivery: Delivery, index: int, *, attempted: bool) -> bool:
        """Return whether a message of an ordered group is redelivered: it is not gone and has attempts left."""
        group = self._view.groups.get(delivery.group)
        if self.messages.place(delivery, index) is None:
            return False
        if group is None:
            return self._knows_group(delivery.group)
        return delivery.attempts[index] + (attempted and not delivery.is_suspended) < group.max_attempts

    def was_last_attempt(self, delivery: Delivery, index: int, stored: StoredRecord) -> bool:
        """Return whether a message becomes a dead letter if its delivery ends now, unacknowledged."""
        group = self._view.groups.get(delivery.group)
        if not delivery.lines and retry_topic_of(delivery) is None:
            return True
        return group is not None and stored.attempts + (not delivery.is_suspended) >= group.max_attempts

    def _blocked(self, old: Delivery, indexes: Sequence[int], attempted: bool, now_ms: int) -> Delivery:
        """Return the delivery of messages that wait in their message-group queues once more."""
        counts = attempted and not old.is_suspended and old.group in self._view.groups
        offsets = tuple(old.offsets[index] for index in indexes)
        return Delivery(
            id=self._state.table.make_id(old.revive_queue),
            group=old.group,
            topic=old.topic,
            origin=old.origin,
            queue_id=old.queue_id,
            start_offset=offsets[0],
            next_offset=offsets[-1] + 1,
            pop_time_ms=now_ms,
            invisible_ms=0,
            due_ms=now_ms,
            first_position=old.first_position,
            offsets=offsets,
            copies={number: old.copies[index] for number, index in enumerate(indexes) if index in old.copies},
            lines=tuple(old.lines[index] for index in indexes),
            attempts=tuple(old.attempts[index] + counts for index in indexes),
            sources=tuple(Origin(old.id, index) for index in indexes),
            is_blocked=True,
        )

    def _quarantine_message(self, delivery: Delivery, index: int, fault: RecordFaultError, *, attempted: bool) -> None:
        try:
            with RECORD_STEP:
                stored = self.messages.message(delivery, index)
        except RecordFaultError:
            stored = None
        self._quarantine.quarantine_delivery(delivery, index, stored, Step.REDELIVERY, fault, attempted=attempted)

    def _moved(self, messages: Sequence[DeliveryMessage], *, attempted: bool) -> list[Record]:
        """Return the records that replace messages, without those of messages that are gone."""
        records: list[Record] = []
        for (delivery, index), stored in zip(messages, self.messages.read(messages), strict=True):
            group = self._view.groups.get(delivery.group)
            if stored is not None and (group is not None or self._knows_group(delivery.group)):
                counts = attempted and not delivery.is_suspended and group is not None
                limit = stored.attempts + 1 if group is None else group.max_attempts
                records.append(redelivered(delivery, index, stored, attempted=counts, attempts_max=limit))
        return records

    def dead_letter(self, group: str, topic: str, handle: str, *, call: int = 0, is_retry: bool = False) -> None:
        """Move a message to the group's dead letter queue.

        Args:
            group, topic: for which the handle was issued.
            handle: of the message.
            call: names the client's call and all its tries; 0 if unknown.
            is_retry: whether an earlier try may have done it: then that is a success.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE, or the disk is full; nothing has changed.
        """
        try:
            delivery, index = self._find(group, topic, handle)
        except StatusError:
            if is_retry and self._is_done(group, topic, handle, call):
                return
            raise
        stored = self.messages.message(delivery, index)
        records = [] if stored is None else [dead_letter(delivery, index, stored)]
        acks = [codec.ack_record(self._topics.revive, delivery.id, 1 << index, call)]
        self._store.put([*records, *acks])

    def end(self, delivery: Delivery, stored: Mapping[int, StoredRecord], cause: int, *, to_dead_letters: bool) -> None:
        """End messages of a delivery without an attempt: they go to the group's dead letter queue, or away.

        Args:
            delivery: the delivery.
            stored: its messages that end, by index.
            cause: why, as a kind of `DeliveryEvents`.
            to_dead_letters: where they go.

        Raises:
            StatusError: the disk, or the quarantine, is full; what has not ended is unchanged.
        """
        messages = [(delivery, index) for index in stored]
        try:
            with RECORD_STEP:
                letters = [dead_letter(delivery, index, each) for index, each in stored.items() if to_dead_letters]
                self._put_leaving(messages, letters, cause)
        except RecordFaultError as fault:
            for index, each in stored.items():
                if len(stored) == 1:
                    self._quarantine_message(delivery, index, fault, attempted=False)
                else:
                    self.end(delivery, {index: each}, cause, to_dead_letters=to_dead_letters)

    def rewrite(self, deliveries: Sequence[Delivery]) -> None:
        """Write open deliveries again at the end of their revive queues, so that recovery need not read from far back,
        or with their new values. A delivery with a poison message stays as it is until it is done.

        Raises:
            StatusError: the disk is full; what was not written has not changed.
        """
        if not deliveries:
            return
        try:
            with RECORD_STEP:
                self._store.put([codec.delivery_record(self._topics.revive, each) for each in deliveries])
        except RecordFaultError as fault:
            if len(deliveries) == 1:
                self._quarantine.count(Step.RETENTION, deliveries[0].first_position, fault)
                return
            for each in deliveries:
                self.rewrite([each])

    def _put_leaving(
        self, messages: Sequence[DeliveryMessage], records: list[Record], cause: int | None = None
    ) -> None:
        """Append the records that take messages out of their deliveries, and those that close them there.

        Args:
            messages: those that leave.
            records: those that replace them.
            cause: why, as a kind of `DeliveryEvents`; None if those records say so.
        """
        bits_of: dict[Delivery, int] = {}
        for delivery, index in messages:
            bits_of[delivery] = bits_of.get(delivery, 0) | 1 << index
        if bits_of:
            appended = self._store.put(
                [
                    *records,
                    *(codec.close_record(self._topics.revive, each.id, bits) for each, bits in bits_of.items()),
                ]
            )
            if cause is not None:
                # At the first position: the end of a delivery comes before what is made of its messages.
                self._happened(cause, bits_of, appended.store_time_ms, [appended.positions[0]] * len(bits_of))

    def _is_done(self, group: str, topic: str, handle: str, call: int) -> bool:
        """Return whether the message of a void handle is known to be void because this call acknowledged it."""
        try:
            shown = receipt.decode(self._view.receipt_key, group, topic, handle)
        except StatusError:
            return False
        return self._state.acked.has(shown.delivery_id, shown.queue_offset, call)

    def _find(self, group: str, topic: str, handle: str) -> DeliveryMessage:
        """Return the message that a receipt handle stands for.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE: it is forged or foreign, or does not hide its message any more.
                HA_NOT_AVAILABLE: a later master issued it.
        """
        decoded = receipt.decode(self._view.receipt_key, group, topic, handle)
        return self._open(decoded.delivery_id, decoded.queue_offset)

    def _open(self, delivery_id: int, queue_offset: int) -> DeliveryMessage:
        """Return the message of a delivery with this offset.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE: no message of the delivery with this offset is hidden by it.
                HA_NOT_AVAILABLE: a later master has made the delivery.
        """
        delivery = self._state.table.get(delivery_id)
        if delivery is None and not self._state.table.has_made(delivery_id):
            raise StatusError(
                Code.HA_NOT_AVAILABLE,
                f"a later master of {self._broker_name} issued this handle, so this one leads no more; try again",
            )
        if delivery is not None and self._state.is_revoked(delivery):
            delivery = None
        index = -1 if delivery is None else delivery.index_of(queue_offset)
        if delivery is None or index < 0 or not delivery.open_bits >> index & 1:
            raise StatusError(
                Code.INVALID_RECEIPT_HANDLE,
                "this receipt handle is not valid any more: its message was acknowledged, got a new handle, or its "
                "invisible duration has passed; use the handle of its latest delivery",
            )
        return delivery, index


def _refusal(error: StatusError) -> pb.EntryResult:
    """Return the result for one handle.

    Raises:
        StatusError: HA_NOT_AVAILABLE: a later master leads, so all handles of the call are to be shown to that one.
    """
    if error.code == Code.HA_NOT_AVAILABLE:
        raise error
    return pb.EntryResult(code=error.code, error=error.message)
