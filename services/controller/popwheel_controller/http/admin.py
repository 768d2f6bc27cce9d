"""Admin API of topics, groups and brokers, `/api/v1/...`, for `popwheel admin` and the console.

Errors are encoded as `{"code": "TOPIC_NOT_FOUND", "message": "..."}` (`popwheel_common.http` makes them).
"""

from collections.abc import Callable
from typing import Any

from fastapi import Depends, status
from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.clock import Clock
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_common.pb.popwheel.v1.broker_pb2 import DescribeUseRequest, DescribeUseResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.cluster_state import ClusterState, topic_type
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http.guard import DryRun, Guard, RecordedChange
from popwheel_controller.http.inquiry import Answers, Inquiry, Silence
from popwheel_controller.http.pages import LISTED, After, Limit, Prefix, page_of
from popwheel_controller.http.path_parts import GroupName, TopicName
from popwheel_controller.http.refusal import refusal
from popwheel_controller.http.setting_fields import (
    shown_settings,
    wanted_settings,
    with_shown_settings,
    with_wanted_settings,
)
from popwheel_controller.options import BACKOFF_MS_MAX, MULTIPLIER_MAX, ControllerOptions
from popwheel_rpc.methods import DESCRIBE_USE

_USED_WITH_MAX = 20


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


@with_wanted_settings
class NewTopic(_Body):
    """Request to create a topic."""

    name: str = Field(description="Letters, digits, %, _ or -.")
    type: str = Field(default="NORMAL", description="NORMAL, FIFO, DELAY, TRANSACTION, MIXED, LITE or PRIORITY.")
    queues: int | None = Field(
        default=None, description="From 1 to 1024; if left out, the controller's default, or 10 levels."
    )


@with_shown_settings
class Topic(BaseModel):
    """A topic."""

    name: str = Field(description="Name of the topic.")
    type: str = Field(description="NORMAL, FIFO, DELAY, TRANSACTION, MIXED, LITE or PRIORITY.")
    queues: int = Field(description="Number of queues at each broker group.")
    id: int = Field(description="Id, different from that of an earlier topic of the same name.")
    paused_since_ms: int | None = Field(
        default=None, description="Start of its pause, in milliseconds since 1970; null if not paused."
    )


class Topics(BaseModel):
    """Page of topics, sorted by name."""

    topics: list[Topic] = Field(description="The topics of this page.")
    total: int = Field(description="Number of names with the prefix.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


class ExponentialBackoff(_Body):
    """Exponential back-off."""

    initial_ms: int = Field(ge=1, le=BACKOFF_MS_MAX, description="After the 1st failed attempt.")
    max_ms: int = Field(ge=1, le=BACKOFF_MS_MAX, description="The longest wait.")
    multiplier: float = Field(ge=1, le=MULTIPLIER_MAX, description="How many times as long each further one is.")


class NewGroup(_Body):
    """Request to create a consumer group."""

    name: str = Field(description="Letters, digits, %, _ or -.")
    max_attempts: int | None = Field(
        default=None, description="Deliveries before a message goes to the dead letter queue; default if left out."
    )
    fifo: bool = Field(default=False, description="Whether it consumes in order.")
    backoff_ms: list[int] | None = Field(
        default=None, description="Waits after the 1st, 2nd ... failed attempt; default if left out."
    )
    exponential_backoff: ExponentialBackoff | None = Field(
        default=None, description="Growing waits, instead of `backoff_ms`."
    )


class Group(BaseModel):
    """A consumer group."""

    name: str = Field(description="Name of the consumer group.")
    max_attempts: int = Field(description="Deliveries before a message goes to the dead letter queue.")
    fifo: bool = Field(description="The group consumes in order.")
    backoff_ms: list[int] = Field(description="Waits after the 1st, 2nd ... failed attempt; empty if they grow.")
    exponential_backoff: ExponentialBackoff | None = Field(description="Growing waits; null for `backoff_ms`.")
    id: int = Field(description="Id, different from that of an earlier group of the same name.")
    paused_since_ms: int | None = Field(
        default=None, description="Start of its pause, in milliseconds since 1970; null if not paused."
    )


class Groups(BaseModel):
    """Page of consumer groups, sorted by name."""

    groups: list[Group] = Field(description="The consumer groups of this page.")
    total: int = Field(description="Number of names with the prefix.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


class Deleted(BaseModel):
    """A deletion of a topic or a consumer group: messages that went with it, as brokers counted them right before, and
    who used it.
    """

    name: str = Field(description="Name of the topic or group.")
    deleted: bool = Field(default=True, description="False: nothing was deleted, that was a dry run.")
    unread: int = Field(description="Messages that groups had not received yet, and those that waited for a retry.")
    in_flight: int = Field(description="Messages in flight: delivered and not acknowledged.")
    delayed: int = Field(description="Of a topic: messages that were not due yet.")
    half_messages: int = Field(description="Of a topic: messages of transactions that had not ended.")
    dead_letters: int = Field(description="Of a group: its dead letters.")
    used_with: list[str] = Field(description="Groups that read the topic, or topics that the group reads: some names.")
    used_with_total: int = Field(description="How many these are, at the broker that has most.")
    polling_proxies: int = Field(description="Proxies whose clients polled, at the broker that has most.")
    rests_until_ms: int = Field(description="When a first use may create the name again, in milliseconds since 1970.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer: their messages are not counted.")


class Broker(BaseModel):
    """A broker group that has a master, or will have one in a moment."""

    name: str = Field(description="Name of the broker group.")
    address: str = Field(description="host:port of its master; empty while there is none.")
    epoch: int = Field(description="Of the master; a later master has a larger one.")


class Cluster(BaseModel):
    """The cluster at a glance."""

    name: str = Field(description="Name of the cluster.")
    id: str = Field(
        description="Id, different from that of other clusters of the same name; empty until a broker has registered."
    )
    version: int = Field(description="Increases with each change of topics, groups or brokers.")
    topics: int = Field(description="Number of topics.")
    groups: int = Field(description="Number of consumer groups.")
    brokers: list[Broker] = Field(description="The broker groups, by name.")


_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("It does not exist.")}
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("Invalid value."),
    409: refusal("It exists already."),
    429: refusal("The limit of the cluster is reached."),
}


def admin_router(
    options: ControllerOptions,
    state_writer: StateWriter,
    inquiry: Inquiry,
    clock: Clock,
    check_leads: Callable[[], None],
    guard: Guard,
) -> Routes:
    """Return the routes of the admin API.

    Args:
        options: limits and defaults for what is made.
        state_writer: of the cluster's state.
        inquiry: asks brokers what is deleted.
        clock: when a name was deleted.
        check_leads: raises StatusError while another controller is to be asked.
        guard: knows who may do what, and leaves a line of each change.
    """

    async def this_one_leads() -> None:
        check_leads()

    router = Routes(prefix="/api/v1", dependencies=[Depends(this_one_leads), Depends(guard)])

    @router.get("/cluster", tags=["cluster"])
    async def describe_cluster() -> Cluster:
        """Show the name, id and version of the cluster, its number of topics and groups, and its broker groups."""
        state = state_writer.state
        return Cluster(
            name=state.name,
            id=state.id,
            version=state.version,
            topics=len(state.topics),
            groups=len(state.groups),
            brokers=[
                Broker(name=broker.name, address=broker.address, epoch=broker.epoch)
                for _, broker in sorted(state.brokers.items())
            ],
        )

    @router.get("/topics", tags=["topics"])
    async def list_topics(prefix: Prefix = "", after: After = "", limit: Limit = LISTED) -> Topics:
        """List topics with their settings, by name."""
        topics, total, more = page_of(state_writer.state.topics, prefix, after, limit)
        return Topics(
            topics=[shown_topic(topic) for topic in topics], total=total, next=topics[-1].name if more else None
        )

    @router.post("/topics", tags=["topics"], status_code=status.HTTP_201_CREATED, responses=_REFUSED)
    async def create_topic(new: NewTopic) -> Topic:
        """Create a topic, and return it with the settings in force."""

        def decide(state: ClusterState) -> pb.ClusterUpdate:
            return state.create_topic(options, new.name, topic_type(new.type), new.queues, wanted_settings(new))

        update = await state_writer.change(decide)
        assert update is not None
        return shown_topic(update.topics[0])

    @router.get("/topics/{name}", tags=["topics"], responses=_NOT_FOUND)
    async def describe_topic(name: TopicName) -> Topic:
        """Show the settings of a topic."""
        return shown_topic(state_writer.state.topic(name))

    @router.delete("/topics/{name}", tags=["topics"], responses=_NOT_FOUND)
    async def delete_topic(change_record: RecordedChange, dry_run: DryRun, name: TopicName) -> Deleted:
        """Delete a topic with all its messages, and return what went with it."""
        change_record.before = shown_topic(state_writer.state.topic(name)).model_dump()
        used = await inquiry.of_all(DESCRIBE_USE, DescribeUseRequest(topic=name))
        now_ms, rest_ms = clock.wall_ms(), options.deleted_name_rest_ms
        if not dry_run:
            await state_writer.change(lambda state: state.delete_topic(name, now_ms, rest_ms))
        return _deleted(name, used, now_ms + rest_ms, is_dry_run=dry_run)

    @router.get("/groups", tags=["groups"])
    async def list_groups(prefix: Prefix = "", after: After = "", limit: Limit = LISTED) -> Groups:
        """List consumer groups with their settings, by name."""
        groups, total, more = page_of(state_writer.state.groups, prefix, after, limit)
        return Groups(
            groups=[shown_group(group) for group in groups], total=total, next=groups[-1].name if more else None
        )

    @router.post("/groups", tags=["groups"], status_code=status.HTTP_201_CREATED, responses=_REFUSED)
    async def create_group(new: NewGroup) -> Group:
        """Create a consumer group, and return it with the settings in force."""

        def decide(state: ClusterState) -> pb.ClusterUpdate:
            said = new.exponential_backoff
            exponential = None if said is None else pb.ExponentialBackoff(**said.model_dump())
            return state.create_group(options, new.name, new.max_attempts, new.fifo, new.backoff_ms, exponential)

        update = await state_writer.change(decide)
        assert update is not None
        return shown_group(update.groups[0])

    @router.get("/groups/{name}", tags=["groups"], responses=_NOT_FOUND)
    async def describe_group(name: GroupName) -> Group:
        """Show the settings of a consumer group."""
        return shown_group(state_writer.state.group(name))

    @router.delete("/groups/{name}", tags=["groups"], responses=_NOT_FOUND)
    async def delete_group(change_record: RecordedChange, dry_run: DryRun, name: GroupName) -> Deleted:
        """Delete a consumer group with its progress, retries and dead letters, and return what went with it."""
        change_record.before = shown_group(state_writer.state.group(name)).model_dump()
        used = await inquiry.of_all(DESCRIBE_USE, DescribeUseRequest(group=name))
        now_ms, rest_ms = clock.wall_ms(), options.deleted_name_rest_ms
        if not dry_run:
            await state_writer.change(lambda state: state.delete_group(name, now_ms, rest_ms))
        return _deleted(name, used, now_ms + rest_ms, is_dry_run=dry_run)

    return router


def _deleted(name: str, used: Answers[DescribeUseResponse], rests_until_ms: int, *, is_dry_run: bool) -> Deleted:
    given = used.given.values()
    return Deleted(
        name=name,
        deleted=not is_dry_run,
        unread=sum(each.unread for each in given),
        in_flight=sum(each.in_flight for each in given),
        delayed=sum(each.delayed for each in given),
        half_messages=sum(each.half_messages for each in given),
        dead_letters=sum(each.dead_letters for each in given),
        used_with=sorted({other for each in given for other in each.others})[:_USED_WITH_MAX],
        used_with_total=max((each.others_total for each in given), default=0),
        polling_proxies=max((each.polling_proxies for each in given), default=0),
        rests_until_ms=rests_until_ms,
        unanswered=used.unanswered,
    )


def shown_topic(topic: pb.Topic) -> Topic:
    return Topic(
        name=topic.name,
        type=TopicType.Name(topic.type),
        queues=topic.queues,
        id=topic.id,
        paused_since_ms=topic.paused_ms or None,
        **shown_settings(topic),
    )


def _exponential(group: pb.Group) -> ExponentialBackoff | None:
    if not group.HasField("exponential_backoff"):
        return None
    policy = group.exponential_backoff
    return ExponentialBackoff(initial_ms=policy.initial_ms, max_ms=policy.max_ms, multiplier=policy.multiplier)


def shown_group(group: pb.Group) -> Group:
    return Group(
        name=group.name,
        max_attempts=group.max_attempts,
        fifo=group.fifo,
        backoff_ms=list(group.backoff_ms),
        exponential_backoff=_exponential(group),
        id=group.id,
        paused_since_ms=group.paused_ms or None,
    )
