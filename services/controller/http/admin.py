"""The admin API: topics, groups and brokers over HTTP, `/api/v1/...`. What `popwheel admin` and the console call.

Refusals travel as `{"code": "TOPIC_NOT_FOUND", "message": "..."}` (`services.common.http` makes them).
"""

from collections.abc import Callable
from itertools import islice, takewhile
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, status
from pydantic import BaseModel, ConfigDict, Field

from services.common.pb.popwheel.v1 import controller_pb2 as pb
from services.common.pb.popwheel.v1.controller_pb2 import TopicType
from services.controller.cluster.cluster_state import ClusterState, Named, topic_type
from services.controller.cluster.name_map import NameMap
from services.controller.cluster.state_keeper import StateKeeper
from services.controller.http.refusal import refusal
from services.controller.options import BACKOFF_MS_MAX, MULTIPLIER_MAX, ControllerOptions

_LISTED = 100
_LISTED_MAX = 1_000
_LAST = chr(0x10FFFF)
"""Comes after all characters of names."""

Prefix = Annotated[str, Query(max_length=255, description="Only those whose names begin so.")]
After = Annotated[str, Query(max_length=255, description="Only those that come after this: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=_LISTED_MAX, description="At most so many.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewTopic(_Body):
    """A topic to be made."""

    name: str = Field(description="Letters, digits, %, _ or -.")
    type: str = Field(default="NORMAL", description="NORMAL, FIFO, DELAY, TRANSACTION, MIXED, LITE or PRIORITY.")
    queues: int | None = Field(
        default=None, description="From 1 to 1024; if left out, the controller's default, or 10 levels."
    )
    lite_expiration_ms: int = Field(
        default=0,
        ge=0,
        description="Of type LITE: a lite topic into which nothing came for so long ends, with its messages. 0: never.",
    )


class Topic(BaseModel):
    """A topic."""

    name: str
    type: str
    queues: int
    id: int = Field(description="Tells it from an earlier topic of the same name.")
    lite_expiration_ms: int = Field(default=0, description="Of type LITE: when its lite topics end; else 0.")


class Topics(BaseModel):
    """Some topics, sorted by name."""

    topics: list[Topic]
    total: int = Field(description="How many there are whose names begin with the prefix.")
    next: str | None = Field(description="To be given as `after` for those that follow; null if none do.")


class ExponentialBackoff(_Body):
    """Waits that grow."""

    initial_ms: int = Field(ge=1, le=BACKOFF_MS_MAX, description="After the 1st failed attempt.")
    max_ms: int = Field(ge=1, le=BACKOFF_MS_MAX, description="The longest wait.")
    multiplier: float = Field(ge=1, le=MULTIPLIER_MAX, description="How many times as long each further one is.")


class NewGroup(_Body):
    """A consumer group to be made."""

    name: str = Field(description="Letters, digits, %, _ or -.")
    max_attempts: int | None = Field(
        default=None, description="Deliveries before a message goes to the dead letter queue; default if left out."
    )
    fifo: bool = Field(default=False, description="Whether it consumes in order.")
    backoff_ms: list[int] | None = Field(
        default=None, description="Waits after the 1st, 2nd ... failed attempt; default if left out."
    )
    exponential_backoff: ExponentialBackoff | None = Field(
        default=None, description="Waits that grow, instead of `backoff_ms`."
    )


class Group(BaseModel):
    """A consumer group."""

    name: str
    max_attempts: int
    fifo: bool
    backoff_ms: list[int] = Field(description="Waits after the 1st, 2nd ... failed attempt; empty if they grow.")
    exponential_backoff: ExponentialBackoff | None = Field(description="Waits that grow; null if they do not.")
    id: int = Field(description="Tells it from an earlier group of the same name.")


class Groups(BaseModel):
    """Some consumer groups, sorted by name."""

    groups: list[Group]
    total: int = Field(description="How many there are whose names begin with the prefix.")
    next: str | None = Field(description="To be given as `after` for those that follow; null if none do.")


class Broker(BaseModel):
    """A broker group that has a master, or will have one in a moment."""

    name: str
    address: str = Field(description="host:port of its master; empty while there is none.")
    epoch: int = Field(description="Of the master; a later master has a larger one.")


class Cluster(BaseModel):
    """The cluster at a glance."""

    name: str
    version: int
    topics: int
    groups: int
    brokers: list[Broker]


_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("There is none of that name.")}
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("A value that cannot be."),
    409: refusal("It is there already."),
    429: refusal("The cluster holds as many as it may."),
}


def admin_router(options: ControllerOptions, keeper: StateKeeper, check_leads: Callable[[], None]) -> APIRouter:
    """The routes of the admin API.

    Args:
        options: limits and defaults for what is made.
        keeper: holds and changes the state.
        check_leads: raises StatusError while another controller is to be asked.
    """

    async def this_one_leads() -> None:
        check_leads()

    router = APIRouter(prefix="/api/v1", dependencies=[Depends(this_one_leads)])

    @router.get("/cluster", tags=["cluster"])
    async def describe_cluster() -> Cluster:
        state = keeper.state
        return Cluster(
            name=state.name,
            version=state.version,
            topics=len(state.topics),
            groups=len(state.groups),
            brokers=[
                Broker(name=broker.name, address=broker.address, epoch=broker.epoch)
                for _, broker in sorted(state.brokers.items())
            ],
        )

    @router.get("/topics", tags=["topics"])
    async def list_topics(prefix: Prefix = "", after: After = "", limit: Limit = _LISTED) -> Topics:
        topics, total, more = _page(keeper.state.topics, prefix, after, limit)
        return Topics(topics=[_topic(topic) for topic in topics], total=total, next=topics[-1].name if more else None)

    @router.post("/topics", tags=["topics"], status_code=status.HTTP_201_CREATED, responses=_REFUSED)
    async def create_topic(new: NewTopic) -> Topic:
        def decide(state: ClusterState) -> pb.ClusterUpdate:
            return state.create_topic(options, new.name, topic_type(new.type), new.queues, new.lite_expiration_ms)

        update = await keeper.change(decide)
        assert update is not None
        return _topic(update.topics[0])

    @router.get("/topics/{name}", tags=["topics"], responses=_NOT_FOUND)
    async def describe_topic(name: str = Path()) -> Topic:
        return _topic(keeper.state.topic(name))

    @router.delete("/topics/{name}", tags=["topics"], status_code=status.HTTP_204_NO_CONTENT, responses=_NOT_FOUND)
    async def delete_topic(name: str = Path()) -> None:
        await keeper.change(lambda state: state.delete_topic(name))

    @router.get("/groups", tags=["groups"])
    async def list_groups(prefix: Prefix = "", after: After = "", limit: Limit = _LISTED) -> Groups:
        groups, total, more = _page(keeper.state.groups, prefix, after, limit)
        return Groups(groups=[_group(group) for group in groups], total=total, next=groups[-1].name if more else None)

    @router.post("/groups", tags=["groups"], status_code=status.HTTP_201_CREATED, responses=_REFUSED)
    async def create_group(new: NewGroup) -> Group:
        def decide(state: ClusterState) -> pb.ClusterUpdate:
            said = new.exponential_backoff
            exponential = None if said is None else pb.ExponentialBackoff(**said.model_dump())
            return state.create_group(options, new.name, new.max_attempts, new.fifo, new.backoff_ms, exponential)

        update = await keeper.change(decide)
        assert update is not None
        return _group(update.groups[0])

    @router.get("/groups/{name}", tags=["groups"], responses=_NOT_FOUND)
    async def describe_group(name: str = Path()) -> Group:
        return _group(keeper.state.group(name))

    @router.delete("/groups/{name}", tags=["groups"], status_code=status.HTTP_204_NO_CONTENT, responses=_NOT_FOUND)
    async def delete_group(name: str = Path()) -> None:
        await keeper.change(lambda state: state.delete_group(name))

    return router


def _page(named: NameMap[Named], prefix: str, after: str, limit: int) -> tuple[list[Named], int, bool]:
    """Some of what has names with a prefix, how many do, and whether there are more.

    Args:
        named: all there is.
        prefix: of the names; empty for all.
        after: the last name of the page before; empty for the first page.
        limit: so many at the most.
    """
    end = prefix + _LAST
    names = islice(takewhile(lambda name: name < end, named.after(max(prefix, after))), limit + 1)
    page = [named[name] for name in names]
    if prefix > after and prefix in named:
        page.insert(0, named[prefix])
    return page[:limit], named.count_before(end) - named.count_before(prefix), len(page) > limit


def _topic(topic: pb.Topic) -> Topic:
    return Topic(
        name=topic.name,
        type=TopicType.Name(topic.type),
        queues=topic.queues,
        id=topic.id,
        lite_expiration_ms=topic.lite_expiration_ms,
    )


def _exponential(group: pb.Group) -> ExponentialBackoff | None:
    if not group.HasField("exponential_backoff"):
        return None
    policy = group.exponential_backoff
    return ExponentialBackoff(initial_ms=policy.initial_ms, max_ms=policy.max_ms, multiplier=policy.multiplier)


def _group(group: pb.Group) -> Group:
    return Group(
        name=group.name,
        max_attempts=group.max_attempts,
        fifo=group.fifo,
        backoff_ms=list(group.backoff_ms),
        exponential_backoff=_exponential(group),
        id=group.id,
    )
