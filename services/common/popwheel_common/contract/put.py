"""Content of a Put between proxy and broker: plain objects, which become protobuf only on a socket.

A lone send pays for each object that is made on its way; as protobuf messages these would cost it some 6 us.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from popwheel_common.contract import names
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb


class PutKind(IntEnum):
    """Kind of storage in the log."""

    NOW = 0
    """Into their queue at once."""
    AT_TIME = 1
    """Delayed messages: into their queue when their time comes."""
    HALF = 2
    """Half messages: into their queue when their transaction is committed."""


@dataclass(slots=True)
class MessageRun:
    """Messages for one queue, in their order, in columns of equal length.

    Args:
        topic: full name of the topic.
        queue_id: the queue.
        payloads: the clients' Messages without their system properties, byte for byte.
        system_properties: the insides of their system properties, byte for byte, and the id of each one's send behind
            it (`popwheel_common.contract.send_id`).
        tags: their tags, empty for none.
        kind: how all of them go into the log.
        times_ms: of delayed messages when each is to be delivered, wall clock. Of half messages after how many
            milliseconds its sender is first asked how its transaction ended, 0 for the broker's own time. No column at
            all for others.
        is_retry: whether an earlier try may have stored them: messages at the end of the queue with the ids of these
            sends are not stored once more, and the answer is their offsets.
        topic_id: id of the topic; 0 for any of that name.
        lite_topic: the lite topic of the topic that they are for; empty for none.
    """

    topic: str
    queue_id: int
    payloads: Sequence[bytes]
    system_properties: Sequence[bytes]
    tags: Sequence[str]
    kind: PutKind = PutKind.NOW
    times_ms: Sequence[int] = ()
    is_retry: bool = False
    topic_id: int = 0
    lite_topic: str = ""

    @property
    def stored_topic(self) -> str:
        """Name of the topic that records of them are in."""
        return names.lite_topic(self.topic, self.lite_topic) if self.lite_topic else self.topic

    @property
    def is_even(self) -> bool:
        """True if it has messages, and its columns are equally long."""
        count = len(self.payloads)
        times = count if self.kind else 0
        return 0 < count == len(self.system_properties) == len(self.tags) and len(self.times_ms) == times


@dataclass(slots=True)
class PutResult:
    """Result of one run: it is stored as a whole or not at all.

    Args:
        code: a number of apache.rocketmq.v2.Code.
        error: why not.
        queue_offset: of the first message; the others follow without a gap.
        store_time_ms: wall clock.
        references: one for each message that does not go into its queue now, in their order. Of a delayed message it is
            the recall handle, empty if it can't be recalled; of a half message the transaction id.
    """

    code: int
    error: str = ""
    queue_offset: int = 0
    store_time_ms: int = 0
    references: Sequence[str] = ()


def encode_runs(runs: Sequence[MessageRun]) -> bytes:
    """Return a popwheel.v1.PutRequest."""
    request = pb.PutRequest()
    for run in runs:
        request.runs.add(
            topic=run.topic,
            queue_id=run.queue_id,
            payloads=run.payloads,
            system_properties=run.system_properties,
            tags=run.tags,
            due_ms=run.times_ms if run.kind is PutKind.AT_TIME else (),
            is_retry=run.is_retry,
            topic_id=run.topic_id,
            first_check_ms=run.times_ms if run.kind is PutKind.HALF else (),
            lite_topic=run.lite_topic,
        )
    return request.SerializeToString()


def decode_runs(data: bytes) -> list[MessageRun]:
    """Read a popwheel.v1.PutRequest; raises `google.protobuf.message.DecodeError`."""
    request = pb.PutRequest.FromString(data)
    return [
        MessageRun(
            run.topic,
            run.queue_id,
            run.payloads[:],
            run.system_properties[:],
            run.tags[:],
            PutKind.HALF if run.first_check_ms else PutKind.AT_TIME if run.due_ms else PutKind.NOW,
            [*run.due_ms, *run.first_check_ms],  # a run that has both is uneven
            run.is_retry,
            run.topic_id,
            run.lite_topic,
        )
        for run in request.runs
    ]


def encode_results(results: Sequence[PutResult]) -> bytes:
    """Return a popwheel.v1.PutResponse."""
    response = pb.PutResponse()
    for result in results:
        response.results.add(
            code=result.code,
            error=result.error,
            queue_offset=result.queue_offset,
            store_time_ms=result.store_time_ms,
            references=result.references,
        )
    return response.SerializeToString()


def decode_results(data: bytes) -> list[PutResult]:
    """Read a popwheel.v1.PutResponse; raises `google.protobuf.message.DecodeError`."""
    return [
        PutResult(
            code=result.code,
            error=result.error,
            queue_offset=result.queue_offset,
            store_time_ms=result.store_time_ms,
            references=result.references[:],
        )
        for result in pb.PutResponse.FromString(data).results
    ]
