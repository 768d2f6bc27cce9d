"""Balance of a group: its messages by state, and whether one is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Page
from popwheel_console.visit import ROWS, Visit, silences

PLACES: Final = ("done", "held", "waiting", "delayed", "dead", "poisoned", "expired")
"""States of messages; their sum is `stored`."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Balance of one group.

    Args:
        sums: over all rows, by `stored`, a state or `difference`; None if a part is unknown.
        rows: of this page, one per topic and broker.
        first: number of the first row.
        total: number of all rows.
        next: number of the first row of the next page; None on the last one.
        explained: meaning of the numbers.
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
    """Data of the page with a group's balance.

    Args:
        group, topic: that are asked for.
        groups: to choose from, if none was chosen; None: not known.
        balance: of the group; None if none was chosen, or it is not known.
        why: why it is not known.
        is_pending: the answer is late.
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
    """Fetch the balance of a group, or groups to choose from."""
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
    """Return the number of the first row in the address; 0 if it is invalid."""
    text = visit.asked_for("after")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


def balance_of(answer: Answer, first: int) -> Balance:
    """Return the balance in an answer, from a row on."""
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
    """Return a sum; None if a part is unknown."""
    values = [each[name] for each in rows]
    return None if None in values else sum(values)


PAGE: Final = Page("/balance", "balance.html", gather, title="Balance", section="/balance")
