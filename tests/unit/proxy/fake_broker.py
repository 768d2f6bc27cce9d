"""A broker in memory: one list of messages per topic, delivered once per group, with notifications."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from popwheel_common.contract import names, recall_handle, receipt, transaction_id
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.contract.recall_handle import RecallHandle
from popwheel_common.contract.send_id import without_send_id
from popwheel_common.contract.transaction_id import TransactionId
from popwheel_common.contract.wire_format import field as wire_field
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service, Stream
from popwheel_rpc.status import RpcError
from tests.unit.proxy.fake_controller import KEY


@dataclass(slots=True, eq=False)
class Watcher:
    """One Notify stream."""

    stream: Stream[pb.NotifyInterest, pb.NotifyEvents]
    interests: dict[int, pb.NotifyInterest] = field(default_factory=dict)


class StoredMessage(NamedTuple):
    """One message as it was put."""

    payload: bytes
    system_properties: bytes = b""
    tag: str = ""
    queue_id: int = 0


class Timer(NamedTuple):
    """One delayed message."""

    topic: str
    due_ms: int
    message: Message


RECORDS = bytes(range(256)) * 400
"""What it answers to PullRecords."""


class FakeBroker:
    """Serves popwheel.v1.Broker; what it was asked is kept in `calls`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: dict[str, list[StoredMessage]] = {}
        self.ready: dict[tuple[str, str], list[int]] = {}
        self.open: dict[str, tuple[str, str, int]] = {}
        self.acked: list[str] = []
        self.calls: list[tuple[str, object]] = []
        self.watchers: list[Watcher] = []
        self.registrations: list[pb.NotifyInterest] = []
        self.readers: list[tuple[str, str]] = []
        """Groups and the topics that they read, as proxies have said."""
        self.put_error: StatusError | RpcError | None = None
        self.put_results: list[PutResult] = []
        self.deleted: set[int] = set()
        """Ids of topics."""
        self.pop_error: StatusError | RpcError | None = None
        self.put_gate = asyncio.Event()
        self.put_gate.set()
        self.pop_gate = asyncio.Event()
        self.pop_gate.set()
        self.interests_max = 1 << 30
        self.notify_gate = asyncio.Event()
        self.notify_gate.set()
        self._handles = 0
        service = self.service = Service()
        service.unary(methods.PUT, self._put)
        service.unary(methods.POP, self._pop)
        service.unary(methods.ACK, self._ack)
        service.unary(methods.CHANGE_INVISIBLE, self._change)
        service.unary(methods.RENEW, self._renew)
        service.unary(methods.RELEASE, self._release)
        service.unary(methods.DEAD_LETTER, self._dead_letter)
        service.unary(methods.PULL, self._pull)
        service.unary(methods.PULL_RECORDS, self._pull_records)
        service.unary(methods.GET_OFFSET, self._get_offset)
        service.unary(methods.UPDATE_OFFSET, self._update_offset)
        service.unary(methods.QUERY_OFFSET, self._query_offset)
        service.stream(methods.NOTIFY, self._notify)
        service.unary(methods.RECALL, self._recall)
        service.unary(methods.END_TRANSACTION, self._end_transaction)
        service.stream(methods.CHECK_TRANSACTIONS, self._check_transactions)
        self.halves: dict[str, Message] = {}
        self.end_errors: list[StatusError | RpcError] = []
        self.checking: list[Stream[pb.TransactionProducers, pb.TransactionCheck]] = []
        self.producer_topics: set[str] = set()
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.timers: dict[str, Timer] = {}
        self.recall_error: StatusError | RpcError | None = None
        service.unary(methods.SYNC_LITE, self._sync_lite)
        self.lite_readers: dict[tuple[str, str, str], set[str]] = {}
        self.sync_error: StatusError | RpcError | None = None

    def asked(self, method: str) -> list[object]:
        """The requests of one method, in order."""
        return [request for name, request in self.calls if name == method]

    @property
    def interests(self) -> list[pb.NotifyInterest]:
        """What is registered now."""
        return [interest for watcher in self.watchers for interest in watcher.interests.values()]

    def waiting(self, group: str, topic: str) -> int:
        """Messages that a group has not been given."""
        return len(self._ready(group, topic))

    async def _put(self, call: Call, request: Sequence[MessageRun]) -> Sequence[PutResult]:
        self.calls.append(("Put", request))
        await self.put_gate.wait()
        if self.put_error is not None:
            raise self.put_error
        if self.put_results:
            results, self.put_results = self.put_results, []
            return results
        results = []
        for run in request:
            if run.topic_id in self.deleted:
                results.append(PutResult(Code.TOPIC_NOT_FOUND, "the topic was deleted"))
                continue
            if run.kind is PutKind.HALF:
                results.append(PutResult(Code.OK, references=self._keep_halves(run)))
                continue
            if run.kind is PutKind.AT_TIME:
                results.append(PutResult(Code.OK, references=self._delay(run)))
                continue
            log = self.topics.setdefault(run.stored_topic, [])
            results.append(PutResult(Code.OK, queue_offset=len(log)))
            for message in zip(run.payloads, run.system_properties, run.tags, strict=True):
                for (_, topic), ready in self.ready.items():
                    if topic == run.stored_topic:
                        ready.append(len(log))
                log.append(StoredMessage(*message, queue_id=run.queue_id))
        for topic in {run.stored_topic for run in request if not run.kind}:
            await self.arrived(topic, sum(len(run.payloads) for run in request if run.stored_topic == topic))
        return results

    def _keep_halves(self, run: MessageRun) -> list[str]:
        """Keep half messages; their transaction ids."""
        ids = []
        for payload, properties in zip(run.payloads, run.system_properties, strict=True):
            message = decoded(StoredMessage(payload, properties))
            half = TransactionId(self.name, len(self.halves), 1, message.system_properties.message_id)
            ids.append(transaction_id.encode(KEY, run.topic, half))
            self.halves[ids[-1]] = message
        return ids

    async def _end_transaction(self, call: Call, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        self.calls.append(("EndTransaction", request))
        if self.end_errors:
            raise self.end_errors.pop(0)
        return pb.EndTransactionResponse()

    async def _check_transactions(
        self, call: Call, stream: Stream[pb.TransactionProducers, pb.TransactionCheck]
    ) -> None:
        self.checking.append(stream)
        try:
            while (reported := await stream.receive()) is not None:
                self.producer_topics.update(reported.topics)
                self.producer_topics.difference_update(reported.gone_topics)
        finally:
            self.checking.remove(stream)
            self.producer_topics.clear()

    def _delay(self, run: MessageRun) -> list[str]:
        """Keep the messages of a delayed run; their recall handles."""
        handles = []
        for payload, properties, due_ms in zip(run.payloads, run.system_properties, run.times_ms, strict=True):
            message = decoded(StoredMessage(payload, properties))
            message_id = message.system_properties.message_id
            handles.append(
                recall_handle.encode(KEY, run.topic, RecallHandle(self.name, len(self.timers), due_ms, message_id))
            )
            self.timers[handles[-1]] = Timer(run.topic, due_ms, message)
        return handles

    async def _recall(self, call: Call, request: pb.RecallRequest) -> pb.RecallResponse:
        self.calls.append(("Recall", request))
        if self.recall_error is not None:
            raise self.recall_error
        shown = recall_handle.decode(KEY, request.topic, request.recall_handle)
        if self.timers.pop(request.recall_handle, None) is None:
            raise StatusError(Code.MESSAGE_NOT_FOUND, "the broker holds no such message")
        return pb.RecallResponse(message_id=shown.message_id)

    async def arrived(self, topic: str, count: int) -> None:
        """Notify of messages that have newly arrived."""
        for watcher in self.watchers:
            events = [
                pb.NotifyEvent(id=number, waiting=count)
                for number, interest in watcher.interests.items()
                if (interest.topic == topic if not interest.lite_client_id else self._reads(interest, topic))
            ]
            if events:
                await watcher.stream.send((pb.NotifyEvents(events=events),))

    def _reads(self, interest: pb.NotifyInterest, stored: str) -> bool:
        read = self.lite_readers.get((interest.group, interest.topic, interest.lite_client_id), ())
        return any(names.lite_topic(interest.topic, lite) == stored for lite in read)

    async def _sync_lite(self, call: Call, request: pb.SyncLiteRequest) -> pb.SyncLiteResponse:
        self.calls.append(("SyncLite", request))
        if self.sync_error is not None:
            raise self.sync_error
        key, asked = (request.group, request.topic, request.client_id), set(request.lite_topics)
        match request.action:
            case pb.LITE_SET:
                self.lite_readers[key] = asked
            case pb.LITE_END:
                self.lite_readers.pop(key, None)
            case _ if key not in self.lite_readers:
                return pb.SyncLiteResponse(unknown_client=True)
            case pb.LITE_ADD:
                self.lite_readers[key] |= asked
            case _:
                self.lite_readers[key] -= asked
        for watcher in self.watchers:
            for interest in watcher.interests.values():
                here = (interest.group, interest.topic, interest.lite_client_id) == key
                if here and request.action in (pb.LITE_SET, pb.LITE_ADD) and (count := self._lite_waiting(*key)):
                    event = pb.NotifyEvent(id=interest.id, waiting=count)
                    await watcher.stream.send((pb.NotifyEvents(events=[event]),))
        return pb.SyncLiteResponse()

    def forget_readers(self) -> None:
        """As after a restart."""
        self.lite_readers.clear()

    def _lite_ready(self, group: str, topic: str, client_id: str) -> list[tuple[str, int]]:
        """The first message of each lite topic of which the group has none."""
        found = []
        for lite in sorted(self.lite_readers[group, topic, client_id]):
            stored = names.lite_topic(topic, lite)
            held = any(entry[1] == stored for entry in self.open.values())
            if not held and (ready := self._ready(group, stored)):
                found.append((stored, ready[0]))
        return found

    def _lite_waiting(self, group: str, topic: str, client_id: str) -> int:
        return len(self._lite_ready(group, topic, client_id))

    def _lite_pop(self, request: pb.PopRequest) -> PopAnswer:
        key = (request.group, request.topic, request.client_id)
        if key not in self.lite_readers:
            return PopAnswer(is_unknown_client=True)
        answer = PopAnswer()
        for stored, index in self._lite_ready(*key)[: request.max_messages]:
            self._ready(request.group, stored).remove(index)
            self._deliver(request, answer, stored, index)
        answer.waiting = self._lite_waiting(*key)
        return answer

    async def _pop(self, call: Call, request: pb.PopRequest) -> PopAnswer:
        self.calls.append(("Pop", request))
        await self.pop_gate.wait()
        if self.pop_error is not None:
            raise self.pop_error
        if request.lite:
            return self._lite_pop(request)
        ready = self._ready(request.group, request.topic)
        answer = PopAnswer()
        for index in ready[: request.max_messages]:
            self._deliver(request, answer, request.topic, index)
        del ready[: request.max_messages]
        answer.waiting = len(ready)
        return answer

    def _deliver(self, request: pb.PopRequest, answer: PopAnswer, topic: str, index: int) -> None:
        stored = self.topics[topic][index]
        self._handles += 1
        fields = (self._handles, 1, request.invisible_ms, 0, receipt.FROM_TOPIC, self.name, stored.queue_id, index)
        maker = receipt.HandleMaker(KEY, request.group, request.topic, receipt.ReceiptHandle(*fields))
        handle = maker.handle(index)
        self.open[handle] = (request.group, topic, index)
        inside = without_send_id(stored.system_properties) + SystemProperties(receipt_handle=handle).SerializeToString()
        answer.messages.append(stored.payload + wire_field(3, inside))
        answer.handles.append(handle)

    async def _ack(self, call: Call, request: pb.AckRequest) -> pb.AckResponse:
        self.calls.append(("Ack", request))
        response = pb.AckResponse()
        for handle in request.receipt_handles:
            if request.is_retry and handle in self.acked:
                response.results.add(code=Code.OK)
            elif self.open.pop(handle, None) is None:
                response.results.add(code=Code.INVALID_RECEIPT_HANDLE, error="no such handle")
            else:
                self.acked.append(handle)
                response.results.add(code=Code.OK)
        if all(result.code == Code.OK for result in response.results):
            del response.results[:]
        return response

    async def _change(self, call: Call, request: pb.ChangeInvisibleRequest) -> pb.ChangeInvisibleResponse:
        self.calls.append(("ChangeInvisible", request))
        entry = self.open.pop(request.receipt_handle, None)
        handle = request.receipt_handle + "+"
        if entry is None:
            if request.is_retry and handle in self.open:
                return pb.ChangeInvisibleResponse(receipt_handle=handle)
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "no such handle")
        self.open[handle] = entry
        return pb.ChangeInvisibleResponse(receipt_handle=handle)

    async def _renew(self, call: Call, request: pb.RenewRequest) -> pb.RenewResponse:
        self.calls.append(("Renew", request))
        response = pb.RenewResponse()
        for entry in request.entries:
            known = entry.receipt_handle in self.open
            response.results.add(code=Code.OK if known else Code.INVALID_RECEIPT_HANDLE)
        return response

    async def _release(self, call: Call, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        self.calls.append(("Release", request))
        response = pb.ReleaseResponse()
        for handle in request.receipt_handles:
            _, topic, index = self.open.pop(handle)
            self._ready(request.group, topic).append(index)
            response.results.add(code=Code.OK)
        await self.arrived(request.topic, len(request.receipt_handles))
        return response

    async def _dead_letter(self, call: Call, request: pb.DeadLetterRequest) -> pb.DeadLetterResponse:
        self.calls.append(("DeadLetter", request))
        if request.is_retry and request.receipt_handle in self.acked:
            return pb.DeadLetterResponse()
        if self.open.pop(request.receipt_handle, None) is None:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, "no such handle")
        self.acked.append(request.receipt_handle)
        return pb.DeadLetterResponse()

    async def _pull(self, call: Call, request: pb.PullRequest) -> pb.PullResponse:
        self.calls.append(("Pull", request))
        log = self.topics.get(request.topic, [])[request.offset : request.offset + request.max_messages]
        messages = [stored.payload + wire_field(3, without_send_id(stored.system_properties)) for stored in log]
        return pb.PullResponse(messages=messages, next_offset=request.offset + len(messages))

    async def _pull_records(self, call: Call, request: pb.PullRequest) -> bytes:
        self.calls.append(("PullRecords", request))
        return RECORDS

    async def _get_offset(self, call: Call, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        return pb.GetOffsetResponse(offset=self.offsets.get((request.group, request.topic, request.queue_id), -1))

    async def _update_offset(self, call: Call, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
        self.offsets[request.group, request.topic, request.queue_id] = request.offset
        return pb.UpdateOffsetResponse()

    async def _query_offset(self, call: Call, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
        self.calls.append(("QueryOffset", request))
        return pb.QueryOffsetResponse(offset=len(self.topics.get(request.topic, [])))

    async def _notify(self, call: Call, stream: Stream[pb.NotifyInterest, pb.NotifyEvents]) -> None:
        watcher = Watcher(stream)
        self.watchers.append(watcher)
        try:
            while (interest := await stream.receive()) is not None:
                if interest.reads:
                    self.readers.append((interest.group, interest.topic))
                    continue
                if interest.cancel:
                    watcher.interests.pop(interest.id, None)
                    continue
                self.registrations.append(interest)
                event = pb.NotifyEvent(id=interest.id)
                key = (interest.group, interest.topic, interest.lite_client_id)
                if interest.lite_client_id and key not in self.lite_readers:
                    event.refused = event.unknown_client = True
                elif interest.id not in watcher.interests and len(self.interests) >= self.interests_max:
                    event.refused = True
                else:
                    watcher.interests[interest.id] = interest
                    is_lite = bool(interest.lite_client_id)
                    event.waiting = self._lite_waiting(*key) if is_lite else self.waiting(*key[:2])
                await self.notify_gate.wait()
                await stream.send((pb.NotifyEvents(events=[event]),))
        finally:
            self.watchers.remove(watcher)

    def _ready(self, group: str, topic: str) -> list[int]:
        return self.ready.setdefault((group, topic), list(range(len(self.topics.get(topic, [])))))


def decoded(stored: StoredMessage) -> Message:
    """A stored message as a consumer would read it."""
    return Message.FromString(stored.payload + wire_field(3, without_send_id(stored.system_properties)))
