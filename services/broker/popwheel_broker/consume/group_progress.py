"""Progress of a group in the queues of a broker, some of them at a time."""

import re
from collections.abc import Iterable
from heapq import nsmallest
from typing import NamedTuple

from popwheel_broker.consume.in_flight import named_place
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_broker.log.message_store import MessageStore
from popwheel_common.contract import names, receipt

NO_OFFSET = -1
_PLACE = re.compile(r"([^/]{1,255})/([0-9]{1,5})")


class ProgressPlace(NamedTuple):
    """Place where a list of queues continues; they stand in the order of their topics and numbers.

    Args:
        topic: at this topic, or the first behind it.
        queue_id: of that very topic at this queue, or the first behind it.
    """

    topic: str = ""
    queue_id: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    @classmethod
    def of(cls, text: str) -> "ProgressPlace":
        """Return the place that a text names, as `str` has made it; the first of all for an empty one.

        Raises:
            StatusError: BAD_REQUEST, it names none.
        """
        if not text:
            return cls()
        match = named_place(_PLACE, text)
        return cls(match[1], int(match[2]))


class ProgressRow(NamedTuple):
    """A group in one queue.

    Args:
        queue: the queue; its topic may be a retry topic.
        next_offset: where the group reads on.
        committed_offset: as GetOffset says it; `NO_OFFSET` if there is none.
        in_flight: messages that the group was given and has not acknowledged.
    """

    queue: ConsumeQueue
    next_offset: int
    committed_offset: int
    in_flight: int


def rows(
    state: PopState, store: MessageStore, group: str, topics: Iterable[str], begin: ProgressPlace, rows_max: int
) -> tuple[list[ProgressRow], ProgressPlace | None]:
    """Return some queues in the order of their places, and where there are more; None if these are the last.

    Nothing is read: where retention has moved on since a queue was last read, the row shows the earlier state.

    Args:
        state: how far groups are.
        store: the queues.
        group: whose progress.
        topics: whose queues, retry topics among them; all that have or had messages, also those that the group has not
            read.
        begin: the first place to return.
        rows_max: limit of the rows.
    """
    found: list[ProgressRow] = []
    # Each has a queue at least, but for one that nothing was ever put into: there are few of those.
    for topic in nsmallest(rows_max + 1, (each for each in topics if each >= begin.topic)):
        for queue in sorted(store.queues.of_topic(topic), key=lambda each: each.queue_id):
            if topic == begin.topic and queue.queue_id < begin.queue_id:
                continue
            if len(found) == rows_max:
                return found, ProgressPlace(topic, queue.queue_id)
            found.append(_row(state, group, queue))
    return found, None


def _row(state: PopState, group: str, queue: ConsumeQueue) -> ProgressRow:
    progress = state.merge_buffer.of(group, queue)
    is_retry = names.kind_of(queue.topic) is names.Kind.RETRY
    return ProgressRow(
        queue,
        max(progress.popped, progress.committed, queue.known_min_offset),
        NO_OFFSET if progress.is_new else progress.committed,
        state.table.in_flight_of(
            group,
            names.topic_of_retry_topic(queue.topic) if is_retry else queue.topic,
            receipt.FROM_RETRY_TOPIC if is_retry else receipt.FROM_TOPIC,
            queue.queue_id,
        ),
    )
