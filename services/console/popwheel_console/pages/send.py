"""The form that sends a message to a topic; a message that is there can be its draft, to be sent again, edited."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done, Page
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit

_FIELDS: Final = ("tag", "message_group", "lite_topic")
_NUMBERS: Final = ("priority",)
_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class SendPage:
    """What the page shows.

    Args:
        topic: as the API has it.
        draft: fields of the message that is to be sent again; empty ones of a new one.
    """

    topic: Mapping[str, Any]
    draft: Mapping[str, str]


async def gather(visit: Visit) -> SendPage:
    """Ask for the topic, and for the message that is to be sent again."""
    name, message_id = visit.path["name"], visit.asked_for("like")
    questions = {"topic": Question(f"/topics/{part(name)}")}
    if message_id:
        questions["message"] = Question(f"/messages/{part(message_id)}", {"topic": name})
    answers = await visit.ask(**questions)
    if not answers["topic"].is_good:
        raise Refused(answers["topic"])
    places = answers["message"].rows("places") if message_id else []
    return SendPage(answers["topic"].body, draft(places[0] if places else {}))


def draft(place: Mapping[str, Any]) -> dict[str, str]:
    """The fields of the form for a message that is there."""
    properties = place.get("properties") or {}
    return {
        "body": str(place.get("body", "")),
        "body_encoding": str(place.get("body_encoding", "text")),
        "tag": str(place.get("tag", "")),
        "keys": " ".join(map(str, place.get("keys") or ())),
        "properties": "\n".join(f"{name}={value}" for name, value in properties.items()),
    }


def wanted(form: Mapping[str, str]) -> dict[str, Any]:
    """What the API is asked to send.

    Raises:
        Refused: a property has no name, or no value.
    """
    body: dict[str, Any] = {"body": form.get("body", ""), "body_encoding": form.get("body_encoding", "text")}
    body["keys"] = form.get("keys", "").split()
    body |= {name: form[name] for name in _FIELDS if form.get(name)}
    body |= {name: _number(form[name]) for name in _NUMBERS if form.get(name)}
    if form.get("delay_s"):
        delay = _number(form["delay_s"])
        body["delay_ms"] = delay * 1_000 if isinstance(delay, int) else delay
    properties = {}
    for line in form.get("properties", "").splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Refused(Answer(400, {}, "BAD_REQUEST", f"a line of properties must be NAME=VALUE, not {line[:80]!r}"))
        properties[name.strip()] = value
    body["properties"] = properties
    return body


def _number(text: str) -> int | str:
    """A number; what is none is the API's to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else text


async def send(visit: Visit) -> Done:
    """Send it."""
    name = visit.path["name"]
    sent = await visit.need(Question(f"/topics/{part(name)}/messages", method="POST", body=wanted(visit.form)))
    return Done(link("messages", name, sent.text("message_id")), f"The message {sent.text('message_id')} was sent.")


PAGE: Final = Page("/topics/{name}/send", "send.html", gather, title="Send to {name}", section="/topics", refresh_s=0)
SEND: Final = Action("/topics/{name}/messages", send, PAGE)
