"""Counts what a deletion of a topic or a group removes, and who uses it, for the operator who deletes it."""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.core.notification import Interest
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Kind, Use
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

_STEP = 1_000
"""Queues, groups and topics that are counted in one turn of the loop, which takes a few milliseconds."""
_OTHERS_MAX = 20
"""Limit of names of groups or topics in an answer; the others are counted."""

_Unread = tuple[str, str, int, bool]
"""A group, a topic that it reads, as clients name it, the number of messages it has yet to receive of one queue, and
whether that is one of retries; or a mere step."""


class UseServer:
    """Serves the use of topics and groups, of popwheel.v1.Broker. It changes nothing.

    Args:
        core: the broker's state.
        clock: how long a step takes.
    """

    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._pace = Pace(clock)

    async def describe(self, call: Call, request: pb.DescribeUseRequest) -> pb.DescribeUseResponse:
        """Count what depends on a topic or a group.

        Raises:
            StatusError: BAD_REQUEST, both are named; or the name is none.
        """
        if request.topic and request.group:
            raise StatusError(Code.BAD_REQUEST, "DescribeUse takes a topic or a group, and not both")
        if request.topic:
            return await self._of_topic(request.topic)
        if request.group:
            return await self._of_group(request.group)
        return pb.DescribeUseResponse(queues_room=self._core.store.queues.room)

    async def _of_topic(self, topic: str) -> pb.DescribeUseResponse:
        names.topic(topic, Use.RECEIVE)
        core = self._core
        answer = pb.DescribeUseResponse(
            delayed=core.timer.state.pending.of_topic(topic),
            half_messages=core.transactions.table.shares.share(topic),
            polling_proxies=_proxies(core.interests.of_topic(topic)),
        )
        groups: dict[str, None] = {}
        async for part in self._parts(self._unread(core.group_queues.groups)):
            for group, of_topic, unread, _ in part:
                if of_topic == topic:
                    if group not in groups:
                        groups[group] = None
                        answer.in_flight += core.state.table.in_flight.get((group, topic), 0)
                    answer.unread += unread
        _name(answer, groups)
        return answer

    async def _of_group(self, group: str) -> pb.DescribeUseResponse:
        names.group(group)
        core = self._core
        dead = core.store.queue(names.dead_letter_topic(group), 0)
        answer = pb.DescribeUseResponse(
            dead_letters=0 if dead is None else dead.max_offset - dead.known_min_offset,
            polling_proxies=_proxies(core.interests.of_groups((group,))),
        )
        topics: dict[str, None] = {}
        async for part in self._parts(self._unread([group])):
            for _, topic, unread, is_retry in part:
                if topic:
                    if topic not in topics:
                        topics[topic] = None
                        answer.in_flight += core.state.table.in_flight.get((group, topic), 0)
                    answer.unread += unread
                    answer.retries += unread * is_retry
        _name(answer, topics)
        return answer

    def _unread(self, groups: Iterable[str]) -> Iterator[_Unread]:
        """Yield all that groups read, also where they have read nothing yet, or there is nothing."""
        buffer, group_queues = self._core.state.merge_buffer, self._core.group_queues
        for group in groups:
            yield group, "", 0, False
            for topic in group_queues.topics_of(group):
                yield group, topic, 0, False
            for queue in group_queues.queues_of(group):
                if queue is None:
                    yield group, "", 0, False
                    continue
                topic = queue.topic
                is_retry = names.kind_of(topic) is Kind.RETRY
                named = names.topic_of_retry_topic(topic) if is_retry else names.client_topic(topic)
                yield group, named, buffer.of(group, queue).available_at_most, is_retry

    async def _parts(self, found: Iterator[_Unread]) -> AsyncIterator[list[_Unread]]:
        """Yield all of it in parts; other work runs after each."""
        while True:
            began_s = self._clock.monotonic()
            part = list(islice(found, _STEP))
            if not part:
                return
            yield part
            await self._pace.let_others(self._clock.monotonic() - began_s)


def _proxies(interests: Iterable[Interest]) -> int:
    return len({id(interest.subscriber) for interest in interests})


def _name(answer: pb.DescribeUseResponse, others: Collection[str]) -> None:
    answer.others.extend(nsmallest(_OTHERS_MAX, others))
    answer.others_total = len(others)
