"""Broker groups and their replicas: masters, sync-state sets, lags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import PENDING, Answer, Question, Row
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit


@dataclass(frozen=True, slots=True)
class ReplicasPage:
    """Data of the page of one broker group's replicas.

    Args:
        at: the chosen group; empty: all.
        groups: as the API has them.
        changes: of the chosen group, the latest first; None: not known, or no group is chosen.
        since_ms: since when changes are known.
        drill: the master that a drill would kill; None if the form is not open, or it is not possible.
        drill_why: why not.
    """

    at: str
    groups: Sequence[Mapping[str, Any]]
    changes: Sequence[Mapping[str, Any]] | None
    since_ms: int | None
    drill: Mapping[str, Any] | None
    drill_why: str


async def gather(visit: Visit) -> ReplicasPage:
    """Fetch all groups, and the changes of the chosen one."""
    at = visit.asked_for("at")
    questions = {"groups": Question("/brokers")}
    if at:
        questions["history"] = Question(f"/brokers/{part(at)}/history")
        if visit.asked_for("do") == "drill":
            questions["drill"] = _kill(at, dry_run=True)
    answers = await visit.ask(**questions)
    if not answers["groups"].is_good:
        raise Refused(answers["groups"])
    groups, history = answers["groups"].rows("groups"), answers.get("history", PENDING)
    drill = answers.get("drill")
    return ReplicasPage(
        at,
        [each for each in groups if at in ("", each["name"])],
        with_intervals(history.rows("changes")) if history.is_good else None,
        history.number("since_ms"),
        drill.body if drill is not None and drill.is_good else None,
        "" if drill is None else drill.why,
    )


def with_intervals(changes: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return changes, the latest first, each with the time since the previous one."""
    befores = [None, *(each["time_ms"] for each in changes)]
    found = [
        Row({**each, "after_ms": None if before is None else each["time_ms"] - before})
        for each, before in zip(changes, befores, strict=False)
    ]
    return found[::-1]


PAGE: Final = Page("/replicas", "replicas.html", gather, title="Replicas", section="/replicas", refresh_s=2)


async def switchover(visit: Visit) -> Done:
    """Transfer leadership to the chosen replica."""
    group, to = visit.path["name"], visit.form.get("to", "")
    body = {"to": int(to)} if to.isascii() and to.isdigit() and len(to) < 9 else {}
    done = await visit.need(Question(f"/brokers/{part(group)}/switchover", method="POST", body=body))
    return Done(link("replicas", at=group), f"Replica {done.body['master']} is master of {group} now.")


SWITCHOVER: Final = Action("/replicas/{name}/switchover", switchover, PAGE)


async def drill(visit: Visit) -> Done:
    """Kill the master of a group whose name was typed."""
    group = visit.path["name"]
    if visit.form.get("typed") != group:
        raise Refused(Answer(400, {}, "BAD_REQUEST", f"nothing was killed: type {group} to kill its master"))
    killed = await visit.need(_kill(group, dry_run=False))
    return Done(link("replicas", at=group), f"Replica {killed.body['replica']} of {group} was killed.")


def _kill(group: str, *, dry_run: bool) -> Question:
    return Question(f"/brokers/{part(group)}/kill-master", {"dry_run": "true"} if dry_run else {}, method="POST")


DRILL: Final = Action("/replicas/{name}/drill", drill, PAGE)
