"""Retries of a group: each attempt with the wait before it, and its messages in flight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question, Row
from popwheel_console.api_client import part
from popwheel_console.page import Page
from popwheel_console.pages.group import Step, ladder
from popwheel_console.pages.in_flight import InFlight, in_flight
from popwheel_console.view.drawings import share
from popwheel_console.visit import Listed, Refused, Visit, silences

_LISTED_MAX: Final = 500
"""Limit of messages that are read."""
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Rung:
    """An attempt.

    Args:
        attempt: its number, from 1; 0: of messages whose attempt is not known.
        wait_ms: after the failure before it; None: there is none, or it is beyond those that are shown.
        is_last: a message that fails in it is a dead letter.
        held: number of messages in flight in it.
        share: of the greatest such number, in percent.
        examples: those of them that are redelivered first.
    """

    attempt: int
    wait_ms: int | None
    is_last: bool
    held: int
    share: float
    examples: Sequence[InFlight]


@dataclass(frozen=True, slots=True)
class RetriesPage:
    """Data of the page with a group's retries.

    Args:
        group: as the API has it.
        numbers: what is known of it.
        rungs: its attempts; None: not answered yet.
        scanned: number of messages in flight that were read.
        is_part: there are more.
        unanswered: who could not be asked.
    """

    group: Mapping[str, Any]
    numbers: Mapping[str, Any]
    rungs: Sequence[Rung] | None
    scanned: int
    is_part: bool
    unanswered: Sequence[str]


async def gather(visit: Visit) -> RetriesPage:
    """Fetch the group, and some of its messages in flight, the oldest first."""
    name = visit.path["name"]
    question = Question("/inflight", {"group": name})
    found = await visit.together(
        group=Question(f"/groups/{part(name)}"),
        numbers=Question("/activity/groups", {"prefix": name, "limit": 1}),
        held=lambda: visit.listed(question, "messages", _LISTED_MAX),
    )
    if not found["group"].is_good:
        raise Refused(found["group"])
    return retries_page(found["group"].body, found["numbers"], found["held"], visit.now_ms)


def retries_page(group: Mapping[str, Any], numbers: Answer, listed: Listed | None, now_ms: int) -> RetriesPage:
    """Return the page of these answers: the group, its numbers, and some of its messages in flight."""
    messages = [] if listed is None else [in_flight(row, now_ms) for row in listed.rows]
    unanswered = [*silences(numbers), *([] if listed is None else listed.unanswered)]
    return RetriesPage(
        group=group,
        numbers=next((each for each in numbers.rows("groups") if each["name"] == group["name"]), Row()),
        rungs=None if listed is None else rungs(ladder(group), int(group["max_attempts"]), messages),
        scanned=len(messages),
        is_part=listed is not None and bool(listed.next),
        unanswered=list(dict.fromkeys(unanswered)),
    )


def rungs(steps: Sequence[Step], attempts_max: int, messages: Sequence[InFlight]) -> list[Rung]:
    """Return the attempts of a ladder, and those of messages beyond it, with the messages in each."""
    by_attempt: dict[int, list[InFlight]] = {}
    for each in messages:
        by_attempt.setdefault(each.message["attempt"] or 0, []).append(each)
    waits = {each.attempt: each.wait_ms for each in steps}
    greatest = max((len(each) for each in by_attempt.values()), default=0)
    found = []
    for attempt in sorted({1, *waits, *by_attempt}, key=lambda each: (not each, each)):
        those = sorted(by_attempt.get(attempt, ()), key=lambda each: each.left_ms)
        of_greatest = share(len(those), greatest)
        found.append(
            Rung(attempt, waits.get(attempt), attempt == attempts_max, len(those), of_greatest, those[:_EXAMPLES])
        )
    return found


PAGE: Final = Page(
    "/groups/{name}/retries", "retries.html", gather, title="Retry ladder of {name}", section="/groups", refresh_s=3
)
