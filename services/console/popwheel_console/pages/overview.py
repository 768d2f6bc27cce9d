"""Overview: lag, messages in flight, delayed messages, problems, and processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.page import Page
from popwheel_console.pages.trouble import address_of
from popwheel_console.view.drawings import Spark, spark
from popwheel_console.view.links import link
from popwheel_console.view.words import duration, plural
from popwheel_console.visit import Visit, silences

_TROUBLES_MAX: Final = 8
"""Limit of problems shown; the page of problems has all."""
_LATE_MS: Final = 1_000
"""Delay above which a timer counts as late."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Number on the overview.

    Args:
        name: of the number.
        value: None: not known.
        detail: a few words below it.
        address: of the page that shows more.
        state: `bad`, `warn`, or empty.
    """

    name: str
    value: int | None
    detail: str = ""
    address: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Horizon:
    """Number of delayed messages due within a time.

    Args:
        words: the time.
        count: number of messages.
    """

    words: str
    count: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Problem that needs an operator.

    Args:
        what: a sentence.
        what_to_do: another one; may be empty.
        address: of the page about it; may be empty.
        state: `bad` or `warn`.
    """

    what: str
    what_to_do: str
    address: str
    state: str


@dataclass(frozen=True, slots=True)
class Trend:
    """Line of the last hour.

    Args:
        name: what it shows.
        now: the latest value, in words.
        unit: of it.
        drawing: the line.
    """

    name: str
    now: float | None
    unit: str
    drawing: Spark


@dataclass(frozen=True, slots=True)
class Overview:
    """Data of the start page.

    Args:
        is_empty: there is no topic and no group yet.
        troubles: current problems.
        figures: the numbers.
        trends: of the last hour; none if they are not known.
        groups: those with the greatest lag; None: not known.
        groups_why: why not.
        horizons: of delayed messages; None: not known.
        broker_groups, processes: of the cluster; None: not known.
        processes_why: why not.
        unanswered: who could not be asked, a sentence each.
        pending: whether an answer is missing.
    """

    is_empty: bool
    troubles: Sequence[Trouble]
    figures: Sequence[Figure]
    trends: Sequence[Trend]
    groups: Sequence[Mapping[str, Any]] | None
    groups_why: str
    horizons: Sequence[Horizon] | None
    broker_groups: Sequence[Mapping[str, Any]] | None
    processes: Sequence[Mapping[str, Any]] | None
    processes_why: str
    unanswered: Sequence[str]
    pending: bool


async def gather(visit: Visit) -> Overview:
    """Fetch all parts concurrently."""
    answers = await visit.ask(
        cluster=Question("/cluster"),
        activity=Question("/activity/overview"),
        history=Question("/activity/history", {"kind": "cluster"}),
        status=Question("/cluster/status"),
        timers=Question("/timers/stats"),
        quarantine=Question("/quarantine", {"limit": 1}),
        trouble=Question("/trouble"),
    )
    return overview(answers)


def overview(answers: Mapping[str, Answer]) -> Overview:
    """Return the page of these answers."""
    cluster, activity, status, timers = (answers[name] for name in ("cluster", "activity", "status", "timers"))
    unanswered = [each for answer in answers.values() for each in silences(answer)]
    return Overview(
        is_empty=cluster.number("topics") == 0 and cluster.number("groups") == 0,
        troubles=_troubles(answers),
        figures=_figures(answers),
        trends=_trends(answers["history"]),
        groups=activity.rows("worst_groups") if activity.is_good else None,
        groups_why=activity.why,
        horizons=_horizons(timers) if timers.is_good else None,
        broker_groups=status.rows("broker_groups") if status.is_good else None,
        processes=status.rows("processes") if status.is_good else None,
        processes_why=status.why,
        unanswered=list(dict.fromkeys(unanswered)),
        pending=any(answer.is_pending for answer in answers.values()),
    )


def _figures(answers: Mapping[str, Answer]) -> list[Figure]:
    cluster, activity, timers, quarantine = (answers[name] for name in ("cluster", "activity", "timers", "quarantine"))
    dead, poisoned = activity.number("dead_letters"), activity.number("poisoned")
    poison = quarantine.number("total") if poisoned is None else poisoned
    behind = max((each.get("behind_ms") or 0 for each in timers.rows("brokers")), default=0)
    lag_ms = activity.number("lag_ms")
    delayed = timers.number("pending")
    return [
        Figure("Waiting", activity.number("lag"), f"oldest {duration(lag_ms)}" * (lag_ms is not None), link("groups")),
        Figure("In flight", activity.number("held"), "not acknowledged", link("held")),
        Figure(
            "Delayed",
            activity.number("delayed") if delayed is None else delayed,
            f"behind by {duration(behind)}" if behind > _LATE_MS else "none late" if timers.is_good else "",
            link("timers"),
            "warn" if behind > _LATE_MS else "",
        ),
        Figure("Dead letters", dead, "", link("groups"), "warn" if dead else ""),
        Figure("Poison messages", poison, "in quarantine", link("trouble"), "bad" if poison else ""),
        Figure("Stored", activity.number("stored"), "in all queues", link("topics")),
        Figure("Topics", cluster.number("topics"), "", link("topics")),
        Figure("Groups", cluster.number("groups"), "", link("groups")),
    ]


def _troubles(answers: Mapping[str, Answer]) -> list[Trouble]:
    """Return the problems that the API lists; without such a list, those that its other answers show."""
    trouble, status, quarantine = (answers[name] for name in ("trouble", "status", "quarantine"))
    if trouble.is_good:
        problems = trouble.rows("problems")
        shown = [
            Trouble(
                str(each["what"]),
                str(each["what_to_do"]),
                address_of(each) or link("trouble"),
                "bad" if each["severity"] == "critical" else "warn",
            )
            for each in problems[:_TROUBLES_MAX]
        ]
        if others := len(problems) - len(shown):
            shown.append(Trouble(f"{plural(others, 'problem')} more", "", link("trouble"), "warn"))
        return shown
    found = [
        Trouble(f"{each.get('name')} has no master: {each.get('trouble')}", "", link("replicas"), "bad")
        for each in status.rows("broker_groups")
        if each.get("trouble")
    ]
    found += [
        Trouble(f"{each.get('kind')} {each.get('name')} is not ready: {each.get('reason')}", "", "", "bad")
        for each in status.rows("processes")
        if not each.get("ready")
    ]
    if total := quarantine.number("total"):
        found.append(
            Trouble(f"{plural(total, 'poison message')} in quarantine", "Retry or drop each.", link("trouble"), "bad")
        )
    return found


def _trends(history: Answer) -> list[Trend]:
    if not history.is_good:
        return []
    lines = (("In", "in_rate", "/s"), ("Out", "out_rate", "/s"), ("Waiting", "lag", ""), ("In flight", "held", ""))
    found = []
    for name, key, unit in lines:
        values = history.body.get(key)
        drawing = spark(values if isinstance(values, list) else [])
        found.append(Trend(name, drawing.last, unit, drawing))
    return found


def _horizons(timers: Answer) -> list[Horizon]:
    return [
        Horizon(f"within {duration(each['within_ms'])}" if each["within_ms"] else "later", each["count"])
        for each in timers.rows("horizons")
    ]


PAGE: Final = Page("/", "overview.html", gather, title="Overview", section="/")
