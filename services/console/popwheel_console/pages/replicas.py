"""Broker groups and their replicas: who leads, who has everything, who is behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.links import link
from popwheel_console.visit import Visit


@dataclass(frozen=True, slots=True)
class ReplicasPage:
    """What the page shows.

    Args:
        at: the one group that is asked for; empty: all.
        groups: as the API has them.
    """

    at: str
    groups: Sequence[Mapping[str, Any]]


async def gather(visit: Visit) -> ReplicasPage:
    """Ask for all groups."""
    at = visit.asked_for("at")
    groups = (await visit.need(Question("/brokers"))).rows("groups")
    return ReplicasPage(at, [each for each in groups if at in ("", each["name"])])


PAGE: Final = Page("/replicas", "replicas.html", gather, title="Replicas", section="/replicas", refresh_s=2)


async def switchover(visit: Visit) -> Done:
    """Have a master pass its role on, to the replica that was chosen."""
    group, to = visit.path["name"], visit.form.get("to", "")
    body = {"to": int(to)} if to.isascii() and to.isdigit() and len(to) < 9 else {}
    done = await visit.need(Question(f"/brokers/{part(group)}/switchover", method="POST", body=body))
    return Done(link("replicas", at=group), f"Replica {done.body['master']} is master of {group} now.")


SWITCHOVER: Final = Action("/replicas/{name}/switchover", switchover, PAGE)
