"""Topic: its messages, groups and clients, and the forms that change and delete it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question, Row
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.pages import definitions
from popwheel_console.pages.definitions import Deletion, deletion, is_wanted, loss_question, said
from popwheel_console.view.drawings import Spark, spark
from popwheel_console.visit import Refused, Visit, silences


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Data of the page of one topic.

    Args:
        topic: as the API has it.
        numbers: its activity; None for each unknown number.
        trends: of the last hour: a name, a unit and a line; none if they are not known.
        clients: that read it or send to it, the first few; None: not known.
        deletion: the form that deletes it; None if it is not open.
        is_changing: whether the form that changes it is open.
        unanswered: who could not be asked.
    """

    topic: Mapping[str, Any]
    numbers: Mapping[str, Any]
    trends: Sequence[tuple[str, str, Spark]]
    clients: Sequence[Mapping[str, Any]] | None
    deletion: Deletion | None
    is_changing: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> TopicPage:
    """Fetch all parts; the loss of a deletion only if its form is open."""
    name = visit.path["name"]
    questions = {
        "topic": Question(f"/topics/{part(name)}"),
        "numbers": Question("/activity/topics", {"prefix": name, "limit": 1}),
        "history": Question("/activity/history", {"kind": "topic", "name": name}),
        "clients": Question("/clients", {"topic": name, "limit": 20}),
    }
    if is_wanted(visit, "delete", "typed"):
        questions["loss"] = loss_question("topics", name)
    answers = await visit.ask(**questions)
    if not answers["topic"].is_good:
        raise Refused(answers["topic"])
    return topic_page(answers, is_changing=is_wanted(visit, "change", "queues"))


def topic_page(answers: Mapping[str, Answer], *, is_changing: bool = False) -> TopicPage:
    """Return the page of these answers."""
    topic, clients, loss = answers["topic"].body, answers["clients"], answers.get("loss")
    numbers = next((each for each in answers["numbers"].rows("topics") if each["name"] == topic["name"]), Row())
    unanswered = [each for name, answer in answers.items() if name != "loss" for each in silences(answer)]
    return TopicPage(
        topic=topic,
        numbers=numbers,
        trends=trends(answers["history"], (("In", "in_rate", "/s"), ("Out", "out_rate", "/s"))),
        clients=clients.rows("clients") if clients.is_good else None,
        deletion=None if loss is None else deletion("topics", str(topic["name"]), loss),
        is_changing=is_changing,
        unanswered=list(dict.fromkeys(unanswered)),
    )


def trends(history: Answer, lines: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, Spark]]:
    """Return the lines of a history.

    Args:
        history: as the API shows it.
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
    return await definitions.delete(visit, "topics")


async def change(visit: Visit) -> Done:
    """Change a topic: more queues, or messages of all types."""
    return await definitions.change(visit, "topics", said(visit, ["queues"], ["type"]))


PAGE: Final = Page("/topics/{name}", "topic.html", gather, title="{name}", section="/topics")
DELETE: Final = Action("/topics/{name}/delete", delete, PAGE)
CHANGE: Final = Action("/topics/{name}/change", change, PAGE)
