"""Routes of the admin API about the throughput of the cluster: `/api/v1/activity/...` (docs/operate/monitor.md)."""

from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_common.web.routes import Routes
from popwheel_common.web.shared_work import SharedWork
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.history import INTERVAL_MS
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.pages import After, Prefix, page_of
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import DESCRIBE_GROUPS, DESCRIBE_TOPICS, SAMPLE_ACTIVITY

_LISTED_MAX = 100  # entries that a broker describes in one answer
_WORST = 10

Limit = Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")]
Number = TypeVar("Number", int, float)

_RATE = "Messages per second, within the last ten seconds; null if that is not known."


class GroupActivity(BaseModel):
    """State of a consumer group at all brokers that answered."""

    name: str = Field(description="Name of the consumer group.")
    fifo: bool = Field(description="The group consumes in order.")
    lag: int | None = Field(
        description="Messages that it has not acknowledged: `waiting`, `retrying` and `held` together. Null: a broker "
        "has not counted them, as it reads too many queues."
    )
    lag_ms: int | None = Field(
        description="Age of the oldest of these: lag in time, some seconds old. 0 if there is none; null if that is "
        "not known yet, or others are older."
    )
    waiting: int | None = Field(description="Messages that it has not received yet, without retries.")
    held: int = Field(
        description="Messages in flight: delivered and not acknowledged, also those that a back-off hides."
    )
    retrying: int | None = Field(description="Messages that wait for a retry.")
    dead_letters: int = Field(description="Its dead letters.")
    poisoned: int = Field(description="Its poison messages in the quarantine.")
    in_rate: float | None = Field(description=f"Into the topics that it reads. {_RATE}")
    out_rate: float | None = Field(description=f"Messages delivered to it. {_RATE}")
    topics: int = Field(description="Topics that it reads, at the broker that knows most.")


class Overview(BaseModel):
    """The cluster at a glance, summed up over the brokers that answered."""

    time_ms: int = Field(description="Of all but the rates, in milliseconds since 1970.")
    in_rate: float | None = Field(description=f"Stored. {_RATE}")
    out_rate: float | None = Field(description=f"Messages delivered. {_RATE}")
    stored: int | None = Field(
        description="Messages of topics that retention has left. Counted little by little: null until that was done "
        "once; with more than 20,000 queues it is some minutes old."
    )
    lag: int | None = Field(description="Messages that groups have not acknowledged; null if it is not known yet.")
    lag_ms: int | None = Field(description="Age of the oldest of these.")
    held: int = Field(description="Messages in flight: delivered and not acknowledged.")
    delayed: int = Field(description="Messages that are not due yet.")
    dead_letters: int | None = Field(description="Dead letters of all groups; as old as `stored`.")
    poisoned: int = Field(description="Poison messages in the quarantine.")
    topics: int = Field(description="Number of topics.")
    groups: int = Field(description="Number of consumer groups.")
    worst_groups: list[GroupActivity] = Field(description="At most 10, those with the greatest lag in time first.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class ActiveGroups(BaseModel):
    """Page of consumer groups, by name."""

    groups: list[GroupActivity] = Field(description="The consumer groups of this page.")
    total: int = Field(description="Number of names with the prefix.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class TopicActivity(BaseModel):
    """Number of messages of a topic at all brokers that answered."""

    name: str = Field(description="Name of the topic.")
    type: str = Field(description="NORMAL, FIFO, DELAY, TRANSACTION, MIXED, LITE or PRIORITY.")
    queues: int = Field(description="Number of queues at each broker group.")
    stored: int | None = Field(
        description="Messages that retention has left. Null if a broker has not counted them: too many lite topics."
    )
    in_rate: float | None = Field(description=f"Stored. {_RATE}")
    out_rate: float | None = Field(description=f"Messages delivered, to all groups. {_RATE}")
    groups: int | None = Field(description="Groups that read it, at the broker that knows most; null if none answered.")
    delayed: int | None = Field(description="Messages that are not due yet; null if no broker answered.")


class ActiveTopics(BaseModel):
    """Page of topics, by name."""

    topics: list[TopicActivity] = Field(description="The topics of this page.")
    total: int = Field(description="Number of names with the prefix.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class ActivityHistory(BaseModel):
    """Numbers of the last hour, one for each interval; null where nothing is known."""

    kind: str = Field(description="`cluster`, `topic` or `group`.")
    name: str = Field(description="Name of the topic or group; empty for the cluster.")
    since_ms: int | None = Field(
        description="Time of the first number, in milliseconds since 1970; null: none is there."
    )
    interval_ms: int = Field(description="Time from one number to the next.")
    in_rate: list[float | None] = Field(description="Messages stored per second.")
    out_rate: list[float | None] = Field(description="Messages delivered per second.")
    lag: list[int | None] = Field(description="Messages not acknowledged.")
    lag_ms: list[int | None] = Field(description="Age of the oldest message not acknowledged.")
    held: list[int | None] = Field(description="Messages in flight.")
    delayed: list[int | None] = Field(description="Messages that wait for their delivery time.")


_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("It does not exist.")}


def activity_router(inquiry: Inquiry, book: ActivityBook, clock: Clock) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
        book: the samples.
        clock: the time.
    """
    router = Routes(prefix="/activity", tags=["activity"])

    async def described(groups: list[str]) -> tuple[list[GroupActivity], list[Silence]]:
        if not groups:
            return [], []
        answers = await inquiry.of_all(DESCRIBE_GROUPS, pb.DescribeGroupsRequest(groups=groups))
        rows = zip(*(answer.groups for answer in answers.given.values()), strict=True)
        found = dict(zip(groups, rows, strict=False))
        return [_group(book, inquiry, name, found.get(name, ())) for name in groups], answers.unanswered

    async def read() -> Overview:
        request = pb.SampleActivityRequest(peek=True, groups_max=_WORST)
        answers = await inquiry.of_all(SAMPLE_ACTIVITY, request)
        ages: dict[str, int] = {}
        for answer in answers.given.values():
            for each in answer.groups:
                ages[each.name] = max(each.lag_ms, ages.get(each.name, 0))
        known = [name for name in sorted(ages, key=lambda name: -ages[name]) if name in inquiry.state.groups]
        worst, silent = await described(known[:_WORST])
        totals = [answer.totals for answer in answers.given.values()]
        in_rate, out_rate = book.rates()
        lags = [each.lag_ms if each.HasField("lag_ms") else None for each in totals]
        return Overview(
            time_ms=clock.wall_ms(),
            in_rate=_rounded(in_rate),
            out_rate=_rounded(out_rate),
            stored=_sum([each.stored if each.HasField("stored") else None for each in totals]),
            lag=_sum([each.lag if each.HasField("lag") else None for each in totals]),
            lag_ms=_max(lags),
            held=sum(each.in_flight for each in totals),
            delayed=sum(each.delayed for each in totals),
            dead_letters=_sum([each.dead_letters if each.HasField("dead_letters") else None for each in totals]),
            poisoned=sum(each.poisoned for each in totals),
            topics=len(inquiry.state.topics),
            groups=len(inquiry.state.groups),
            worst_groups=worst,
            unanswered=answers.unanswered or silent,
        )

    overview = SharedWork(read)

    @router.get("/overview")
    async def activity_overview() -> Overview:
        """Return the cluster's throughput, and the groups with the largest lag; concurrent requests share a sample."""
        return await overview.result()

    @router.get("/groups")
    async def active_groups(prefix: Prefix = "", after: After = "", limit: Limit = _LISTED_MAX) -> ActiveGroups:
        """List consumer groups with lag, lag in time, rates and messages in flight: one call to each broker."""
        page, total, more = page_of(inquiry.state.groups, prefix, after, limit)
        found, unanswered = await described([each.name for each in page])
        return ActiveGroups(groups=found, total=total, next=page[-1].name if more else None, unanswered=unanswered)

    @router.get("/topics")
    async def active_topics(prefix: Prefix = "", after: After = "", limit: Limit = _LISTED_MAX) -> ActiveTopics:
        """List topics with their number of messages and their rates: one call to each broker."""
        page, total, more = page_of(inquiry.state.topics, prefix, after, limit)
        request = pb.DescribeTopicsRequest(topics=[each.name for each in page])
        answers = await inquiry.of_all(DESCRIBE_TOPICS, request)
        found: list[TopicActivity] = []
        for number, topic in enumerate(page):
            rows = [answer.topics[number] for answer in answers.given.values()]
            values = book.topic(topic.name)
            found.append(
                TopicActivity(
                    name=topic.name,
                    type=TopicType.Name(topic.type),
                    queues=topic.queues,
                    stored=_sum([each.stored if each.HasField("stored") else None for each in rows]),
                    in_rate=_rounded(values.in_rate),
                    out_rate=_rounded(values.out_rate),
                    groups=max((each.groups for each in rows), default=None),
                    delayed=_sum([each.delayed for each in rows]),
                )
            )
        return ActiveTopics(
            topics=found, total=total, next=page[-1].name if more else None, unanswered=answers.unanswered
        )

    @router.get("/history", responses=_NOT_FOUND)
    async def activity_history(
        kind: Literal["cluster", "topic", "group"] = Query(default="cluster", description="Of the cluster, or of one."),
        name: str = Query(default="", max_length=255, description="Of the topic or group."),
    ) -> ActivityHistory:
        """Return throughput, lag and messages in flight of the last hour, of the cluster, a topic or a group."""
        if kind == "cluster":
            past = book.history.of_cluster()
        elif kind == "topic":
            past = book.history.of(kind, inquiry.state.topic(names.topic(name, Use.QUERY)).name)
        else:
            past = book.history.of(kind, inquiry.state.group(names.group(name)).name)
        columns = list(zip(*past.values, strict=True)) or [()] * 6
        in_rate, out_rate, lag, lag_ms, in_flight, delayed = ([*column] for column in columns)
        return ActivityHistory(
            kind=kind,
            name=name if kind != "cluster" else "",
            since_ms=past.since_ms if past.values else None,
            interval_ms=INTERVAL_MS,
            in_rate=in_rate,
            out_rate=out_rate,
            lag=lag,
            lag_ms=lag_ms,
            held=in_flight,
            delayed=delayed,
        )

    return router


def _group(book: ActivityBook, inquiry: Inquiry, name: str, rows: tuple[pb.GroupStanding, ...]) -> GroupActivity:
    """Return a group's activity as all brokers report it."""
    values, known = book.group(name), inquiry.state.groups.get(name)
    waiting = _sum([each.waiting if each.HasField("waiting") else None for each in rows])
    retrying = _sum([each.retrying if each.HasField("retrying") else None for each in rows])
    in_flight = sum(each.in_flight for each in rows)
    return GroupActivity(
        name=name,
        fifo=known is not None and known.fifo,
        lag=None if waiting is None or retrying is None else waiting + retrying + in_flight,
        lag_ms=_max([each.lag_ms if each.HasField("lag_ms") else None for each in rows]),
        waiting=waiting,
        held=in_flight,
        retrying=retrying,
        dead_letters=sum(each.dead_letters for each in rows),
        poisoned=sum(each.poisoned for each in rows),
        in_rate=_rounded(values.in_rate),
        out_rate=_rounded(values.out_rate),
        topics=max((each.topics for each in rows), default=0),
    )


def _sum(values: list[int | None]) -> int | None:
    """Return the sum; None if a value is unknown or there is none."""
    known = [each for each in values if each is not None]
    return sum(known) if known and len(known) == len(values) else None


def _max(values: list[int | None]) -> int | None:
    """Return the maximum; None if a value is unknown or there is none."""
    known = [each for each in values if each is not None]
    return max(known) if known and len(known) == len(values) else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)
