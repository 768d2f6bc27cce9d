"""Current problems with advice, and the brokers' poison messages."""

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
"""Prefix of problems that have a Prometheus alert."""
_PAGES_OF: Final[Mapping[str, tuple[str, str]]] = {
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
"""Page for each problem by its id, and the use of its object there: a part of the path, a field, or none."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of the cluster.

    Args:
        problem: as the API shows it.
        state: of a colour.
        alert: whether its alert fires, in words; empty if it has none.
        address: of a page about it; may be empty.
    """

    problem: Mapping[str, Any]
    state: str
    alert: str
    address: str


@dataclass(frozen=True, slots=True)
class TroublePage:
    """Data of the page with current problems.

    Args:
        problems: critical ones first; None: not known.
        more: number of further ones.
        why: why they are not known; empty if they are, or the answer is late.
        set_aside: the oldest poison messages; None: not known.
        poison_total: number of all of them; None: not known.
        poison_why: likewise for the poison messages.
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
    """Fetch both concurrently."""
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


def _problem(problem: Mapping[str, Any]) -> Problem:
    alert = ""
    if str(problem["id"]).startswith(_ALERTS):
        alert = "its alert fires" if problem["fires"] else "its alert does not fire yet"
    return Problem(problem, "bad" if problem["severity"] == "critical" else "warn", alert, address_of(problem))


def address_of(problem: Mapping[str, Any]) -> str:
    """Return the address of a page about a problem; may be empty."""
    name, field = _PAGES_OF.get(str(problem["id"]), ("", ""))
    of = str(problem["object"] or "")
    if not name:
        return ""
    if field == "-":
        return link(name)
    return link(name, **{field: of}) if field else link(name, of)


PAGE: Final = Page("/trouble", "trouble.html", gather, title="Trouble", section="/trouble")
