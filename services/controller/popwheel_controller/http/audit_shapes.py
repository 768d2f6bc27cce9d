"""Answers of the routes about deliveries: their shapes, made of what brokers say."""

from typing import Any

from pydantic import BaseModel, Field

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_controller.http.bodies import BODY_BYTES_MAX, ShownBody
from popwheel_controller.http.guard import without_data
from popwheel_controller.http.inquiry import Silence
from popwheel_controller.http.message_fates import Fate
from popwheel_controller.http.quarantine_routes import BornMs, message_fields, message_of

_HOLDINGS = {
    pb.WAITS: "waits",
    pb.DELIVERED: "delivered",
    pb.DONE: "done",
    pb.ENDED: "done",
    pb.POISONED: "quarantined",
}
_PLACE_KINDS = {
    pb.STORED: "stored",
    pb.DELAYED: "delayed",
    pb.RECALLED: "recalled",
    pb.HALF: "half",
    pb.ROLLED_BACK: "rolled back",
    pb.GIVEN_UP: "given up",
}


class InFlightMessage(BaseModel):
    """A message that a group was given and has not acknowledged."""

    group: str = Field(description="Name of the consumer group.")
    topic: str = Field(description="In which it has its offset: the topic, or the group's retry topic of it.")
    broker: str = Field(description="Name of the broker group.")
    queue_id: int = Field(description="Queue at this broker.")
    queue_offset: int = Field(description="Offset in the queue.")
    message_id: str = Field(description="Its own, which retries keep; empty if it cannot be read.")
    attempt: int = Field(description="Which delivery this is, from 1; 0 if it cannot be read.")
    popped_ms: int = Field(
        description="When it was delivered, or its invisible duration last changed, in milliseconds since 1970."
    )
    due_ms: int = Field(description="Until when it is hidden from others of the group, likewise.")
    client_id: str | None = Field(
        default=None, description="Who has it; null if that is not known, as after a restart or a change of the master."
    )
    message_group: str = Field(default="", description="Of a group that consumes in order: whose next messages wait.")
    holds_back: int = Field(
        default=0, description="How many messages of its message group wait for it, of those that the group has read."
    )
    born_ms: BornMs = None


class _Page(BaseModel):
    broker: str = Field(description="Of which this page is; empty if there is none.")
    epoch: int = Field(description="Of its master; 0 if it did not answer.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


class InFlightList(_Page):
    """Page of messages that are in flight."""

    messages: list[InFlightMessage] = Field(description="The messages of this page.")
    known_since_ms: int | None = Field(
        default=None,
        description="Since when the broker knows who has what, in milliseconds since 1970; null if it does not say.",
    )


class QueueProgress(BaseModel):
    """Progress of a group in one queue."""

    topic: str = Field(description="The topic, or the group's retry topic of it.")
    broker: str = Field(description="Name of the broker group.")
    queue_id: int = Field(description="Queue at this broker.")
    min_offset: int = Field(description="Offset of the oldest stored message, as far as the broker has looked.")
    next_offset: int = Field(description="Where the group reads on.")
    committed_offset: int | None = Field(description="As GetOffset says it; null if there is none.")
    max_offset: int = Field(description="Offset of the next message to be stored.")
    in_flight: int = Field(description="Messages in flight: delivered and not acknowledged.")
    lag: int = Field(description="Messages not acknowledged: those that wait, and those in flight.")


class GroupProgress(_Page):
    """Progress of a group in some queues."""

    group: str = Field(description="Name of the consumer group.")
    kind: str = Field(description="pop; or Spark, of a query that shows with it how far it is (its name says so).")
    queues: list[QueueProgress] = Field(description="The queues of this page.")
    dead_letters: int = Field(description="Messages in the group's dead letter queue at this broker.")


class LiteTopic(BaseModel):
    """A lite topic at one broker."""

    lite_topic: str = Field(description="Name of the lite topic.")
    broker: str = Field(description="Name of the broker group.")
    min_offset: int = Field(description="Offset of the oldest stored message, as far as the broker has looked.")
    max_offset: int = Field(description="Offset of the next message to be stored.")
    last_ms: int | None = Field(description="When its last message was stored, in milliseconds since 1970; or null.")
    waiting: int = Field(description="Messages that the group has yet to take; 0 if none was named.")
    readers: int = Field(description="Clients that read it, of all groups.")


class LiteTopics(_Page):
    """Page of lite topics of a topic."""

    lite_topics: list[LiteTopic] = Field(description="The lite topics of this page.")
    total: int = Field(description="How many the topic has at this broker.")


class GroupHolding(BaseModel):
    """State of a message for one group at one place."""

    group: str = Field(description="Name of the consumer group.")
    holding: str = Field(
        description="`waits`: not read yet. `delivered`: in flight. `done`: acknowledged, or passed by (a filter, an "
        "offset that was set), or it has gone on to a retry or the dead letters, which are places of their own. "
        "`quarantined`: a poison message (`/quarantine`)."
    )
    popped_ms: int | None = Field(
        description="Of one in flight: when it was delivered, or its invisible duration last changed; else null."
    )
    due_ms: int | None = Field(description="Until when it is hidden; else null.")
    attempts: int = Field(
        default=0, description="Of a group that consumes in order, while it has the message: failed deliveries before."
    )
    put_off: bool = Field(
        default=False,
        description="Of one in flight: its consumer has changed its invisible duration since: it has failed, "
        "or needs longer. Unless it is acknowledged before, it is redelivered at `due_ms`.",
    )
    ended: bool = Field(
        default=False,
        description="Of one that is done: it is known to be acknowledged, or to have gone to the dead letters. The "
        "broker remembers it of the latest 8,192 deliveries.",
    )
    kept_back_by: str = Field(
        default="",
        description="The filter that the group asked with last, if it does not let the message through; else empty.",
    )
    set_aside: str = Field(default="", description="Its id in `/quarantine`, if it is a poison message.")
    client_id: str | None = Field(default=None, description="Of one in flight: its client; null if that is not known.")
    fate: str | None = Field(
        default=None,
        description="What became of it for this group, in a sentence. Null where another place of the page has it.",
    )


class ListedMessage(ShownBody):
    """A message at one place."""

    broker: str = Field(description="Name of the broker group.")
    topic: str = Field(description="The topic, a retry topic of it, or a dead letter topic.")
    message_id: str = Field(description="Id of the message; retries keep it.")
    queue_id: int = Field(description="Queue at this broker.")
    queue_offset: int = Field(description="Offset in the queue.")
    stored_ms: int = Field(description="When it came there, in milliseconds since 1970.")
    born_ms: BornMs = None
    attempts: int = Field(description="Failed deliveries before.")
    tag: str = Field(description="Tag of the message; empty if it has none.")
    keys: list[str] = Field(description="Keys of the message.")
    properties: dict[str, str] = Field(description="Properties of the message, by name.")
    message_group: str = Field(default="", description="Of a topic of type FIFO.")
    priority: int | None = Field(default=None, description="Of a topic of type PRIORITY.")
    lite_topic: str = Field(default="", description="Of a topic of type LITE.")
    hidden: bool = Field(default=False, description="The token may not see properties and body.")


class TracedMessage(ListedMessage):
    """A message at one place, and who has it there."""

    kind: str = Field(
        default="stored",
        description="`stored`: in a queue of `topic`. `delayed`: it waits for `due_ms`. `recalled`: the record by "
        "which a delayed one was recalled. `half`: of a transaction. `rolled back`, `given up`: the record by which "
        "the transaction ended, the latter because no producer answered the checks.",
    )
    position: int = Field(default=0, description="In the broker's log: what has a larger one came later.")
    pending: bool = Field(
        default=False, description="Of `delayed`: it still waits. Of `half`: the transaction is still open."
    )
    due_ms: int | None = Field(default=None, description="Of `delayed`: its delivery time.")
    checks: int = Field(default=0, description="Of an open transaction: how often its senders were asked.")
    redriven: bool = Field(default=False, description="An operator gave a dead letter back, and this is it.")
    set_aside: str = Field(default="", description="Of `delayed`: its id in `/quarantine`, if it is a poison message.")
    groups: list[GroupHolding] = Field(description="Those that read its topic.")
    fate: str | None = Field(
        default=None,
        description="What became of it, in a sentence, where no group of `groups` has it: of one that waits before "
        "its topic, or of a dead letter. Null else.",
    )


class MessageList(_Page):
    """Page of messages with a key. A page may be empty although more follow."""

    messages: list[ListedMessage] = Field(description="The messages of this page.")
    looked_through: int = Field(description="Number of messages scanned for this page.")
    unreadable: int = Field(description="Those among them that cannot be read, so they may have the key.")


class MessageTrace(_Page):
    """Page of places of a message. A page may be empty although more follow."""

    message_id: str = Field(description="Id of the message; retries keep it.")
    places: list[TracedMessage] = Field(description="The places of this page.")
    known_since_ms: int | None = Field(default=None, description="As that of `/inflight`.")
    fates: list[Fate] = Field(
        description="Its fates, derived from the places of this page; the sentences are repeated at the places. "
        "If `next` continues at the same broker, a place of a later page may change them."
    )


def in_flight_message(broker: str, message: pb.InFlightMessage) -> InFlightMessage:
    """Return a message in flight at a broker."""
    return InFlightMessage(
        group=message.group,
        topic=message.topic,
        broker=broker,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        message_id=message.message_id,
        attempt=message.attempt,
        popped_ms=message.popped_ms,
        due_ms=message.due_ms,
        client_id=message.client_id or None,
        message_group=message.message_group,
        holds_back=message.holds_back,
        born_ms=message.born_ms or None,
    )


def lite_topic_of(broker: str, entry: pb.LiteTopicEntry) -> LiteTopic:
    """Return a lite topic as a broker has it."""
    return LiteTopic(
        lite_topic=entry.lite_topic,
        broker=broker,
        min_offset=entry.min_offset,
        max_offset=entry.max_offset,
        last_ms=entry.last_ms or None,
        waiting=entry.waiting,
        readers=entry.readers,
    )


def queue_progress(broker: str, queue: pb.QueueProgress) -> QueueProgress:
    """Return a group's progress in a queue of a broker."""
    return QueueProgress(
        topic=queue.topic,
        broker=broker,
        queue_id=queue.queue_id,
        min_offset=queue.min_offset,
        next_offset=queue.next_offset,
        committed_offset=None if queue.committed_offset < 0 else queue.committed_offset,
        max_offset=queue.max_offset,
        in_flight=queue.in_flight,
        lag=max(0, queue.max_offset - queue.next_offset) + queue.in_flight,
    )


def placed(broker: str, traced: pb.TracedMessage, sees_data: bool, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """A message at one place as the API shows it.

    Args:
        broker: where it is.
        traced: as the broker says it.
        sees_data: whether the caller may see its body and properties.
        bytes_max: so much of its body is shown.
    """
    place = {
        "broker": broker,
        "topic": traced.topic,
        "queue_id": traced.queue_id,
        "queue_offset": traced.queue_offset,
        "stored_ms": traced.stored_ms,
        "attempts": traced.attempts,
    }
    fields = message_fields(message_of(traced.message), bytes_max) | place
    return fields if sees_data else without_data(fields)


def traced_message(broker: str, traced: pb.TracedMessage, sees_data: bool) -> TracedMessage:
    """Return a message at one place, with what its groups have done with it."""
    groups = [
        GroupHolding(
            group=each.group,
            holding=_HOLDINGS[each.holding],
            popped_ms=each.popped_ms or None,
            due_ms=each.due_ms or None,
            attempts=each.attempts,
            put_off=each.put_off,
            ended=each.holding == pb.ENDED,
            kept_back_by=each.kept_back_by,
            set_aside=each.quarantine_id,
            client_id=each.client_id or None,
        )
        for each in traced.groups
    ]
    place = {
        "kind": _PLACE_KINDS[traced.kind],
        "position": traced.position,
        "pending": traced.pending,
        "due_ms": traced.due_ms or None,
        "checks": traced.checks,
        "redriven": traced.redriven,
        "set_aside": traced.quarantine_id,
    }
    return TracedMessage.model_validate(placed(broker, traced, sees_data) | place | {"groups": groups})
