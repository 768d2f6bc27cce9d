"""Routes of the admin API about the balance of a group: `/api/v1/groups/{name}/balance` (docs/operate/monitor.md)."""

from typing import Any

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.path_parts import GroupName
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import GROUP_BALANCE

EXPLAINED = (
    "`stored` = `done` + `held` + `waiting` + `delayed` + `dead` + `poisoned` + `expired`, per topic and broker. "
    "stored: all messages that the topic ever got there, and delayed ones. "
    "waiting: not received by the group yet, or waiting for a retry. "
    "held: in flight, that is delivered and not acknowledged, also while a back-off hides it. "
    "dead: dead letters. poisoned: poison messages in the quarantine. "
    "expired: removed by retention before the group read it. "
    "done: what the group is past and what is at no other place: acknowledged; passed by, as a filter, an offset that "
    "was set, or retention has it; dead letters that were purged or have expired. "
    "An offset that was set back gives messages a second life, and what came of the first one counts beside it. "
    "Null: not known. Dead letters of a group that reads several topics are distinguished up to 1,000; lite topics are "
    "read one by one, and have no balance here."
)
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("No such topic or group.")}


class TopicBalance(BaseModel):
    """Counts of a topic's messages for a group, at one broker; null: not known."""

    topic: str = Field(description="Name of the topic.")
    broker: str = Field(description="Name of the broker group.")
    stored: int | None = Field(description="All that the topic ever got here, and what is delayed.")
    done: int | None = Field(description="What the group is past and what is at no other place.")
    held: int | None = Field(description="In flight: delivered and not acknowledged.")
    waiting: int | None = Field(description="Not received by the group yet, or waiting for a retry.")
    delayed: int | None = Field(description="Not due yet.")
    dead: int | None = Field(description="Dead letters of the group from this topic.")
    poisoned: int | None = Field(description="Poison messages in the quarantine.")
    expired: int | None = Field(description="Removed by retention before the group read it.")
    difference: int | None = Field(description="`stored` without all the others: 0, else a message is lost or doubled.")


class GroupBalance(BaseModel):
    """The balance of a group. Each row is of one moment."""

    rows: list[TopicBalance] = Field(description="One row for each topic and broker.")
    more: bool = Field(description="A broker has more than 1,000 topics of the group: ask for one.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")
    explained: str = Field(description="What the numbers are.")


def balance_router(inquiry: Inquiry) -> Routes:
    """Return the route.

    Args:
        inquiry: asks the brokers.
    """
    router = Routes(prefix="/groups/{name}", tags=["groups"])

    @router.get("/balance", responses=_NOT_FOUND)
    async def group_balance(
        name: GroupName,
        topic: str = Query(default="", max_length=255, description="This topic alone; all that it reads if left out."),
    ) -> GroupBalance:
        """Count all messages that the topics of a group ever got, by their state for the group."""
        inquiry.state.group(name)
        if topic:
            inquiry.state.topic(topic)
        answers = await inquiry.of_all(GROUP_BALANCE, pb.GroupBalanceRequest(group=name, topic=topic))
        rows = [_row(broker, each) for broker, answer in answers.given.items() for each in answer.topics]
        return GroupBalance(
            rows=sorted(rows, key=lambda row: (row.topic, row.broker)),
            more=any(answer.more for answer in answers.given.values()),
            unanswered=answers.unanswered,
            explained=EXPLAINED,
        )

    return router


def _row(broker: str, row: pb.TopicBalance) -> TopicBalance:
    fields: dict[str, int] = {each.name: value for each, value in row.ListFields() if each.name != "topic"}
    places = [fields.get(name) for name in ("done", "in_flight", "waiting", "delayed", "dead", "poisoned", "expired")]
    known = [each for each in places if each is not None]
    stored = fields.get("stored")
    is_known = stored is not None and len(known) == len(places)
    return TopicBalance(
        topic=row.topic,
        broker=broker,
        stored=stored,
        done=fields.get("done"),
        held=fields.get("in_flight"),
        waiting=fields.get("waiting"),
        delayed=fields.get("delayed"),
        dead=fields.get("dead"),
        poisoned=fields.get("poisoned"),
        expired=fields.get("expired"),
        difference=(stored or 0) - sum(known) if is_known else None,
    )
