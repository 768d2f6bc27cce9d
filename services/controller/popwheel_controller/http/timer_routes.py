"""Routes of the admin API about delayed messages: `/api/v1/timers/...`."""

from typing import Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.series import bounded
from popwheel_common.web.routes import Routes
from popwheel_controller.http.bodies import BEGINNING_BYTES_MAX, ShownBody, body_fields
from popwheel_controller.http.guard import SeesData, without_data
from popwheel_controller.http.inquiry import Answers, Silence
from popwheel_controller.http.refusal import refusal
from popwheel_controller.http.timers import TimerPage, Timers

_LIMIT_MAX = 1_000  # entries in a broker's answer
_TOPICS_MAX = 1_000
_WITHIN_MS_MAX = 366 * 24 * 3600 * 1000
_BOUNDS_MS = "60000,600000,3600000,21600000,86400000,604800000,1209600000,3456000000"  # a minute to 40 days
_BOUNDS_MAX = 100
_BOUND_MS_MAX = 2**53


class Horizon(BaseModel):
    """Number of messages due within a time from now."""

    within_ms: int = Field(description="Without what the horizons before it count; 0: all that is due later.")
    count: int = Field(description="Number of messages.")


class TopicCount(BaseModel):
    """Number of a topic's delayed messages."""

    topic: str = Field(description="Name of the topic.")
    count: int = Field(description="Number of messages.")


class BrokerTimers(BaseModel):
    """The timer of one broker."""

    broker: str = Field(description="Name of the broker group.")
    pending: int = Field(description="Messages that wait for their time.")
    recalled: int = Field(description="Recalled messages, as far as the broker remembers them.")
    read_time_ms: int = Field(description="Up to when its wheel was read, in milliseconds since 1970.")
    write_time_ms: int = Field(description="Up to when its wheel was written, in milliseconds since 1970.")
    behind_ms: int = Field(description="Delay of the oldest message that is due and not delivered.")


class TimerStats(BaseModel):
    """Delayed messages at a glance, of all brokers that answered."""

    pending: int = Field(description="Messages that wait for their time.")
    horizons: list[Horizon] = Field(description="Messages by the time until they are due.")
    topics: list[TopicCount] = Field(description="Those of which most are pending; all others as `(other)`.")
    brokers: list[BrokerTimers] = Field(description="The timer of each broker.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class Timer(ShownBody):
    """Delayed message."""

    due_ms: int = Field(description="When it is delivered, in milliseconds since 1970.")
    topic: str = Field(description="Name of the topic.")
    message_id: str = Field(description="Id of the message; retries keep it.")
    tag: str = Field(description="Tag of the message; empty if it has none.")
    keys: list[str] = Field(description="Keys of the message.")
    broker: str = Field(description="Name of the broker group.")
    recall_handle: str = Field(description="Handle that recalls the message.")
    hidden: bool = Field(default=False, description="The token may not see the body.")


class TimerList(BaseModel):
    """Page of delayed messages, the earliest first."""

    timers: list[Timer] = Field(description="The messages of this page.")
    more: bool = Field(description="There may be more.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class RecallOrder(BaseModel):
    """A delayed message to be recalled."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic: str = Field(description="The topic it was sent to.")
    recall_handle: str = Field(description="As the answer to its send, or the list of timers, has it.")


class Recalled(BaseModel):
    """A message that was recalled: it will not be delivered."""

    topic: str = Field(description="Name of the topic.")
    message_id: str = Field(description="Id of the message; retries keep it.")
    recalled: bool = Field(description="The message is recalled.")


class Bucket(BaseModel):
    """Messages that are due within a time from now."""

    from_ms: int = Field(description="Later than this from now; the first bucket has also what is overdue.")
    to_ms: int | None = Field(description="Not later than this; null: all that is due later.")
    count: int | None = Field(
        description="Null: a broker has too many delayed messages (more than 50,000) to look which are of the topic."
    )


class TimerHistogram(BaseModel):
    """Delayed messages by when they are due, of all brokers that answered."""

    pending: int = Field(description="Messages that wait for their time.")
    buckets: list[Bucket] = Field(description="Messages by the time until they are due.")
    behind_ms: int | None = Field(
        description="By how much the oldest message that is due is late, at the slowest broker; null: none answered."
    )
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


_RECALL_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("The handle was not issued for this topic."),
    404: refusal("The broker has no such message any more."),
    409: refusal("It is too late: the message has been or is being delivered."),
    500: refusal("Its broker is unavailable."),
    501: refusal("Recall is disabled."),
}


def timer_router(timers: Timers) -> Routes:
    """Return the routes of the admin API below `/timers`.

    Args:
        timers: asks the brokers.
    """
    router = Routes(prefix="/timers", tags=["timers"])

    @router.get("/stats")
    async def timer_stats() -> TimerStats:
        """Count delayed messages by the time until they are due, by topic and by broker."""
        return _stats(await timers.stats())

    @router.get("/histogram", responses={404: refusal("There is no topic of that name.")})
    async def timer_histogram(
        topic: str = Query(default="", description="Whose messages; of all topics if left out."),
        bounds_ms: str = Query(
            default=_BOUNDS_MS, max_length=2_000, description="Times from now with commas between them, at most 100."
        ),
    ) -> TimerHistogram:
        """Count the messages that are due within each of some times from now."""
        bounds = _bounds(bounds_ms)
        answers = await timers.histogram(topic, bounds)
        return _histogram(bounds, answers)

    @router.get("", responses={404: refusal("There is no topic of that name.")})
    async def list_timers(
        sees_data: SeesData,
        topic: str = Query(default="", description="Whose messages; of all topics if left out."),
        within_ms: int = Query(default=600_000, ge=1, le=_WITHIN_MS_MAX, description="Due within this time from now."),
        limit: int = Query(default=100, ge=1, le=_LIMIT_MAX, description="At most this many."),
        broker: str = Query(default="", description="Only of this broker."),
        after: str = Query(
            default="", description="`next` of the previous page. A page may be empty although more follow."
        ),
    ) -> TimerList:
        """List delayed messages that are due within a time from now, the earliest first."""
        return _list(await timers.page(topic, within_ms, limit, broker, after), sees_data=sees_data)

    @router.post("/recall", responses=_RECALL_REFUSED)
    async def recall_timer(order: RecallOrder) -> Recalled:
        """Recall a delayed message by its recall handle, so that it is never delivered."""
        message_id = await timers.recall(order.topic, order.recall_handle)
        return Recalled(topic=order.topic, message_id=message_id, recalled=True)

    return router


def _stats(answers: Answers[pb.TimerStatsResponse]) -> TimerStats:
    """The brokers' counts, and their sums."""
    horizons: dict[int, int] = {}
    topics: dict[tuple[str, ...], int] = {}
    for answer in answers.given.values():
        for horizon in answer.horizons:
            horizons[horizon.within_ms] = horizons.get(horizon.within_ms, 0) + horizon.count
        for one in answer.topics:
            topics[one.topic,] = topics.get((one.topic,), 0) + one.count
    return TimerStats(
        pending=sum(answer.pending for answer in answers.given.values()),
        horizons=[
            Horizon(within_ms=within_ms, count=count)
            for within_ms, count in sorted(horizons.items(), key=lambda item: item[0] or _WITHIN_MS_MAX)
        ],
        topics=[
            TopicCount(topic=topic, count=count) for (topic,), count in sorted(bounded(topics, _TOPICS_MAX).items())
        ],
        brokers=[
            BrokerTimers(
                broker=name,
                pending=answer.pending,
                recalled=answer.recalled,
                read_time_ms=answer.read_time_ms,
                write_time_ms=answer.write_time_ms,
                behind_ms=answer.behind_ms,
            )
            for name, answer in answers.given.items()
        ],
        unanswered=answers.unanswered,
    )


def _bounds(text: str) -> list[int]:
    parts = text.split(",")
    if len(parts) > _BOUNDS_MAX or not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in parts):
        raise StatusError(
            Code.BAD_REQUEST, f"bounds_ms: give at most {_BOUNDS_MAX} whole numbers with commas between them"
        )
    bounds = [int(part) for part in parts]
    if bounds[0] <= 0 or bounds[-1] > _BOUND_MS_MAX or sorted({*bounds}) != bounds:
        raise StatusError(Code.BAD_REQUEST, "bounds_ms: give times above 0, each greater than the one before")
    return bounds


def _histogram(bounds: list[int], answers: Answers[pb.TimerHistogramResponse]) -> TimerHistogram:
    given = answers.given.values()
    are_known = bool(given) and all(answer.counts for answer in given)
    return TimerHistogram(
        pending=sum(answer.pending for answer in given),
        buckets=[
            Bucket(
                from_ms=begin,
                to_ms=end,
                count=sum(answer.counts[number] for answer in given) if are_known else None,
            )
            for number, (begin, end) in enumerate(zip([0, *bounds], [*bounds, None], strict=True))
        ],
        behind_ms=max((answer.behind_ms for answer in given), default=None),
        unanswered=answers.unanswered,
    )


def _list(page: TimerPage, *, sees_data: bool) -> TimerList:
    return TimerList(
        timers=[
            Timer.model_validate(fields if sees_data else without_data(fields))
            for fields in (_timer(name, entry) for name, entry in page.timers)
        ],
        more=page.next is not None,
        next=page.next,
        unanswered=page.unanswered,
    )


def _timer(broker: str, entry: pb.TimerEntry) -> dict[str, Any]:
    return {
        "due_ms": entry.due_ms,
        "topic": entry.topic,
        "message_id": entry.message_id,
        "tag": entry.tag,
        "keys": list(entry.keys),
        "broker": broker,
        "recall_handle": entry.recall_handle,
        **body_fields(entry.body, BEGINNING_BYTES_MAX, entry.body_bytes),
    }
