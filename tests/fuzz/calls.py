"""Every call of the client protocol with every kind of garbage; each answer is a status with a name and a sentence."""

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2.grpc_messages import CODE_TRAILER
from popwheel_rpc.status import GrpcStatus
from tests.fuzz.accepted import Accepted
from tests.fuzz.filters import Filters
from tests.fuzz.garbage import BAD_TEXTS, Garbage, readable
from tests.fuzz.memory_socket import Answer, MemoryClient
from tests.fuzz.subject import FoundError, Subject
from tests.harness.client import (
    delayed_message,
    duration,
    half_message,
    lite_message,
    make_message,
    ordered_message,
    urgent_message,
)
from tests.harness.proxy_calls import CALLS, ProxyCall

TOPICS = ("fuzz-a", "fuzz-b")
OF_KINDS = {
    "fuzz-fifo": "FIFO",
    "fuzz-later": "DELAY",
    "fuzz-half": "TRANSACTION",
    "fuzz-mixed": "MIXED",
    "fuzz-lite": "LITE",
    "fuzz-levels": "PRIORITY",
}
"""Topics of the other types, by name."""
GROUPS = ("fuzz-g", "fuzz-h")
FILTERING = tuple(f"fuzz-filter-{number}" for number in range(4))
"""Groups that poll with filters only: what they take is nobody else's."""
_OF_GROUPS = ("%RETRY%fuzz-g+fuzz-a", "%RETRY%fuzz-h+%DLQ%fuzz-g", "%DLQ%fuzz-g")
_USERS = (*((),) * 20, ("reader",), ("fuzz", "wrong"), ("nobody",))
"""Who calls where calls are signed: mostly one who may do everything."""
_HANDLES_KEPT = 40
_CALLS_PER_CONNECTION = 200
_LIMIT_OF_TIME_S = 10.0
_AFTERMATH_S = 0.1
_DONE = {int(Code.OK), int(Code.MULTIPLE_RESULTS), int(Code.MESSAGE_NOT_FOUND)}
_GRPC_REFUSALS = {
    *(GrpcStatus.INVALID_ARGUMENT, GrpcStatus.UNIMPLEMENTED, GrpcStatus.RESOURCE_EXHAUSTED),
    *(GrpcStatus.DEADLINE_EXCEEDED, GrpcStatus.CANCELLED),
}


@dataclass(frozen=True)
class Target:
    """One call to send garbage to.

    Args:
        name: of the call.
        call: its path and messages.
        good: makes a request that is in order.
    """

    name: str
    call: ProxyCall
    good: Callable[[], Message]


class CallFuzzer:
    """Makes calls, one at a time or many at once, and looks at the answers.

    Args:
        subject: what is called.
        dice: decides.
    """

    def __init__(self, subject: Subject, dice: random.Random) -> None:
        self._subject = subject
        self._dice = dice
        self._handles: deque[str] = deque(maxlen=_HANDLES_KEPT)
        self._recalls: deque[str] = deque(maxlen=_HANDLES_KEPT)
        self._halves: deque[tuple[str, str]] = deque(maxlen=_HANDLES_KEPT)
        self.garbage = Garbage(dice, lambda: [*TOPICS, *GROUPS, *_OF_GROUPS, *self._handles])
        self._filters = Filters(dice)
        self._numbers = itertools.count()
        self._client: MemoryClient | None = None
        self._calls_left = 0
        self.calls = 0
        self.accepted = Accepted()
        """What was acknowledged."""
        self.last = "nothing yet"
        """The call that is being made, for the report of what was found."""
        self.targets = self._targets()

    # Good requests

    def _targets(self) -> list[Target]:
        dice = self._dice

        def topic() -> d.Resource:
            return d.Resource(name=dice.choice((*TOPICS, *TOPICS, *OF_KINDS)))

        def group() -> d.Resource:
            return d.Resource(name=dice.choice(GROUPS))

        def queue() -> d.MessageQueue:
            return d.MessageQueue(topic=topic(), id=dice.choice((-1, 0, 1)), broker=d.Broker(name="broker-0"))

        def handle() -> str:
            return dice.choice(self._handles) if self._handles else "none yet"

        def message() -> d.Message:
            match dice.randrange(8):
                case 0:
                    return ordered_message("fuzz-fifo", b"body", dice.choice("xyz"))
                case 1:
                    due_ms = int(time.time() * 1000) + dice.choice((-5_000, 3_600_000))
                    return delayed_message("fuzz-later", b"body", due_ms)
                case 2:
                    return half_message("fuzz-half", b"body")
                case 3:
                    return lite_message("fuzz-lite", b"body", dice.choice("xyz"))
                case 4:
                    return urgent_message("fuzz-levels", b"body", dice.randrange(12))
            made = make_message(dice.choice(TOPICS), b"body", tag="a")
            made.user_properties["a"] = self._filters.value()
            return made

        def send() -> Message:
            first = message()
            others = [message() for _ in range(dice.choice((0, 0, 2)))]
            return pb.SendMessageRequest(messages=[first, *(each for each in others if each.topic == first.topic)])

        def expression() -> d.FilterExpression:
            if dice.random() < 0.4:
                text = self._filters.sql()
                text = self.garbage.flawed(text) if dice.random() < 0.5 else text
                return d.FilterExpression(type=d.SQL, expression=text)
            return d.FilterExpression(type=d.TAG, expression=dice.choice(("*", "a", self._filters.tags())))

        def half() -> tuple[str, str]:
            return dice.choice(self._halves) if self._halves else ("m", "t")

        def end() -> Message:
            message_id, transaction_id = half()
            resolution = dice.choice((d.COMMIT, d.ROLLBACK, d.TRANSACTION_RESOLUTION_UNSPECIFIED))
            return pb.EndTransactionRequest(
                topic=d.Resource(name="fuzz-half"),
                message_id=message_id,
                transaction_id=transaction_id,
                resolution=resolution,
            )

        def recall() -> Message:
            reported = dice.choice(self._recalls) if self._recalls else "none yet"
            return pb.RecallMessageRequest(topic=d.Resource(name="fuzz-later"), recall_handle=reported)

        def sync() -> Message:
            return pb.SyncLiteSubscriptionRequest(
                action=dice.choice(d.LiteSubscriptionAction.values()),
                topic=topic() if dice.random() < 0.3 else d.Resource(name="fuzz-lite"),
                group=group(),
                lite_topic_set=dice.sample("uvxyz", dice.randrange(4)),
                offset_option=dice.choice((None, d.OffsetOption(tail_n=1))),
            )

        def receive() -> Message:
            return pb.ReceiveMessageRequest(
                group=group(),
                message_queue=queue(),
                filter_expression=expression(),
                batch_size=2,
                invisible_duration=duration(3600),
                long_polling_timeout=duration(dice.choice((0, 0.01))),
            )

        def pull() -> Message:
            return pb.PullMessageRequest(group=group(), message_queue=queue(), batch_size=2)

        def settings() -> Message:
            if dice.random() < 0.5:
                return pb.TelemetryCommand(settings=d.Settings(publishing=d.Publishing(topics=[topic()])))
            entry = d.SubscriptionEntry(topic=topic(), expression=expression())
            subscription = d.Subscription(group=group(), subscriptions=[entry])
            return pb.TelemetryCommand(settings=d.Settings(subscription=subscription))

        common: dict[str, Callable[[], Message]] = {
            "QueryRoute": lambda: pb.QueryRouteRequest(topic=topic()),
            "Heartbeat": lambda: pb.HeartbeatRequest(group=group(), client_type=d.PUSH_CONSUMER),
            "SendMessage": send,
            "QueryAssignment": lambda: pb.QueryAssignmentRequest(topic=topic(), group=group()),
            "ReceiveMessage": receive,
            "AckMessage": lambda: pb.AckMessageRequest(
                group=group(), topic=topic(), entries=[pb.AckMessageEntry(message_id="m", receipt_handle=handle())]
            ),
            "ForwardMessageToDeadLetterQueue": lambda: pb.ForwardMessageToDeadLetterQueueRequest(
                group=group(), topic=topic(), receipt_handle=handle(), message_id="m"
            ),
            "PullMessage": pull,
            "PullRecords": pull,
            "UpdateOffset": lambda: pb.UpdateOffsetRequest(group=group(), message_queue=queue(), offset=0),
            "GetOffset": lambda: pb.GetOffsetRequest(group=group(), message_queue=queue()),
            "QueryOffset": lambda: pb.QueryOffsetRequest(
                message_queue=queue(), query_offset_policy=d.QueryOffsetPolicy.BEGINNING
            ),
            "EndTransaction": end,
            "Telemetry": settings,
            "NotifyClientTermination": lambda: pb.NotifyClientTerminationRequest(group=group()),
            "ChangeInvisibleDuration": lambda: pb.ChangeInvisibleDurationRequest(
                group=group(),
                topic=topic(),
                receipt_handle=handle(),
                invisible_duration=dice.choice((duration(3600), None)),
            ),
            "RecallMessage": recall,
            "SyncLiteSubscription": sync,
        }
        assert set(common) == set(CALLS), "a call that nobody fuzzes"
        return [Target(name, call, common[name]) for name, call in CALLS.items()]

    def _metadata(self) -> dict[str, str]:
        dice = self._dice
        roll = dice.random()
        if roll < 0.9:
            headers = self._subject.headers(f"fuzz-{dice.randrange(20)}", *dice.choice(_USERS))
            if "authorization" in headers and dice.random() < 0.05:
                name = dice.choice(("authorization", "x-mq-date-time"))
                flawed = self.garbage.flawed(headers[name])
                headers[name] = flawed if flawed.isprintable() and flawed.strip() == flawed else ""
            return headers
        if roll < 0.93:
            return {}
        texts = [text for text in BAD_TEXTS if len(text) < 3_000 and text.isprintable() and text.strip() == text]
        return {"x-mq-client-id": dice.choice(texts), "x-mq-client-version": dice.choice(texts)}

    # One call at a time

    async def one(self) -> None:
        """Make one call and look at its answer, and at what has changed if it was refused.

        Raises:
            FoundError: something that must not be.
        """
        dice, subject = self._dice, self._subject
        target = dice.choice(self.targets)
        data = self.garbage.request(target.call.request, target.good)
        metadata = self._metadata()
        timeout = b"0n" if dice.random() < 0.03 else dice.choice((b"", b"5S", b"1S", b"99999999H"))
        self._report(target, data, metadata, timeout)
        client = await self._connected()
        before, revived = subject.snapshot(), subject.revived
        stream_id = await client.open(target.call.path, metadata, timeout)
        await client.send(stream_id, data)
        try:
            async with asyncio.timeout(_LIMIT_OF_TIME_S):
                answer = await client.answer(stream_id)
        except TimeoutError:
            raise FoundError(f"no answer within {_LIMIT_OF_TIME_S} s") from None
        refused = self._check(target, answer)
        if target.name == "SendMessage" and answer.messages:
            sent = pb.SendMessageResponse.FromString(answer.messages[0])
            self.accepted.record(data, sent)
            self._recalls.extend(each.recall_handle for each in sent.entries if each.recall_handle)
            self._halves.extend((each.message_id, each.transaction_id) for each in sent.entries if each.transaction_id)
        if answer.grpc_status == GrpcStatus.DEADLINE_EXCEEDED:
            await asyncio.sleep(_AFTERMATH_S)  # what was begun may still be done
        if refused:
            after = subject.snapshot()
            if after != before and subject.revived == revived:
                changed = {name: (value, after[name]) for name, value in before.items() if value != after[name]}
                raise FoundError(f"refused, and yet changed: {changed}; the answer: {answer}")
        subject.check_connection(client.connection)

    async def _connected(self) -> MemoryClient:
        if self._client is None or self._client.closed or not self._calls_left:
            if self._client is not None:
                self._client.close()
            self._client = MemoryClient(self._subject.server)
            await self._client.begin()
            self._calls_left = _CALLS_PER_CONNECTION
        self._calls_left -= 1
        return self._client

    def _report(self, target: Target, data: bytes, metadata: dict[str, str], timeout: bytes) -> None:
        self.calls += 1
        self.last = (
            f"{target.name}, grpc-timeout {timeout!r}, metadata {metadata}\n"
            f"request: {readable(target.call.request, data)}\nbytes: {data[:8_000].hex()}"
        )

    def _check(self, target: Target, answer: Answer) -> bool:
        """Whether a call was refused.

        Raises:
            FoundError: its answer has no name and no sentence, or says that something failed that must not fail.
        """
        status = answer.grpc_status
        if status is None:
            raise FoundError(f"an answer without a gRPC status: {answer}")
        if code := answer.trailers.get(CODE_TRAILER):
            self._check_status(target, d.Status(code=int(code), message=answer.grpc_message))  # type: ignore[arg-type]
            return True
        if status:
            self._count(target, GrpcStatus(status).name)
            if status not in _GRPC_REFUSALS or len(answer.grpc_message.split()) < 3:
                raise FoundError(f"refused with {GrpcStatus(status).name}: {answer.grpc_message!r}")
            return status not in (GrpcStatus.DEADLINE_EXCEEDED, GrpcStatus.CANCELLED)
        refused = not answer.messages
        for data in answer.messages:
            refused |= self._check_message(target, data)
        if not answer.messages and target.name != "Telemetry":
            raise FoundError("an answer without a message")
        return refused

    def _check_message(self, target: Target, data: bytes) -> bool:
        try:
            message: Any = target.call.answer.FromString(data)
        except DecodeError as error:
            raise FoundError(f"an answer that is no {target.call.answer.DESCRIPTOR.name}: {error}") from error
        if target.name == "ReceiveMessage" and message.WhichOneof("content") == "message":
            self._handles.append(message.message.system_properties.receipt_handle)
        if target.name == "ChangeInvisibleDuration" and message.receipt_handle:
            self._handles.append(message.receipt_handle)
        if not target.call.has_status:
            self._count(target, "OK")
            return False
        if message.DESCRIPTOR.fields_by_name["status"].containing_oneof is not None and not message.HasField("status"):
            return False
        if target.name == "Telemetry" and not message.HasField("status"):
            return False
        code = self._check_status(target, message.status)
        for entry in getattr(message, "entries", ()):
            self._check_status(target, entry.status)
        return code not in _DONE

    def _check_status(self, target: Target, status: d.Status) -> int:
        name = code_name(status.code)
        self._count(target, name)
        if status.code in (Code.CODE_UNSPECIFIED, Code.INTERNAL_SERVER_ERROR, Code.INTERNAL_ERROR) or name.isdigit():
            raise FoundError(f"answered with {name}: {status.message!r}")
        if status.code != Code.OK and len(status.message.split()) < 3:
            raise FoundError(f"{name} without a sentence: {status.message!r}")
        if not status.message.isprintable() or len(status.message) > 2_000:
            raise FoundError(f"{name} with a sentence that no log should bear: {status.message[:300]!r}")
        return int(status.code)

    def _count(self, target: Target, name: str) -> None:
        self._subject.statuses[f"{target.name} {name}"] += 1

    # Many at once

    async def storm(self, count: int) -> None:
        """Make many calls at once, cancel some at any moment, let some connections vanish; all must be tidy after.

        Raises:
            FoundError: something that must not be.
        """
        dice, subject = self._dice, self._subject
        clients = [MemoryClient(subject.server) for _ in range(4)]
        for client in clients:
            await client.begin()
        self.last = f"a storm of {count} calls"
        for _ in range(count):
            client = dice.choice(clients)
            if client.closed:
                continue
            target = dice.choice(self.targets)
            data = self.garbage.request(target.call.request, target.good)
            stream_id = await client.open(target.call.path, self._metadata(), dice.choice((b"", b"1m", b"20m", b"1S")))
            self.calls += 1
            if dice.random() < 0.8:
                await client.send(stream_id, data, end=dice.random() < 0.9)
            if dice.random() < 0.5:
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                await client.cancel(stream_id)
            if dice.random() < 0.02:
                client.close()
            subject.check_connection(client.connection)
        await asyncio.sleep(0.03)
        for client in clients:
            await client.gone()

    async def close(self) -> None:
        """Let the connection go."""
        if self._client is not None:
            await self._client.gone()
            self._client = None
