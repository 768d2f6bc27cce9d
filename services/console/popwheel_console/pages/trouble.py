"""Problems of now: what alerts would say, what to do, and the brokers' poison messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.page import Page
from popwheel_console.view.links import link
from popwheel_console.visit import ROWS, Visit, silences

_PROBLEMS_MAX: Final = 100
"""Limit of problems shown at once: critical ones come first."""
_ALERTS: Final = "Popwheel"
"""Problems whose ids begin so have an alert of Prometheus."""
_LOOK_AT: Final[Mapping[str, tuple[str, str]]] = {
    "PopwheelConsumersBehind": ("groups", ""),
    "PopwheelMessageNotAcknowledged": ("held", "group"),
    "PopwheelMessageGroupStuck": ("held", "broker"),
    "PopwheelTimersBehind": ("timers", "-"),
    "PopwheelTimersFull": ("timers", "-"),
    "PopwheelNoMaster": ("replicas", "at"),
    "PopwheelReplicaOutOfSync": ("replicas", "at"),
    "PopwheelCheckpointOld": ("replicas", "at"),
    "PopwheelNoProxy": ("clients", "-"),
    "ChangeLogFails": ("changes", "-"),
    "DeadLettersGrow": ("groups", "-"),
}
"""Page of each problem by its id, and what its object is there: a part of the path, a field, or nothing."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of the cluster.

    Args:
        problem: as the API shows it.
        state: of a colour.
        alert: whether its alert fires, in words; empty if it has none.
        address: of the page that shows it; empty if none does.
    """

    problem: Mapping[str, Any]
    state: str
    alert: str
    address: str


@dataclass(frozen=True, slots=True)
class TroublePage:
    """Data of the page with current problems.

    Args:
        problems: the worst first; None: not known.
        more: how many there are beside those.
        why: why they are not known; empty if they are, or are not answered yet.
        set_aside: the oldest poison messages; None: not known.
        poison_total: how many there are; None: not known.
        poison_why: as `why`, of those.
        unanswered: who could not be asked.
    """

    problems: Sequence[Problem] | None
    more: int
    why: str
    set_aside: Sequence[Mapping[str, Any]] | None
    poison_total: int | None
    poison_why: str
    unanswered: Sequence[str]


async def gather(visit: Visit) -> TroublePage:
    """Ask for both at once."""
    answers = await visit.ask(trouble=Question("/trouble"), quarantine=Question("/quarantine", {"limit": ROWS}))
    return trouble_page(answers["trouble"], answers["quarantine"])


def trouble_page(trouble: Answer, quarantine: Answer) -> TroublePage:
    """Return the page of these answers."""
    problems = trouble.rows("problems")
    return TroublePage(
        problems=[_problem(each) for each in problems[:_PROBLEMS_MAX]] if trouble.is_good else None,
        more=max(0, len(problems) - _PROBLEMS_MAX),
        why="" if trouble.is_pending else trouble.why,
        set_aside=quarantine.rows("entries") if quarantine.is_good else None,
        poison_total=quarantine.number("total"),
        poison_why="" if quarantine.is_pending else quarantine.why,
        unanswered=list(dict.fromkeys([*silences(trouble), *silences(quarantine)])),
    )


def _problem(told: Mapping[str, Any]) -> Problem:
    alert = ""
    if str(told["id"]).startswith(_ALERTS):
        alert = "its alert fires" if told["fires"] else "its alert does not fire yet"
    return Problem(told, "bad" if told["severity"] == "critical" else "warn", alert, address_of(told))


def address_of(told: Mapping[str, Any]) -> str:
    """The page that shows what is wrong; empty if none does."""
    name, field = _LOOK_AT.get(str(told["id"]), ("", ""))
    of = str(told["object"] or "")
    if not name:
        return ""
    if field == "-":
        return link(name)
    return link(name, **{field: of}) if field else link(name, of)


PAGE: Final = Page("/trouble", "trouble.html", gather, title="Trouble", section="/trouble")
