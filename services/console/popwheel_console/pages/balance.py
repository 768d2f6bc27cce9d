"""The balance of a group: where each message is that its topics ever got, and whether one is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Page
from popwheel_console.visit import ROWS, Visit, silences

PLACES: Final = ("done", "held", "waiting", "delayed", "dead", "poisoned", "expired")
"""Places of messages; together they are all that was stored."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of one group.

    Args:
        sums: over all rows, by `stored`, a place or `difference`; None: not known, as not all of it is.
        rows: of this page: one of each topic and broker.
        first: number of the first row.
        total: how many rows there are.
        next: number of the row with which the next page begins; None: this is the last.
        explained: what the numbers are.
        more: a broker has more topics than it listed.
    """

    sums: Mapping[str, int | None]
    rows: Sequence[Mapping[str, Any]]
    first: int
    total: int
    next: int | None
    explained: str
    more: bool


@dataclass(frozen=True, slots=True)
class BalancePage:
    """Data of the page with a group's balance: where the messages of its topics are.

    Args:
        group, topic: that are asked for.
        groups: to choose from, where none was asked for; None: not known.
        balance: of the group; None: none was asked for, or it is not known.
        why: why it is not known.
        is_pending: it has not been answered yet.
        unanswered: who could not be asked.
    """

    group: str
    topic: str
    groups: Sequence[Mapping[str, Any]] | None
    balance: Balance | None
    why: str
    is_pending: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> BalancePage:
    """Ask for the balance of a group, or for groups to choose from."""
    group, topic = visit.asked_for("group"), visit.asked_for("topic")
    if not group:
        answer = (await visit.ask(groups=Question("/groups", {"limit": ROWS})))["groups"]
        groups = answer.rows("groups") if answer.is_good else None
        return BalancePage("", topic, groups, None, answer.why, answer.is_pending, [])
    question = Question(f"/groups/{part(group)}/balance", {"topic": topic})
    answer = (await visit.ask(balance=question))["balance"]
    balance = balance_of(answer, start_of(visit)) if answer.is_good else None
    return BalancePage(group, topic, None, balance, answer.why, answer.is_pending, silences(answer))


def start_of(visit: Visit) -> int:
    """The number of the first row that the address asks for; 0 if it is none."""
    text = visit.asked_for("after")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def balance_of(answer: Answer, first: int) -> Balance:
    """The balance that an answer has, from some row on."""
    rows = answer.rows("rows")
    more = bool(answer.body.get("more"))
    is_whole = not more and not answer.rows("unanswered")
    return Balance(
        sums={name: _sum(rows, name) if is_whole else None for name in ("stored", *PLACES, "difference")},
        rows=rows[first : first + ROWS],
        first=first,
        total=len(rows),
        next=first + ROWS if first + ROWS < len(rows) else None,
        explained=answer.text("explained"),
        more=more,
    )


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """A sum, if every part is known."""
    values = [each[name] for each in rows]
    return None if None in values else sum(values)


PAGE: Final = Page("/balance", "balance.html", gather, title="Balance", section="/balance")
