"""Form that resets a group's offsets in a topic: first a preview, then the change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit, silences

PLACES: Final = ("earliest", "latest", "time", "offset", "shift")
_DIGITS_MAX: Final = 15
_OF_VALUE: Final = {"time": "time_ms", "offset": "offset", "shift": "shift"}


@dataclass(frozen=True, slots=True)
class ResetPage:
    """Data of the page that resets a group.

    Args:
        group: whose offsets are reset.
        topics: that the group reads.
        topic, to, value: fields of the form.
        preview: result of a dry run; None before the first one, or if it is refused.
        refusal: why it is refused.
        unanswered: who could not be asked.
    """

    group: str
    topics: list[str]
    topic: str
    to: str
    value: str
    preview: Mapping[str, Any] | None
    refusal: Answer | None
    unanswered: list[str]


async def gather(visit: Visit) -> ResetPage:
    """Fetch the group's topics, and a dry run with the fields of the address."""
    name = visit.path["name"]
    asked = {key: visit.form.get(key) or visit.asked_for(key) for key in ("topic", "to", "value")}
    questions = {"progress": Question(f"/groups/{part(name)}/progress", {"limit": 200})}
    if asked["topic"]:
        questions["preview"] = _question(name, asked, is_dry=True)
    answers = await visit.ask(**questions)
    if not answers["progress"].is_good:
        raise Refused(answers["progress"])
    topics = {str(each["topic"]) for each in answers["progress"].rows("queues")}
    preview = answers.get("preview")
    is_good = preview is not None and preview.is_good
    return ResetPage(
        group=name,
        topics=sorted(each for each in topics if not each.startswith("%")),
        topic=asked["topic"],
        to=asked["to"] if asked["to"] in PLACES else PLACES[0],
        value=asked["value"],
        preview=preview.body if preview is not None and is_good else None,
        refusal=None if preview is None or is_good else preview,
        unanswered=[each for answer in answers.values() for each in silences(answer)],
    )


def _question(group: str, asked: Mapping[str, str], *, is_dry: bool, is_forced: bool = False) -> Question:
    body: dict[str, Any] = {"topic": asked["topic"], "to": asked["to"] or PLACES[0], "dry_run": is_dry}
    key, value = _OF_VALUE.get(asked["to"]), asked["value"].strip()
    if key is not None:
        digits = value.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX
        body[key] = int(value) if is_number else value
    if is_forced:
        body["force"] = True
    return Question(f"/groups/{part(group)}/reset", method="POST", body=body)


async def reset(visit: Visit) -> Done:
    """Reset the group."""
    name, form = visit.path["name"], visit.form
    asked = {key: form.get(key, "") for key in ("topic", "to", "value")}
    await visit.need(_question(name, asked, is_dry=False, is_forced=form.get("force") == "yes"))
    return Done(link("groups", name), f"The group {name} continues at another offset of {asked['topic']}.")


PAGE: Final = Page(
    "/groups/{name}/reset", "reset.html", gather, title="Reset offsets of {name}", section="/groups", refresh_s=0
)
RESET: Final = Action("/groups/{name}/reset", reset, PAGE)
