"""Common parts of lists of names (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from popwheel_console.answer import Answer, Question, Row
from popwheel_console.visit import ROWS, Visit, silences


@dataclass(frozen=True, slots=True)
class NameList:
    """A page of topics or groups.

    Args:
        rows: with numbers where the server reports them; None: not answered yet.
        prefix: that names begin with.
        after: where the page begins.
        next: where the list goes on.
        total: number of names with the prefix; None: not known.
        why: why there is nothing; empty if there is something.
        unanswered: who could not be asked.
    """

    rows: Sequence[Mapping[str, Any]] | None
    prefix: str
    after: str
    next: str
    total: int | None
    why: str
    unanswered: Sequence[str]


async def name_list(visit: Visit, kind: str) -> NameList:
    """Fetch names with their numbers, which come from another route that older releases lack.

    Args:
        visit: with the prefix and the start of the page.
        kind: `topics` or `groups`.
    """
    query: dict[str, str | int | None] = {
        "prefix": visit.asked_for("prefix"),
        "after": visit.asked_for("after"),
        "limit": ROWS,
    }
    answers = await visit.ask(names=Question(f"/{kind}", query), numbers=Question(f"/activity/{kind}", query))
    return joined(answers["names"], answers["numbers"], kind, str(query["prefix"]), str(query["after"]))


def joined(names: Answer, numbers: Answer, kind: str, prefix: str, after: str) -> NameList:
    """Return names, each with its numbers."""
    known = {str(each["name"]): each for each in numbers.rows(kind)}
    rows = [Row({**known.get(str(each["name"]), {}), **each}) for each in names.rows(kind)]
    return NameList(
        rows=None if names.is_pending else rows,
        prefix=prefix,
        after=after,
        next=names.text("next"),
        total=names.number("total"),
        why=names.why,
        unanswered=silences(numbers),
    )
