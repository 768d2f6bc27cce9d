"""popwheel.v1.Broker/SyncLite and LiteTopicList, answered by the lite topics of a core."""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import nsmallest

from services.broker.lite.lite_offsets import LiteOffsets
from services.broker.lite.lite_topics import LiteTopics
from services.broker.lite.subscriptions import ClientKey
from services.broker.progress.merge_buffer import MergeBuffer
from services.broker.store.consume_queue import LiteQueue
from services.broker.store.flusher import Flusher
from services.broker.store.message_store import MessageStore
from services.common.clock import Clock
from services.common.contract import names
from services.common.contract.names import Use
from services.common.errors import CorruptDataError, StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.rpc.service import Call

_LIST_MAX = 1000
_CLIENT_ID_MAX = 1024


class LiteServer:
    """Answers what is asked about lite topics.

    Args:
        lite: the lite topics.
        offsets: sets groups back or forward.
        store: the messages.
        buffer: how far groups are.
        flusher: makes durable.
        settle: takes in what the controllers changed of topics and groups.
        clock: the time.
    """

    def __init__(
        self,
        lite: LiteTopics,
        offsets: LiteOffsets,
        store: MessageStore,
        buffer: MergeBuffer,
        flusher: Flusher,
        settle: Callable[[Iterable[str], Iterable[str]], None],
        clock: Clock,
    ) -> None:
        self._lite = lite
        self._offsets = offsets
        self._store = store
        self._buffer = buffer
        self._flusher = flusher
        self._settle = settle
        self._clock = clock

    async def sync(self, call: Call, request: pb.SyncLiteRequest) -> pb.SyncLiteResponse:
        """Which lite topics a client reads."""
        names.group(request.group)
        names.topic(request.topic, Use.RECEIVE)
        if not request.client_id or len(request.client_id) > _CLIENT_ID_MAX:
            raise StatusError(Code.BAD_REQUEST, f"a client's id has between 1 and {_CLIENT_ID_MAX} characters")
        for each in request.lite_topics:
            names.checked_lite_topic(each)
        self._settle((request.topic,), (request.group,))
        key = ClientKey(request.group, request.topic, request.client_id)
        subscriptions, now_ms = self._lite.subscriptions, self._clock.steady_ms()
        if request.action == pb.LITE_END:
            subscriptions.end(key)
            return pb.SyncLiteResponse()
        if request.action == pb.LITE_SET:
            client, new = subscriptions.begin(key, request.lite_topics, now_ms)
            self._lite.look_at(client, new)
            return pb.SyncLiteResponse()
        known = subscriptions.seen(key, now_ms)
        if known is None:
            return pb.SyncLiteResponse(unknown_client=True)
        if request.action == pb.LITE_REMOVE:
            subscriptions.remove(known, request.lite_topics)
            return pb.SyncLiteResponse()
        new = subscriptions.add(known, request.lite_topics)
        if request.HasField("offset"):
            await self._store.reads.run(partial(self._set_offsets, request))
            new = list(request.lite_topics)
            await self._flusher.durable(self._store.log.end_position)
        self._lite.look_at(known, [each for each in new if each in known.lite_topics])
        return pb.SyncLiteResponse()

    def _set_offsets(self, request: pb.SyncLiteRequest) -> None:
        wanted = self._offsets.wanted(request.group, request.topic, request.lite_topics, request.offset)
        self._offsets.set(request.group, wanted)

    async def list(self, call: Call, request: pb.LiteTopicListRequest) -> pb.LiteTopicListResponse:
        """Some lite topics of a topic."""
        names.topic(request.topic, Use.QUERY)
        if request.group:
            names.group(request.group)
        self._settle((request.topic,), (request.group,) if request.group else ())
        queues = self._store.queues
        after = names.lite_topic(request.topic, request.begin)
        limit = min(max(1, request.limit), _LIST_MAX)
        behind = (each for each in queues.lite_names(request.topic) if each > after)
        found = nsmallest(limit + 1, behind)
        answer = pb.LiteTopicListResponse(total=queues.lite_count(request.topic), epoch=self._store.epoch)
        if len(found) > limit:
            answer.next = names.lite_of(found[limit - 1])
        for stored in found[:limit]:
            queue = queues.get(stored, 0)
            if isinstance(queue, LiteQueue):
                last_ms = await self._store.reads.run(partial(self._last_ms, queue))
                answer.lite_topics.append(self._entry(request, queue, last_ms))
        return answer

    def _last_ms(self, queue: LiteQueue) -> int:
        try:
            return self._lite.last_ms(queue)
        except CorruptDataError:
            return 0

    def _entry(self, request: pb.LiteTopicListRequest, queue: LiteQueue, last_ms: int) -> pb.LiteTopicEntry:
        lite_topic, subscriptions = names.lite_of(queue.topic), self._lite.subscriptions
        groups = list(subscriptions.groups_of(request.topic))
        return pb.LiteTopicEntry(
            lite_topic=lite_topic,
            min_offset=queue.known_min_offset,
            max_offset=queue.max_offset,
            last_ms=last_ms,
            waiting=self._buffer.of(request.group, queue).available_at_most if request.group else 0,
            readers=sum(len(subscriptions.readers(group, request.topic, lite_topic)) for group in groups),
        )
