"""Routes of the admin API about poison messages: `/api/v1/quarantine/...` (docs/operate/messages.md)."""

from typing import Annotated, Any

from fastapi import Query
from google.protobuf.message import DecodeError
from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message, SystemProperties
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.refusals import http_status
from popwheel_common.web.routes import Routes
from popwheel_controller.http.bodies import BODY_BYTES_MAX, ShownBody, body_fields
from popwheel_controller.http.guard import DryRun, SeesData, without_data
from popwheel_controller.http.inquiry import Answers, Inquiry, Silence
from popwheel_controller.http.path_parts import BrokerName, QuarantineId
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import QUARANTINE_DROP, QUARANTINE_LIST, QUARANTINE_RETRY, QUARANTINE_SHOW

_LIMIT_MAX = 1_000  # of what a broker lists

BornMs = Annotated[
    int | None, Field(description="When its sender made it, by the sender's clock, in milliseconds since 1970.")
]


class QuarantineEntry(BaseModel):
    """Poison message in the quarantine."""

    broker: str = Field(description="Name of the broker group.")
    id: str = Field(description="Names it at its broker.")
    step: str = Field(description="At which it failed.")
    reason: str = Field(description="The error.")
    set_aside_ms: int = Field(description="When it was quarantined, in milliseconds since 1970.")
    group: str = Field(description="Whose delivery it was; empty for none.")
    topic: str = Field(description="Topic of the message.")
    queue_id: int = Field(description="Queue at this broker.")
    queue_offset: int = Field(description="Offset in the queue.")
    position: int = Field(description="Of the record that failed, in the commit log.")
    taken: bool = Field(
        description="Whether it was removed from its place; else it is still there, and this entry only reports it."
    )


class QuarantineList(BaseModel):
    """Poison messages of all brokers that answered, the oldest first."""

    entries: list[QuarantineEntry] = Field(description="The poison messages of this page.")
    total: int = Field(description="How many there are, also of those that are not listed.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


class QuarantinedMessage(QuarantineEntry, ShownBody):
    """An entry, with its message."""

    message_id: str = Field(description="Id of the message; retries keep it.")
    tag: str = Field(description="Tag of the message; empty if it has none.")
    keys: list[str] = Field(description="Keys of the message.")
    properties: dict[str, str] = Field(description="Properties of the message, by name.")
    hidden: bool = Field(default=False, description="The token may not see properties and body.")
    unreadable: str = Field(description="Why the message cannot be read; empty if it can.")


class QuarantineChange(BaseModel):
    """Confirmation of a change."""

    broker: str = Field(description="Name of the broker group.")
    id: str = Field(description="Id in the quarantine of this broker.")
    changed: bool = Field(description="False: the quarantine has no message with that id (any more).")


_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("That is no id."),
    500: refusal("It failed again, and stays in the quarantine; or the broker is unavailable."),
}


def quarantine_router(inquiry: Inquiry) -> Routes:
    """Return the routes of the admin API below `/quarantine`.

    Args:
        inquiry: asks the brokers.
    """
    router = Routes(prefix="/quarantine", tags=["quarantine"])

    @router.get("")
    async def list_quarantine(
        limit: int = Query(default=100, ge=1, le=_LIMIT_MAX, description="At most this many, the oldest."),
    ) -> QuarantineList:
        """List the poison messages of all brokers, the oldest first."""
        return _list(await inquiry.of_all(QUARANTINE_LIST, pb.QuarantineListRequest(limit=limit)), limit)

    @router.get("/{broker}/{id}", responses={**_REFUSED, 404: refusal("The quarantine has no such id.")})
    async def show_quarantined(
        broker: BrokerName,
        id: QuarantineId,  # noqa: A002 - as the path says it
        sees_data: SeesData,
    ) -> QuarantinedMessage:
        """Show a poison message with its error, properties and body."""
        found = await inquiry.of(broker, QUARANTINE_SHOW, pb.QuarantineShowRequest(id=id))
        return _message(broker, found, sees_data=sees_data)

    @router.post("/{broker}/{id}/retry", responses=_REFUSED)
    async def retry_quarantined(broker: BrokerName, id: QuarantineId) -> QuarantineChange:  # noqa: A002
        """Put a poison message back to where it failed, so that the broker tries it once more."""
        answer = await inquiry.of(broker, QUARANTINE_RETRY, pb.QuarantineRetryRequest(id=id))
        return QuarantineChange(broker=broker, id=id, changed=answer.changed)

    @router.post("/{broker}/{id}/drop", responses=_REFUSED)
    async def drop_quarantined(broker: BrokerName, id: QuarantineId, dry_run: DryRun) -> QuarantineChange:  # noqa: A002
        """Remove a poison message from the quarantine for good."""
        if dry_run:
            return QuarantineChange(broker=broker, id=id, changed=await _is_there(inquiry, broker, id))
        answer = await inquiry.of(broker, QUARANTINE_DROP, pb.QuarantineDropRequest(id=id))
        return QuarantineChange(broker=broker, id=id, changed=answer.changed)

    return router


def _list(answers: Answers[pb.QuarantineListResponse], limit: int) -> QuarantineList:
    """The oldest of all that the brokers list."""
    entries = [
        QuarantineEntry.model_validate(_fields(name, entry))
        for name, answer in answers.given.items()
        for entry in answer.entries
    ]
    entries.sort(key=lambda entry: (entry.set_aside_ms, entry.broker))
    return QuarantineList(
        entries=entries[:limit],
        total=sum(answer.total for answer in answers.given.values()),
        unanswered=answers.unanswered,
    )


async def _is_there(inquiry: Inquiry, broker: str, entry_id: str) -> bool:
    """Return whether the quarantine has an id."""
    try:
        await inquiry.of(broker, QUARANTINE_SHOW, pb.QuarantineShowRequest(id=entry_id))
    except StatusError as error:
        if http_status(error.code) != 404:
            raise
        return False
    return True


def _message(broker: str, answer: pb.QuarantineShowResponse, *, sees_data: bool) -> QuarantinedMessage:
    unreadable, message = answer.unreadable, Message()
    if not unreadable:
        try:
            message = Message.FromString(answer.message)
        except DecodeError as error:
            unreadable = f"its bytes are no message: {error}"
    fields = _fields(broker, answer.entry) | message_fields(message)
    return QuarantinedMessage.model_validate(
        (fields if sees_data else without_data(fields)) | {"unreadable": unreadable}
    )


def message_of(data: bytes) -> Message:
    """A message as a broker gives it; an empty one if it can't be read, as an older release may have let it in."""
    try:
        return Message.FromString(data)
    except DecodeError:
        return Message()


def born_ms(properties: SystemProperties) -> int | None:
    """Read when a message was made, by its sender's clock; None if it does not say."""
    return properties.born_timestamp.ToMilliseconds() or None


def message_fields(message: Message, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """A message as the API shows one, by the names of its fields; of its body so much."""
    properties = message.system_properties
    return {
        "message_id": properties.message_id,
        "born_ms": born_ms(properties),
        "tag": properties.tag,
        "keys": list(properties.keys),
        "properties": dict(message.user_properties),
        "message_group": properties.message_group,
        "priority": properties.priority if properties.HasField("priority") else None,
        "lite_topic": properties.lite_topic,
        **body_fields(message.body, bytes_max),
    }


def _fields(broker: str, entry: pb.QuarantineEntry) -> dict[str, Any]:
    return {
        "broker": broker,
        "id": entry.id,
        "step": entry.step,
        "reason": entry.reason,
        "set_aside_ms": entry.quarantined_ms,
        "group": entry.group,
        "topic": entry.topic,
        "queue_id": entry.queue_id,
        "queue_offset": entry.queue_offset,
        "position": entry.position,
        "taken": entry.taken,
    }
