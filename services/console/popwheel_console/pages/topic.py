"""One topic: what is in it, who reads it, and the form that deletes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question, Row
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.drawings import Spark, spark
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit, silences


@dataclass(frozen=True, slots=True)
class TopicPage:
    """What the page shows.

    Args:
        topic: as the API has it.
        numbers: what is known of it; None for each that is not.
        trends: of the last hour: a name, a unit and a line; none if they are not known.
        clients: that read it or send to it, the first few; None: not known.
        loss: what a deletion would take; None: it was not asked for, or is not known.
        loss_why: why not.
        is_deleting: somebody wants to delete it.
        unanswered: who could not be asked.
    """

    topic: Mapping[str, Any]
    numbers: Mapping[str, Any]
    trends: Sequence[tuple[str, str, Spark]]
    clients: Sequence[Mapping[str, Any]] | None
    loss: Mapping[str, Any] | None
    loss_why: str
    is_deleting: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> TopicPage:
    """Ask for all of it; for what a deletion would take only if somebody wants to delete it."""
    name = visit.path["name"]
    is_deleting = visit.asked_for("do") == "delete" or "typed" in visit.form
    questions = {
        "topic": Question(f"/topics/{part(name)}"),
        "numbers": Question("/activity/topics", {"prefix": name, "limit": 1}),
        "history": Question("/activity/history", {"kind": "topic", "name": name}),
        "clients": Question("/clients", {"topic": name, "limit": 20}),
    }
    if is_deleting:
        questions["loss"] = Question(f"/topics/{part(name)}", {"dry_run": "true"}, method="DELETE")
    answers = await visit.ask(**questions)
    if not answers["topic"].is_good:
        raise Refused(answers["topic"])
    return topic_page(answers, is_deleting=is_deleting)


def topic_page(answers: Mapping[str, Answer], *, is_deleting: bool = False) -> TopicPage:
    """What the page shows of these answers."""
    topic, clients, loss = answers["topic"].body, answers["clients"], answers.get("loss")
    numbers = next((each for each in answers["numbers"].rows("topics") if each["name"] == topic["name"]), Row())
    unanswered = [each for answer in answers.values() for each in silences(answer)]
    return TopicPage(
        topic=topic,
        numbers=numbers,
        trends=trends(answers["history"], (("In", "in_rate", "/s"), ("Out", "out_rate", "/s"))),
        clients=clients.rows("clients") if clients.is_good else None,
        loss=loss.body if loss is not None and loss.is_good else None,
        loss_why="" if loss is None else loss.why,
        is_deleting=is_deleting,
        unanswered=list(dict.fromkeys(unanswered)),
    )


def trends(history: Answer, lines: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, Spark]]:
    """The lines of a history.

    Args:
        history: as the API tells it.
        lines: of each its name, its field and its unit.
    """
    if not history.is_good:
        return []
    found = []
    for name, key, unit in lines:
        values = history.body.get(key)
        found.append((name, unit, spark(values if isinstance(values, list) else [])))
    return found


async def delete(visit: Visit) -> Done:
    """Delete a topic whose name was typed."""
    name = visit.path["name"]
    if visit.form.get("typed") != name:
        raise Refused(Answer(400, {}, "BAD_REQUEST", f"nothing was deleted: type {name} to delete it"))
    await visit.need(Question(f"/topics/{part(name)}", method="DELETE"))
    return Done(link("topics"), f"The topic {name} was deleted.")


PAGE: Final = Page("/topics/{name}", "topic.html", gather, title="{name}", section="/topics")
DELETE: Final = Action("/topics/{name}/delete", delete, PAGE)
