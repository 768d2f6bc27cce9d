"""Delayed messages: a histogram by due time, and the next ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.drawings import share
from popwheel_console.view.links import link
from popwheel_console.view.words import duration
from popwheel_console.visit import Listed, Visit, silences

WITHIN: Final = ("600000", "60000", "3600000", "86400000", "604800000", "3456000000")
"""Choices of the list's horizon in milliseconds, the default first."""
_BOUNDS_MS: Final = (60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000, 2_592_000_000, 3_456_000_000)
_TOPICS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Bucket:
    """Bucket of messages that are due within a time.

    Args:
        words: the time.
        count: how many.
        share: of the greatest bucket, in percent.
    """

    words: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class TimersPage:
    """Data of the page with delayed messages.

    Args:
        topic: the chosen one; empty: all.
        within_ms: how far ahead the list goes.
        choices: of it, with their words.
        pending: number of all delayed messages; None: not known.
        recalled, as far as brokers remember; None: not known.
        behind_ms: delay of the timer; None: not known.
        why: why nothing is known.
        buckets: of the histogram.
        topics: those with most of them: name and number.
        timers: of the list; None: not answered yet.
        next: where it goes on.
        after: where it begins.
        unanswered: who could not be asked.
    """

    topic: str
    within_ms: str
    choices: Sequence[tuple[str, str]]
    pending: int | None
    recalled: int | None
    behind_ms: int | None
    why: str
    buckets: Sequence[Bucket]
    topics: Sequence[tuple[str, int, float]]
    timers: Sequence[Mapping[str, Any]] | None
    next: str
    after: str
    unanswered: Sequence[str]


async def gather(visit: Visit) -> TimersPage:
    """Fetch the counts, and the messages that are due next."""
    topic, within_ms, after = visit.asked_for("topic"), visit.asked_for("within_ms", WITHIN), visit.asked_for("after")
    bounds = ",".join(map(str, _BOUNDS_MS))
    listing = Question("/timers", {"topic": topic, "within_ms": within_ms, "after": after})
    found = await visit.together(
        stats=Question("/timers/stats"),
        histogram=Question("/timers/histogram", {"topic": topic, "bounds_ms": bounds}),
        timers=lambda: visit.listed(listing, "timers"),
    )
    asked = {"topic": topic, "within_ms": within_ms, "after": after}
    return timers_page(asked, found["stats"], found["histogram"], found["timers"])


def timers_page(asked: Mapping[str, str], stats: Answer, histogram: Answer, timers: Listed | None) -> TimersPage:
    """Return the page of these answers."""
    brokers = stats.rows("brokers")
    topics = sorted(stats.rows("topics"), key=lambda each: -int(each["count"]))[:_TOPICS_SHOWN]
    most = max((each["count"] for each in topics), default=0)
    unanswered = [*silences(stats), *([] if timers is None else timers.unanswered)]
    return TimersPage(
        topic=asked["topic"],
        within_ms=asked["within_ms"],
        choices=[(each, duration(int(each))) for each in sorted(WITHIN, key=int)],
        pending=stats.number("pending"),
        recalled=sum(each["recalled"] for each in brokers) if stats.is_good else None,
        behind_ms=max((each["behind_ms"] for each in brokers), default=0) if stats.is_good else None,
        why=stats.why,
        buckets=_buckets(stats, histogram, of_all=not asked["topic"]),
        topics=[(str(each["topic"]), each["count"], share(each["count"], most)) for each in topics],
        timers=None if timers is None else timers.rows,
        next="" if timers is None else timers.next,
        after=asked["after"],
        unanswered=list(dict.fromkeys(unanswered)),
    )


def _buckets(stats: Answer, histogram: Answer, *, of_all: bool) -> list[Bucket]:
    """Return the histogram; from a server without it, the counts of all topics together."""
    rows: list[tuple[str, int]] = []
    if histogram.is_good:
        for each in histogram.rows("buckets"):
            to_ms, from_ms = each["to_ms"], each["from_ms"]
            rows.append((f"within {duration(to_ms)}" if to_ms else f"after {duration(from_ms)}", each["count"]))
    elif of_all:
        for each in stats.rows("horizons"):
            rows.append((f"within {duration(each['within_ms'])}" if each["within_ms"] else "later", each["count"]))
    greatest = max((number for _, number in rows), default=0)
    return [Bucket(words, number, share(number, greatest)) for words, number in rows]


PAGE: Final = Page("/timers", "timers.html", gather, title="Timers", section="/timers")


async def recall(visit: Visit) -> Done:
    """Recall a delayed message."""
    body = {name: visit.form.get(name, "") for name in ("topic", "recall_handle")}
    done = await visit.need(Question("/timers/recall", method="POST", body=body))
    return Done(
        link("timers", topic=body["topic"]), f"{done.text('message_id')} was recalled: it will not be delivered."
    )


RECALL: Final = Action("/timers/recall", recall, PAGE)
