"""Routes of the admin API about the progress of a group: resets of offsets, and dead letters (docs/use/retries.md)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field

from popwheel_common.contract import names
from popwheel_common.contract.polls import WHILE_S
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from popwheel_common.web.routes import Routes
from popwheel_controller.http.bodies import BEGINNING_BYTES_MAX, ShownBody, body_fields
from popwheel_controller.http.guard import SeesData, without_data
from popwheel_controller.http.inquiry import Answers, Inquiry, Silence
from popwheel_controller.http.path_parts import BrokerName, GroupName
from popwheel_controller.http.quarantine_routes import BornMs, message_fields, message_of
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import DEAD_LETTER_LIST, DEAD_LETTER_REDRIVE, RESET_OFFSETS

_LIMIT_MAX = 1_000  # entries that a broker lists or redrives at once
_TIME_MS_MAX = 2**62
_POLICIES = {
    "earliest": pb.BEGINNING,
    "latest": pb.END,
    "time": pb.TIMESTAMP,
    "offset": pb.AT_OFFSET,
    "shift": pb.SHIFT,
}
_QUEUE_ID_MAX = 65_535
_REFUSED: dict[int | str, dict[str, Any]] = {404: refusal("No such topic or group.")}
_RESET_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("What is asked for makes no sense together, or the topic has no such queue, or it has lite topics."),
    409: refusal("Consumers of the group are connected, and it was not asked for with `force`. Nothing has changed."),
}

Limit = Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="Maximum number of entries.")]


class ResetWanted(BaseModel, extra="forbid"):
    """Position to which a group is reset in a topic."""

    topic: str = Field(description="Topic that the group reads.")
    to: Literal["earliest", "latest", "time", "offset", "shift"] = Field(
        description="The first message; the end; or see `time_ms`, `offset`, `shift`."
    )
    time_ms: int = Field(
        default=0, ge=0, le=_TIME_MS_MAX, description="The first message since then, in milliseconds since 1970."
    )
    offset: int | None = Field(
        default=None, ge=0, le=_TIME_MS_MAX, description="This offset of each queue, or the nearest one that it holds."
    )
    shift: int | None = Field(
        default=None,
        ge=-_TIME_MS_MAX,
        le=_TIME_MS_MAX,
        description="Number of messages to move each queue on, or back if it is negative; as far as it holds.",
    )
    broker: str = Field(default="", description="With `queue_id`: that queue of this broker alone.")
    queue_id: int | None = Field(default=None, ge=0, le=_QUEUE_ID_MAX, description="With `broker`.")
    force: bool = Field(default=False, description="Do it although consumers of the group are connected.")
    dry_run: bool = Field(default=False, description="Change nothing, only report the changes.")


class QueueReset(BaseModel):
    """A queue."""

    broker: str = Field(description="Name of the broker group.")
    queue_id: int = Field(description="Queue at this broker.")
    from_offset: int = Field(description="Where the group read on.")
    to_offset: int = Field(description="Where it reads on now.")
    max_offset: int = Field(description="Of the next message that comes.")
    clamped: bool = Field(description="The queue does not hold what was asked for: `to_offset` is the nearest offset.")


class Reset(BaseModel):
    """Result of a reset, or of its dry run."""

    queues: list[QueueReset] = Field(description="The queues that were reset.")
    in_flight: int = Field(description="Messages in flight that were revoked.")
    retries: int = Field(description="Messages that waited for a retry, and are skipped.")
    retries_kept: int = Field(
        description="Messages that wait to be tried again, and still do: nobody knows of which queue they were."
    )
    consumers: int = Field(description="Consumers of the group, at least, that poll the topic at one of the brokers.")
    unanswered: list[Silence] = Field(description="There nothing is known to have changed.")


class DeadLetter(ShownBody):
    """Dead letter of a group: all its delivery attempts have failed."""

    broker: str = Field(description="Name of the broker group.")
    queue_offset: int = Field(description="In the dead letter queue; names it at its broker.")
    message_id: str = Field(description="Id of the message; retries keep it.")
    topic: str = Field(description="That the group had received it from.")
    tag: str = Field(description="Tag of the message; empty if it has none.")
    keys: list[str] = Field(description="Keys of the message.")
    stored_ms: int = Field(description="When it became a dead letter, in milliseconds since 1970.")
    born_ms: BornMs = None
    hidden: bool = Field(default=False, description="The token may not see properties and body.")


class DeadLetterPage(BaseModel):
    """Dead letters of one broker."""

    letters: list[DeadLetter] = Field(description="The dead letters of this page.")
    total: int = Field(description="How many there are at this broker.")
    max_offset: int = Field(description="Of the next dead letter that comes.")
    next: int | None = Field(description="`begin` of what follows; null if nothing does.")


class ShownDeadLetter(DeadLetter):
    """An open delivery, with its message."""

    properties: dict[str, str] = Field(description="Properties of the message, by name.")


class RedriveWanted(BaseModel, extra="forbid"):
    """Request to redrive dead letters, the oldest first."""

    limit: int = Field(ge=1, le=_LIMIT_MAX, description="Limit of the dead letters.")
    end_offset: int = Field(ge=0, le=_TIME_MS_MAX, description="Those from here on are left.")


class Redriven(BaseModel):
    """Result of a redrive."""

    redriven: int = Field(description="Number of redriven messages.")
    kept: int = Field(description="Still dead letters, at the end: their topic is gone, or they cannot be read.")


class PurgeWanted(BaseModel, extra="forbid"):
    """Request to purge dead letters."""

    dry_run: bool = Field(default=False, description="Change nothing, only count them.")


class Purged(BaseModel):
    """Result of a purge, or of its dry run."""

    purged: int = Field(description="Number of dead letters that were removed, or would be.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; nothing is known to be purged there.")


def consumption_router(inquiry: Inquiry) -> Routes:
    """Return the routes.

    Args:
        inquiry: asks the brokers.
    """
    router = Routes(prefix="/groups/{name}", tags=["groups"])

    @router.post("/reset", responses={**_REFUSED, **_RESET_REFUSED})
    async def reset_offsets(wanted: ResetWanted, name: GroupName) -> Reset:
        """Reset a group in a topic to its start, its end, a time or an offset; return what changed in each queue."""
        inquiry.state.group(name)
        _check_reset(wanted, inquiry.state.topic(wanted.topic))
        request = pb.ResetOffsetsRequest(
            group=name,
            topic=wanted.topic,
            policy=_POLICIES[wanted.to],
            timestamp_ms=wanted.time_ms,
            offset=(wanted.offset if wanted.to == "offset" else wanted.shift) or 0,
            queue_id=wanted.queue_id,
            dry_run=True,
        )
        asked = [wanted.broker] if wanted.broker else list(inquiry.state.brokers)
        # All brokers are asked before any of them changes something: so none has, if this is refused.
        found = await _ask_brokers(inquiry, wanted.broker, dict.fromkeys(asked, request))
        shown = _reset(found)
        if wanted.dry_run:
            return shown
        if shown.consumers and not wanted.force:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"consumers of {name} are connected (at least {shown.consumers}, polling {wanted.topic}), so nothing "
                f"was changed; stop them and ask again {WHILE_S} s later, or ask with force, which revokes what "
                "they have in hand",
            )
        request.dry_run = False
        done = await _ask_brokers(inquiry, wanted.broker, dict.fromkeys(found.given, request))
        return _reset(Answers(done.given, [*found.unanswered, *done.unanswered]))

    @router.get("/dead-letters/{broker}", responses=_REFUSED)
    async def list_dead_letters(
        broker: BrokerName,
        sees_data: SeesData,
        name: GroupName,
        begin: int = Query(default=0, ge=0, le=_TIME_MS_MAX, description="The first offset."),
        limit: Limit = 100,
    ) -> DeadLetterPage:
        """List the dead letters of a group at one broker, the oldest first."""
        inquiry.state.group(name)
        request = pb.DeadLetterListRequest(group=name, begin_offset=begin, limit=limit)
        answer = await inquiry.of(broker, DEAD_LETTER_LIST, request)
        letters = [letter_fields(broker, message_of(each)) for each in answer.messages]
        return DeadLetterPage(
            letters=[DeadLetter.model_validate(each if sees_data else without_data(each)) for each in letters],
            total=answer.total,
            max_offset=answer.max_offset,
            next=answer.next_offset if answer.next_offset < answer.max_offset else None,
        )

    @router.get("/dead-letters/{broker}/{offset}", responses=_REFUSED)
    async def show_dead_letter(
        broker: BrokerName,
        sees_data: SeesData,
        name: GroupName,
        offset: int = Path(ge=0, le=_TIME_MS_MAX, description="Offset in the dead letter queue."),
    ) -> ShownDeadLetter:
        """Show a dead letter with its properties and body."""
        inquiry.state.group(name)
        request = pb.DeadLetterListRequest(group=name, begin_offset=offset, limit=1)
        answer = await inquiry.of(broker, DEAD_LETTER_LIST, request)
        for each in answer.messages:
            message = message_of(each)
            if message.system_properties.queue_offset == offset:
                fields = letter_fields(broker, message) | message_fields(message)
                return ShownDeadLetter.model_validate(fields if sees_data else without_data(fields))
        raise StatusError(
            Code.MESSAGE_NOT_FOUND,
            f"the broker {broker} has no dead letter {offset} of {names.shown(name)} (any more); ask for the list",
        )

    @router.post("/dead-letters/{broker}/redrive", responses=_REFUSED)
    async def redrive_dead_letters(broker: BrokerName, wanted: RedriveWanted, name: GroupName) -> Redriven:
        """Redrive the oldest dead letters of a group at one broker: each is delivered to the group again."""
        inquiry.state.group(name)
        request = pb.DeadLetterRedriveRequest(group=name, limit=wanted.limit, end_offset=wanted.end_offset)
        answer = await inquiry.of(broker, DEAD_LETTER_REDRIVE, request)
        return Redriven(redriven=answer.redriven, kept=answer.kept)

    @router.post("/dead-letters/purge", responses=_REFUSED)
    async def purge_dead_letters(wanted: PurgeWanted, name: GroupName) -> Purged:
        """Remove all dead letters of a group at all brokers, and return how many these were."""
        inquiry.state.group(name)
        request = pb.ResetOffsetsRequest(
            group=name, topic=names.dead_letter_topic(name), policy=pb.END, dry_run=wanted.dry_run
        )
        reset = _reset(await inquiry.of_all(RESET_OFFSETS, request))
        purged = sum(each.to_offset - each.from_offset for each in reset.queues)
        return Purged(purged=purged, unanswered=reset.unanswered)

    return router


def _check_reset(wanted: ResetWanted, topic: Topic) -> None:
    """Raise StatusError, BAD_REQUEST, if a reset makes no sense, or not in this topic."""
    if topic.type == TopicType.LITE:
        raise StatusError(
            Code.BAD_REQUEST,
            f"{wanted.topic} has lite topics, and a group is set back in each of these by itself: a client says so "
            "as it subscribes to one (its offset option)",
        )
    if (wanted.to == "offset") != (wanted.offset is not None) or (wanted.to == "shift") != (wanted.shift is not None):
        raise StatusError(
            Code.BAD_REQUEST, "`offset` goes with `to: offset` and `shift` with `to: shift`, and neither with another"
        )
    if bool(wanted.broker) != (wanted.queue_id is not None):
        raise StatusError(
            Code.BAD_REQUEST, "each broker has queues of these numbers: name both `broker` and `queue_id`, or neither"
        )
    if wanted.queue_id is not None and wanted.queue_id >= topic.queues:
        raise StatusError(
            Code.BAD_REQUEST,
            f"{wanted.topic} has no queue {wanted.queue_id}; the queues of a broker are 0 to {topic.queues - 1}",
        )


async def _ask_brokers(
    inquiry: Inquiry, only: str, requests: Mapping[str, pb.ResetOffsetsRequest]
) -> Answers[pb.ResetOffsetsResponse]:
    """Ask brokers; one that is asked alone, and does not answer, raises StatusError."""
    if only:
        return Answers({only: await inquiry.of(only, RESET_OFFSETS, requests[only])}, [])
    return await inquiry.ask_by_broker(RESET_OFFSETS, requests)


def _reset(answers: Answers[pb.ResetOffsetsResponse]) -> Reset:
    """Return the sum of all brokers' answers."""
    queues = [
        QueueReset(
            broker=broker,
            queue_id=each.queue_id,
            from_offset=each.from_offset,
            to_offset=each.to_offset,
            max_offset=each.max_offset,
            clamped=each.clamped,
        )
        for broker, answer in answers.given.items()
        for each in answer.queues
    ]
    return Reset(
        queues=queues,
        in_flight=sum(answer.in_flight for answer in answers.given.values()),
        retries=sum(answer.retries for answer in answers.given.values()),
        retries_kept=sum(answer.retries_kept for answer in answers.given.values()),
        # A consumer polls at several brokers, and counts once.
        consumers=max((answer.consumers for answer in answers.given.values()), default=0),
        unanswered=answers.unanswered,
    )


def letter_fields(broker: str, message: Message) -> dict[str, Any]:
    """A dead letter of a broker as the API shows it in lists."""
    properties = message.system_properties
    return {
        "broker": broker,
        "queue_offset": properties.queue_offset,
        "message_id": properties.message_id,
        "topic": properties.dead_letter_queue.topic,
        "tag": properties.tag,
        "keys": list(properties.keys),
        "stored_ms": properties.store_timestamp.ToMilliseconds(),
        **body_fields(message.body, BEGINNING_BYTES_MAX),
    }
