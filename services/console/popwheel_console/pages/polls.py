"""Polls of each group and topic at each proxy: how they wait, and the share of empty wake-ups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.page import Page
from popwheel_console.view.drawings import share
from popwheel_console.visit import Listed, Visit

MODES: Final[Mapping[str, str]] = {
    "notify": "at all brokers",
    "plain": "at one broker",
    "sliced": "at one after another",
    "": "nobody of late",
}
"""Modes of polls, by the API's name."""


@dataclass(frozen=True, slots=True)
class PollRow:
    """Polls of a group for a topic at a proxy.

    Args:
        polls: as the API shows it.
        mode: how they wait, in words.
        empty_share: share of wake-ups that found no message, in percent; None without wake-ups.
    """

    polls: Mapping[str, Any]
    mode: str
    empty_share: float | None


@dataclass(frozen=True, slots=True)
class PollsPage:
    """Data of the page with polls.

    Args:
        group, topic: that are asked for.
        after: where the page begins.
        rows: of this page; None: not answered yet.
        next: where the list goes on.
        why: why there is nothing.
        unanswered: who could not be asked.
    """

    group: str
    topic: str
    after: str
    rows: Sequence[PollRow] | None
    next: str
    why: str
    unanswered: Sequence[str]


async def gather(visit: Visit) -> PollsPage:
    """Fetch a page of polls."""
    asked = {name: visit.asked_for(name) for name in ("group", "topic", "after")}
    found = await visit.together(polls=lambda: visit.listed(Question("/polls", asked), "polls"))
    return polls_page(asked, found["polls"])


def polls_page(asked: Mapping[str, str], listed: Listed | None) -> PollsPage:
    """Return the page of this list."""
    return PollsPage(
        **asked,
        rows=None if listed is None else [_row(each) for each in listed.rows],
        next="" if listed is None else listed.next,
        why="" if listed is None else listed.first.why,
        unanswered=[] if listed is None or not listed.first.is_good else listed.unanswered,
    )


def _row(polls: Mapping[str, Any]) -> PollRow:
    mode, wakeups = str(polls["mode"] or ""), polls["wakeups"]
    return PollRow(polls, MODES.get(mode, mode), share(polls["empty_wakeups"], wakeups) if wakeups else None)


PAGE: Final = Page("/polls", "polls.html", gather, title="Polls", section="/polls")
