"""The admin API's part on what a group has read: offsets that are reset, and dead letters (docs/groups.md)."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from services.common.contract import names
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from services.common.pb.popwheel.v1 import broker_pb2 as pb
from services.common.pb.popwheel.v1.controller_pb2 import TopicType
from services.controller.http.inquiry import Answers, Inquiry, Silence
from services.controller.http.quarantine_routes import message_fields, message_of
from services.controller.http.refusal import refusal
from services.rpc.methods import DEAD_LETTER_LIST, DEAD_LETTER_REDRIVE, RESET_OFFSETS

_LIMIT_MAX = 1_000  # of what a broker lists or gives back at once
_TIME_MS_MAX = 2**62
_POLICIES = {"earliest": pb.BEGINNING, "latest": pb.END, "time": pb.TIMESTAMP}
_REFUSED: dict[int | str, dict[str, Any]] = {404: refusal("There is no topic or group of that name.")}

Limit = Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="At most so many.")]


class ResetWanted(BaseModel, extra="forbid"):
    """Where a group is to go on in a topic."""

    topic: str
    to: Literal["earliest", "latest", "time"] = Field(description="The first message; the end; or see `time_ms`.")
    time_ms: int = Field(
        default=0, ge=0, le=_TIME_MS_MAX, description="The first message since then, in milliseconds since 1970."
    )
    dry_run: bool = Field(default=False, description="Change nothing, say what would be changed.")


class QueueReset(BaseModel):
    """One queue."""

    broker: str
    queue_id: int
    from_offset: int = Field(description="Where the group read on.")
    to_offset: int = Field(description="Where it reads on now.")
    max_offset: int = Field(description="Of the next message that comes.")


class Reset(BaseModel):
    """What was changed, or would be."""

    queues: list[QueueReset]
    in_flight: int = Field(description="Messages that were given out, and are no more.")
    retries: int = Field(description="Messages that waited to be tried again, and are passed over.")
    unanswered: list[Silence] = Field(description="There nothing is known to have changed.")


class DeadLetter(BaseModel):
    """A message that a group has failed on as often as it may."""

    broker: str
    queue_offset: int = Field(description="In the dead letter queue; names it at its broker.")
    message_id: str
    topic: str = Field(description="That the group had received it from.")
    tag: str
    keys: list[str]
    stored_ms: int = Field(description="When it became a dead letter, in milliseconds since 1970.")


class DeadLetterPage(BaseModel):
    """Dead letters of one broker."""

    letters: list[DeadLetter]
    total: int = Field(description="How many there are at this broker.")
    max_offset: int = Field(description="Of the next dead letter that comes.")
    next: int | None = Field(description="`begin` of what follows; null if nothing does.")


class ShownDeadLetter(DeadLetter):
    """One of them, with its message."""

    properties: dict[str, str]
    body: str = Field(description="In base64; its first 64 KiB.")
    body_bytes: int = Field(description="How long it is.")


class RedriveWanted(BaseModel, extra="forbid"):
    """Which dead letters are to come again: the oldest."""

    limit: int = Field(ge=1, le=_LIMIT_MAX, description="So many at the most.")
    end_offset: int = Field(ge=0, le=_TIME_MS_MAX, description="Those from here on are left.")


class Redriven(BaseModel):
    """What came of it."""

    redriven: int = Field(description="Given back to the group.")
    kept: int = Field(description="Still dead letters, at the end: their topic is gone, or they cannot be read.")


class PurgeWanted(BaseModel, extra="forbid"):
    """Whether dead letters are to be passed over."""

    dry_run: bool = Field(default=False, description="Change nothing, say how many they are.")


class Purged(BaseModel):
    """What was passed over, or would be."""

    purged: int
    unanswered: list[Silence]


def consumption_router(inquiry: Inquiry) -> APIRouter:
    """The routes.

    Args:
        inquiry: asks the brokers.
    """
    router = APIRouter(prefix="/groups/{name}", tags=["groups"])

    @router.post("/reset", responses=_REFUSED)
    async def reset_offsets(wanted: ResetWanted, name: str = Path()) -> Reset:
        inquiry.state.group(name)
        if inquiry.state.topic(wanted.topic).type == TopicType.LITE:
            raise StatusError(
                Code.BAD_REQUEST,
                f"{wanted.topic} has lite topics, and a group is set back in each of these by itself: a client says so "
                "as it subscribes to one (its offset option)",
            )
        request = pb.ResetOffsetsRequest(
            group=name,
            topic=wanted.topic,
            policy=_POLICIES[wanted.to],
            timestamp_ms=wanted.time_ms,
            dry_run=wanted.dry_run,
        )
        return _reset(await inquiry.of_all(RESET_OFFSETS, request))

    @router.get("/dead-letters/{broker}", responses=_REFUSED)
    async def list_dead_letters(
        broker: str,
        name: str = Path(),
        begin: int = Query(default=0, ge=0, le=_TIME_MS_MAX, description="The first offset."),
        limit: Limit = 100,
    ) -> DeadLetterPage:
        inquiry.state.group(name)
        request = pb.DeadLetterListRequest(group=name, begin_offset=begin, limit=limit)
        answer = await inquiry.of(broker, DEAD_LETTER_LIST, request)
        return DeadLetterPage(
            letters=[DeadLetter.model_validate(_letter(broker, message_of(each))) for each in answer.messages],
            total=answer.total,
            max_offset=answer.max_offset,
            next=answer.next_offset if answer.next_offset < answer.max_offset else None,
        )

    @router.get("/dead-letters/{broker}/{offset}", responses=_REFUSED)
    async def show_dead_letter(
        broker: str, name: str = Path(), offset: int = Path(ge=0, le=_TIME_MS_MAX)
    ) -> ShownDeadLetter:
        inquiry.state.group(name)
        request = pb.DeadLetterListRequest(group=name, begin_offset=offset, limit=1)
        answer = await inquiry.of(broker, DEAD_LETTER_LIST, request)
        for each in answer.messages:
            message = message_of(each)
            if message.system_properties.queue_offset == offset:
                return ShownDeadLetter.model_validate(_letter(broker, message) | message_fields(message))
        raise StatusError(
            Code.MESSAGE_NOT_FOUND,
            f"the broker {broker} has no dead letter {offset} of {names.shown(name)} (any more); ask for the list",
        )

    @router.post("/dead-letters/{broker}/redrive", responses=_REFUSED)
    async def redrive_dead_letters(broker: str, wanted: RedriveWanted, name: str = Path()) -> Redriven:
        inquiry.state.group(name)
        request = pb.DeadLetterRedriveRequest(group=name, limit=wanted.limit, end_offset=wanted.end_offset)
        answer = await inquiry.of(broker, DEAD_LETTER_REDRIVE, request)
        return Redriven(redriven=answer.redriven, kept=answer.kept)

    @router.post("/dead-letters/purge", responses=_REFUSED)
    async def purge_dead_letters(wanted: PurgeWanted, name: str = Path()) -> Purged:
        inquiry.state.group(name)
        request = pb.ResetOffsetsRequest(
            group=name, topic=names.dead_letter_topic(name), policy=pb.END, dry_run=wanted.dry_run
        )
        reset = _reset(await inquiry.of_all(RESET_OFFSETS, request))
        purged = sum(each.to_offset - each.from_offset for each in reset.queues)
        return Purged(purged=purged, unanswered=reset.unanswered)

    return router


def _reset(answers: Answers[pb.ResetOffsetsResponse]) -> Reset:
    """What all brokers say."""
    queues = [
        QueueReset(
            broker=broker,
            queue_id=each.queue_id,
            from_offset=each.from_offset,
            to_offset=each.to_offset,
            max_offset=each.max_offset,
        )
        for broker, answer in answers.given.items()
        for each in answer.queues
    ]
    return Reset(
        queues=queues,
        in_flight=sum(answer.in_flight for answer in answers.given.values()),
        retries=sum(answer.retries for answer in answers.given.values()),
        unanswered=answers.unanswered,
    )


def _letter(broker: str, message: Message) -> dict[str, Any]:
    properties = message.system_properties
    return {
        "broker": broker,
        "queue_offset": properties.queue_offset,
        "message_id": properties.message_id,
        "topic": properties.dead_letter_queue.topic,
        "tag": properties.tag,
        "keys": list(properties.keys),
        "stored_ms": properties.store_timestamp.ToMilliseconds(),
    }
