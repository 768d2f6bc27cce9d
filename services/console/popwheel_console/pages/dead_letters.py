"""Dead letters of a group, and the forms that redrive or purge them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page, Stream
from popwheel_console.view.links import link
from popwheel_console.view.words import plural
from popwheel_console.visit import ROWS, Refused, Visit, silences

REDRIVE_MAX: Final = 1_000
"""Limit of one redrive, as the API has it."""
_BROKERS_MAX: Final = 16
"""Limit of brokers that are asked if none was named."""
_NUMBER_LENGTH_MAX: Final = 18
_REFUSED_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Deposit:
    """Dead letters of the group at one broker.

    Args:
        broker: where they are.
        total: number of them.
        end_offset: offset of the next one: a redrive ends before it.
        next: offset of the first one that is not shown; None: all are shown.
    """

    broker: str
    total: int
    end_offset: int
    next: int | None

    @property
    def at_once(self) -> int:
        """Number of them that a redrive may take."""
        return min(self.total, REDRIVE_MAX)


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """Data of the page with a group's dead letters.

    Args:
        group: of the dead letters.
        broker: that is asked for; empty: all.
        begin: offset at which the page begins.
        deposits: one of each broker that answered; None: not answered yet.
        total: how many there are at all brokers; None: not known.
        letters: of this page, the oldest first.
        purge: number that a purge would delete; None if no purge is open, or it is not known.
        purge_why: why not.
        is_purging: whether the form of a purge is open.
        unanswered: who could not be asked.
    """

    group: str
    broker: str
    begin: int
    deposits: Sequence[Deposit] | None
    total: int | None
    letters: Sequence[Mapping[str, Any]]
    purge: int | None
    purge_why: str
    is_purging: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> DeadLettersPage:
    """Fetch a page of one broker, or the first page of each."""
    group, broker, begin = visit.path["name"], visit.asked_for("broker"), number_of(visit.asked_for("begin"))
    is_purging = visit.asked_for("do") == "purge" or "typed" in visit.form
    brokers = [broker] if broker else await _brokers(visit)
    query = {"begin": begin if broker else 0, "limit": ROWS}
    # Brokers' names get a prefix, as a broker may be named like another question.
    questions = {
        f"at {name}": Question(f"/groups/{part(group)}/dead-letters/{part(name)}", query)
        for name in brokers[:_BROKERS_MAX]
    }
    if is_purging:
        questions["purge"] = _purging(group, dry_run=True)
    answers = await visit.ask(**questions)
    purge = answers.pop("purge", None)
    lists = {name.removeprefix("at "): each for name, each in answers.items()}
    return dead_letters_page(group, broker, begin, lists, brokers[_BROKERS_MAX:], purge)


async def _brokers(visit: Visit) -> list[str]:
    return sorted(str(each["name"]) for each in (await visit.need(Question("/brokers"))).rows("groups"))


def dead_letters_page(
    group: str,
    broker: str,
    begin: int,
    lists: Mapping[str, Answer],
    not_asked: Sequence[str] = (),
    purge: Answer | None = None,
) -> DeadLettersPage:
    """Return the page of these answers: the lists of brokers, the other brokers, and the result of a purge's dry run.

    Raises:
        Refused: no broker answered with a list, and one gave a reason.
    """
    good = {name: each for name, each in lists.items() if each.is_good}
    refusals = [each for each in lists.values() if not each.is_good and not each.is_pending]
    if refusals and not good:
        raise Refused(refusals[0])
    letters = [each for answer in good.values() for each in answer.rows("letters")]
    letters.sort(key=lambda each: (each["stored_ms"], each["broker"], each["queue_offset"]))
    deposits = [
        Deposit(name, each.body["total"], each.body["max_offset"], each.number("next")) for name, each in good.items()
    ]
    is_whole = len(good) == len(lists) and not not_asked
    return DeadLettersPage(
        group=group,
        broker=broker,
        begin=begin,
        deposits=deposits if good or not lists else None,
        total=sum(each.total for each in deposits) if is_whole else None,
        letters=letters[:ROWS],
        purge=purge.number("purged") if purge is not None and purge.is_good else None,
        purge_why="" if purge is None else purge.why,
        is_purging=purge is not None,
        unanswered=[
            *(f"{name}: {each.why}" for name, each in lists.items() if not each.is_good),
            *(f"{name}: a page asks at most {_BROKERS_MAX} brokers; name this one" for name in not_asked),
            *([] if purge is None else silences(purge)),
        ],
    )


def number_of(text: str) -> int:
    """Return a number of an address or a form; 0 if it is missing."""
    return int(text) if _is_number(text) else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_LENGTH_MAX


async def redrive(visit: Visit) -> Done:
    """Redrive the oldest dead letters of a broker."""
    group, broker = visit.path["name"], visit.form.get("broker", "")
    limit = min(number_of(visit.form.get("limit", "")), REDRIVE_MAX)
    body = {"limit": limit, "end_offset": number_of(visit.form.get("end_offset", ""))}
    question = Question(f"/groups/{part(group)}/dead-letters/{part(broker)}/redrive", method="POST", body=body)
    answer = await visit.need(question)
    kept = answer.number("kept")
    notice = f"{plural(answer.number('redriven'), 'dead letter')} of {broker} will be redelivered."
    if kept:
        notice += f" {plural(kept, 'other')} stayed: the topic is gone, or it cannot be read."
    return Done(link("groups", group, "dead-letters"), notice)


async def choose(visit: Visit) -> Done:
    """Redrive chosen dead letters, or show the result of a dry run."""
    group, dry_run = visit.path["name"], visit.form.get("do") == "dry_run"
    letters = [chosen for name in visit.form if (chosen := _chosen(name)) is not None]
    if not letters:
        raise Refused(Answer(400, {}, "BAD_REQUEST", "nothing was redriven: choose some dead letters of the list"))
    body = {"letters": letters, "dry_run": dry_run}
    answer = await visit.need(Question(f"/groups/{part(group)}/dead-letters/redrive", method="POST", body=body))
    will = "would" if dry_run else "will"
    notice = f"{plural(answer.number('redriven'), 'dead letter')} {will} be redelivered."
    if kept := answer.number("kept"):
        notice += f" {plural(kept, 'other')} {will} stay: the topic is gone, or it cannot be read."
    if moved := answer.number("moved"):
        notice += f" {plural(moved, 'other')} before them {will} stand at the end then."
    for each in answer.rows("refused")[:_REFUSED_SHOWN]:
        notice += f" {each['broker']} · {each['queue_offset']}: {each['reason']}."
    return Done(link("groups", group, "dead-letters"), notice)


def _chosen(name: str) -> dict[str, object] | None:
    """Return the dead letter that a field's name stands for; None if there is none."""
    place, is_letter, broker = name.partition("@")
    return {"broker": broker, "queue_offset": int(place)} if is_letter and place and _is_number(place) else None


async def purge(visit: Visit) -> Done:
    """Purge all dead letters of a group whose name was typed."""
    group = visit.path["name"]
    if visit.form.get("typed") != group:
        raise Refused(Answer(400, {}, "BAD_REQUEST", f"nothing was purged: type {group} to purge its dead letters"))
    answer = await visit.need(_purging(group, dry_run=False))
    notice = f"{plural(answer.number('purged'), 'dead letter')} of {group} purged."
    silent = silences(answer)
    return Done(link("groups", group, "dead-letters"), " ".join([notice, *silent]))


def _purging(group: str, *, dry_run: bool) -> Question:
    return Question(f"/groups/{part(group)}/dead-letters/purge", method="POST", body={"dry_run": dry_run})


PAGE: Final = Page(
    "/groups/{name}/dead-letters", "dead_letters.html", gather, title="Dead letters of {name}", section="/groups"
)
REDRIVE: Final = Action("/groups/{name}/dead-letters/redrive", redrive, PAGE)
CHOOSE: Final = Action("/groups/{name}/dead-letters/choose", choose, PAGE)
PURGE: Final = Action("/groups/{name}/dead-letters/purge", purge, PAGE)
EXPORT: Final = Stream(
    "/groups/{name}/dead-letters/export",
    "/groups/{name}",
    "/dead-letters/export",
    ("broker", "after"),
    "application/x-ndjson",
)
