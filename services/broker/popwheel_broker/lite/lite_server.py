"""popwheel.v1.Broker/SyncLite and LiteTopicList, answered by the lite topics of a core."""

from collections.abc import Callable, Iterable
from functools import partial

from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.lite.lite_offsets import LiteOffsets
from popwheel_broker.lite.lite_topics import LiteTopics
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.log.consume_queue import ConsumeQueue, LiteQueue
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pace import STEP_S, Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

_LIST_MAX = 1000
_CLIENT_ID_MAX = 1024
_OFFSETS_AT_ONCE = 64
"""The number of lite topics whose offsets are looked up at once.

It takes some milliseconds, if they are looked up by time.
"""


class LiteServer:
    """Serves requests about lite topics.

    Args:
        lite: the lite topics.
        offsets: sets groups back or forward.
        store: the messages.
        buffer: progress of groups.
        flusher: makes durable.
        apply_changes: applies the controller's changes of topics and groups.
        clock: the time.
    """

    def __init__(
        self,
        lite: LiteTopics,
        offsets: LiteOffsets,
        store: MessageStore,
        buffer: MergeBuffer,
        flusher: Flusher,
        apply_changes: Callable[[Iterable[str], Iterable[str]], None],
        clock: Clock,
    ) -> None:
        self._lite = lite
        self._offsets = offsets
        self._store = store
        self._buffer = buffer
        self._flusher = flusher
        self._apply_changes = apply_changes
        self._clock = clock
        self._pace = Pace(clock)

    async def sync(self, call: Call, request: pb.SyncLiteRequest) -> pb.SyncLiteResponse:
        """Set the lite topics that a client reads."""
        names.group(request.group)
        names.topic(request.topic, Use.RECEIVE)
        if not request.client_id or len(request.client_id) > _CLIENT_ID_MAX:
            raise StatusError(Code.BAD_REQUEST, f"a client id has 1 to {_CLIENT_ID_MAX} characters")
        for each in request.lite_topics:
            names.checked_lite_topic(each)
        self._apply_changes((request.topic,), (request.group,))
        key = ClientKey(request.group, request.topic, request.client_id)
        subscriptions, now_ms = self._lite.subscriptions, self._clock.steady_ms()
        if request.action == pb.LITE_END:
            subscriptions.end(key)
            return pb.SyncLiteResponse()
        known = subscriptions.seen(key, now_ms)
        if request.action == pb.LITE_SET:
            if known is not None and request.is_repeat and request.said_ms < known.said_ms:
                return pb.SyncLiteResponse()  # from a proxy that the client has left
            client, new = subscriptions.begin(key, request.lite_topics, now_ms)
            client.said_ms = request.said_ms
            self._lite.record_waiting(client, new)
            return pb.SyncLiteResponse()
        if known is None:
            return pb.SyncLiteResponse(unknown_client=True)
        if request.said_ms:  # else the proxy repeats it, and not the client
            known.said_ms = request.said_ms
        if request.action == pb.LITE_REMOVE:
            subscriptions.remove(known, request.lite_topics)
            return pb.SyncLiteResponse()
        new = subscriptions.add(known, request.lite_topics)
        if request.HasField("offset"):
            await self._set_offsets(request)
            new = list(request.lite_topics)
            await self._flusher.durable()
        self._lite.record_waiting(known, [each for each in new if each in known.lite_topics])
        return pb.SyncLiteResponse()

    async def _set_offsets(self, request: pb.SyncLiteRequest) -> None:
        """Set a group's offsets in lite topics. They are looked up for some lite topics at a time."""
        wanted: dict[ConsumeQueue, int] = {}
        lite_topics = request.lite_topics
        for first in range(0, len(lite_topics), _OFFSETS_AT_ONCE):
            began_s = self._clock.monotonic()
            some = lite_topics[first : first + _OFFSETS_AT_ONCE]
            look = partial(self._offsets.wanted, request.group, request.topic, some, request.offset)
            wanted.update(await self._store.reads.run(look))
            if first + _OFFSETS_AT_ONCE < len(lite_topics):
                await self._pace.let_others(self._clock.monotonic() - began_s)
        self._offsets.set(
            request.group, {queue: each for queue, each in wanted.items() if self._store.queue(queue.topic, 0) is queue}
        )

    async def list(self, call: Call, request: pb.LiteTopicListRequest) -> pb.LiteTopicListResponse:
        """Return some lite topics of a topic."""
        names.topic(request.topic, Use.QUERY)
        if request.group:
            names.group(request.group)
        self._apply_changes((request.topic,), (request.group,) if request.group else ())
        queues = self._store.queues
        limit = min(max(1, request.limit), _LIST_MAX)
        found = queues.lite_names(request.topic, names.lite_topic(request.topic, request.begin), limit + 1)
        answer = pb.LiteTopicListResponse(total=queues.lite_count(request.topic), epoch=self._store.epoch)
        if len(found) > limit:
            answer.next = names.lite_of(found[limit - 1])
        began_s = self._clock.monotonic()
        for stored in found[:limit]:
            queue = queues.get(stored, 0)
            if isinstance(queue, LiteQueue):
                last_ms = await self._store.reads.run(partial(self._last_ms, queue))
                answer.lite_topics.append(self._entry(request, queue, last_ms))
            if self._clock.monotonic() - began_s > STEP_S:
                await self._pace.let_others(self._clock.monotonic() - began_s)
                began_s = self._clock.monotonic()
        return answer

    def _last_ms(self, queue: LiteQueue) -> int:
        try:
            return self._lite.last_ms(queue)
        except CorruptDataError:
            return 0

    def _entry(self, request: pb.LiteTopicListRequest, queue: LiteQueue, last_ms: int) -> pb.LiteTopicEntry:
        lite_topic, subscriptions = names.lite_of(queue.topic), self._lite.subscriptions
        groups = subscriptions.groups_of(request.topic).values()
        return pb.LiteTopicEntry(
            lite_topic=lite_topic,
            min_offset=queue.known_min_offset,
            max_offset=queue.max_offset,
            last_ms=last_ms,
            waiting=self._buffer.of(request.group, queue).available_at_most if request.group else 0,
            readers=sum(group.count(lite_topic) for group in groups),
        )
