"""Poison message with its error, and the forms that retry or drop it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit


@dataclass(frozen=True, slots=True)
class PoisonMessagePage:
    """Data of the page of a poison message.

    Args:
        entry: as the API shows it, with its message.
        is_dropping: whether the form that drops it is open.
    """

    entry: Mapping[str, Any]
    is_dropping: bool


async def gather(visit: Visit) -> PoisonMessagePage:
    """Fetch the poison message."""
    answer = await visit.need(Question(_path(visit)))
    return PoisonMessagePage(answer.body, visit.asked_for("do") == "drop" or "typed" in visit.form)


async def retry(visit: Visit) -> Done:
    """Retry a poison message at the step where it failed."""
    answer = await visit.need(Question(f"{_path(visit)}/retry", method="POST", body={}))
    entry_id = visit.path["id"]
    if not answer.body["changed"]:
        return Done(link("trouble"), f"{entry_id} was not in the quarantine any more.")
    return Done(link("trouble"), f"{entry_id} was retried and has left the quarantine.")


async def drop(visit: Visit) -> Done:
    """Drop a poison message, if its id was typed."""
    entry_id = visit.path["id"]
    if visit.form.get("typed") != entry_id:
        raise Refused(Answer(400, {}, "BAD_REQUEST", f"nothing was dropped: type {entry_id} to drop it"))
    answer = await visit.need(Question(f"{_path(visit)}/drop", method="POST", body={}))
    said = "was dropped" if answer.body["changed"] else "was not in the quarantine any more"
    return Done(link("trouble"), f"{entry_id} {said}.")


def _path(visit: Visit) -> str:
    return f"/quarantine/{part(visit.path['broker'])}/{part(visit.path['id'])}"


PAGE: Final = Page(
    "/trouble/{broker}/{id}", "poison_message.html", gather, title="{id}", section="/trouble", refresh_s=0
)
RETRY: Final = Action("/trouble/{broker}/{id}/retry", retry, PAGE)
DROP: Final = Action("/trouble/{broker}/{id}/drop", drop, PAGE)
