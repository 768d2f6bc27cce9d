"""Consumer group: progress in each queue, retries, dead letters, clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question, Row
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.pages import definitions
from popwheel_console.pages.definitions import Deletion, deletion, is_wanted, loss_question, said
from popwheel_console.pages.in_flight import plain_topic
from popwheel_console.pages.topic import trends
from popwheel_console.view.drawings import Spark, share
from popwheel_console.visit import Listed, Refused, Visit, silences

_QUEUES_MAX: Final = 100
_STEPS_MAX: Final = 20
_LINES: Final = (
    ("Waiting", "lag", ""),
    ("Behind by", "lag_ms", "ms"),
    ("In flight", "held", ""),
    ("Out", "out_rate", "/s"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """Step of the retry ladder.

    Args:
        attempt: number of the next attempt.
        wait_ms: wait before it.
        is_last: whether a failed message becomes a dead letter after it.
    """

    attempt: int
    wait_ms: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Queue that the group reads.

    Args:
        queue: as the API has it.
        topic: that messages were sent to.
        is_retry: whether it has the group's retries of the topic.
        share: of the greatest lag, in percent.
    """

    queue: Mapping[str, Any]
    topic: str
    is_retry: bool
    share: float


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Data of the page of one consumer group.

    Args:
        group: as the API has it.
        numbers: its activity.
        lag, `held`, retrying, dead_letters: None: not known.
        trends: of the last hour.
        ladder: its retries.
        queues: of this page, those with the greatest lag first; None: not answered yet.
        next: start of the next page of queues.
        clients: the first few; None: not known.
        deletion: the form that deletes it; None if it is not open.
        is_changing: whether the form that changes it is open.
        unanswered: who could not be asked.
    """

    group: Mapping[str, Any]
    numbers: Mapping[str, Any]
    lag: int | None
    held: int | None
    retrying: int | None
    dead_letters: int | None
    trends: Sequence[tuple[str, str, Spark]]
    ladder: Sequence[Step]
    queues: Sequence[QueueRow] | None
    next: str
    clients: Sequence[Mapping[str, Any]] | None
    deletion: Deletion | None
    is_changing: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> GroupPage:
    """Fetch all parts concurrently."""
    name = visit.path["name"]
    progress = Question(f"/groups/{part(name)}/progress", {"after": visit.asked_for("after")})
    found = await visit.together(
        group=Question(f"/groups/{part(name)}"),
        numbers=Question("/activity/groups", {"prefix": name, "limit": 1}),
        history=Question("/activity/history", {"kind": "group", "name": name}),
        clients=Question("/clients", {"group": name, "limit": 20}),
        queues=lambda: visit.listed(progress, "queues", _QUEUES_MAX),
        **({"loss": loss_question("groups", name)} if is_wanted(visit, "delete", "typed") else {}),
    )
    queues: Listed | None = found.pop("queues")
    if not found["group"].is_good:
        raise Refused(found["group"])
    is_changing = is_wanted(visit, "change", "max_attempts")
    return group_page(found, queues, is_first=not visit.asked_for("after"), is_changing=is_changing)


def group_page(
    answers: Mapping[str, Answer], queues: Listed | None, *, is_first: bool = True, is_changing: bool = False
) -> GroupPage:
    """Return the page of these answers."""
    group, clients, loss = answers["group"].body, answers["clients"], answers.get("loss")
    numbers = next((each for each in answers["numbers"].rows("groups") if each["name"] == group["name"]), Row())
    rows = [] if queues is None else queues.rows
    is_whole = is_first and queues is not None and not queues.next and not queues.unanswered
    retries = [each for each in rows if str(each["topic"]) != plain_topic(str(each["topic"]))]
    unanswered = [each for name, answer in answers.items() if name != "loss" for each in silences(answer)]
    unanswered += [] if queues is None else queues.unanswered
    return GroupPage(
        group=group,
        numbers=numbers,
        lag=_known(numbers["lag"], rows, "lag", is_whole=is_whole),
        held=_known(numbers["held"], rows, "in_flight", is_whole=is_whole),
        retrying=_known(numbers["retrying"], retries, "lag", is_whole=is_whole),
        dead_letters=numbers["dead_letters"],
        trends=trends(answers["history"], _LINES),
        ladder=ladder(group),
        queues=None if queues is None else _queues(rows),
        next="" if queues is None else queues.next,
        clients=clients.rows("clients") if clients.is_good else None,
        deletion=None if loss is None else deletion("groups", str(group["name"]), loss),
        is_changing=is_changing,
        unanswered=list(dict.fromkeys(unanswered)),
    )


def _known(reported: int | None, rows: Sequence[Mapping[str, Any]], key: str, *, is_whole: bool) -> int | None:
    """Return a sum: the API's, or that of all queues if all are known."""
    if reported is not None:
        return reported
    return sum(each[key] for each in rows) if is_whole else None


def _queues(rows: Sequence[Mapping[str, Any]]) -> list[QueueRow]:
    greatest = max((each["lag"] for each in rows), default=0)
    ordered = sorted(rows, key=lambda each: (-each["lag"], each["topic"], each["broker"], each["queue_id"]))
    found = []
    for each in ordered:
        topic = str(each["topic"])
        plain = plain_topic(topic)
        found.append(QueueRow(each, plain, plain != topic, share(each["lag"], greatest)))
    return found


def ladder(group: Mapping[str, Any]) -> list[Step]:
    """Return the waits between attempts, up to the last one or the twentieth."""
    attempts, waits = int(group["max_attempts"]), group.get("backoff_ms") or []
    grows = group.get("exponential_backoff")
    found: list[Step] = []
    for number in range(1, min(attempts, _STEPS_MAX)):
        if grows:
            wait = min(grows["max_ms"], grows["initial_ms"] * grows["multiplier"] ** (number - 1))
        elif waits:
            wait = waits[min(number, len(waits)) - 1]
        else:
            return []
        found.append(Step(number + 1, int(wait), number + 1 == attempts))
    return found


async def delete(visit: Visit) -> Done:
    """Delete a group whose name was typed."""
    return await definitions.delete(visit, "groups")


async def change(visit: Visit) -> Done:
    """Change the delivery attempts of a group."""
    return await definitions.change(visit, "groups", said(visit, ["max_attempts"]))


PAGE: Final = Page("/groups/{name}", "group.html", gather, title="{name}", section="/groups")
DELETE: Final = Action("/groups/{name}/delete", delete, PAGE)
CHANGE: Final = Action("/groups/{name}/change", change, PAGE)
