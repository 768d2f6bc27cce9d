"""Change log: users, objects, times and addresses of changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.page import Page
from popwheel_console.visit import ROWS, Visit


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """Data of the page with the change log.

    Args:
        object, who: that are asked for.
        after: where the page begins.
        changes: the latest first.
        next: where the list goes on.
    """

    object: str
    who: str
    after: str
    changes: Sequence[Any]
    next: str


async def gather(visit: Visit) -> ChangesPage:
    """Fetch a page of changes."""
    asked = {name: visit.asked_for(name) for name in ("object", "who", "after")}
    answer = await visit.need(Question("/changes", {**asked, "limit": ROWS}))
    return ChangesPage(**asked, changes=answer.rows("changes"), next=answer.text("next"))


PAGE: Final = Page("/changes", "changes.html", gather, title="Changes", section="/changes")
