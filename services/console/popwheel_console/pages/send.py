"""Form that sends a message to a topic; an existing message can be its draft."""

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
    """Data of the page that sends a message.

    Args:
        topic: as the API has it.
        draft: fields of the message that is to be sent again; none of a new one.
        like: its id; empty of a new one.
        lack: why the draft is incomplete; empty if it is not.
    """

    topic: Mapping[str, Any]
    draft: Mapping[str, str]
    like: str
    lack: str


async def gather(visit: Visit) -> SendPage:
    """Fetch the topic, and the message to send again."""
    name, message_id = visit.path["name"], visit.asked_for("like")
    questions = {"topic": Question(f"/topics/{part(name)}")}
    if message_id:
        questions["message"] = Question(f"/messages/{part(message_id)}", {"topic": name})
    answers = await visit.ask(**questions)
    if not answers["topic"].is_good:
        raise Refused(answers["topic"])
    if not message_id:
        return SendPage(answers["topic"].body, draft({}), "", "")
    places = answers["message"].rows("places")
    if not places:
        return SendPage(answers["topic"].body, draft({}), message_id, answers["message"].why or "it was not found")
    return SendPage(answers["topic"].body, draft(places[0]), message_id, lack_of(places[0]))


def lack_of(place: Mapping[str, Any]) -> str:
    """Return why a message cannot be sent again as it is; empty if it can."""
    if place.get("hidden"):
        return "your token may not see its body and properties"
    if not _is_whole(place):
        return f"its body has {place['body_bytes']:,} bytes, more than are shown"
    return ""


def _is_whole(place: Mapping[str, Any]) -> bool:
    body = str(place.get("body", ""))
    is_base64 = place.get("body_encoding") == "base64"
    shown = len(body) * 3 // 4 - body.count("=") if is_base64 else len(body.encode())
    return bool(shown == place.get("body_bytes", shown))


def draft(place: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of the form for an existing message; a truncated body is left out."""
    properties = place.get("properties") or {}
    priority = place.get("priority")
    return {
        "body": str(place.get("body", "")) if _is_whole(place) else "",
        "body_encoding": str(place.get("body_encoding", "text")),
        "message_group": str(place.get("message_group") or ""),
        "lite_topic": str(place.get("lite_topic") or ""),
        "priority": "" if priority is None else str(priority),
        "tag": str(place.get("tag", "")),
        "keys": " ".join(map(str, place.get("keys") or ())),
        "properties": "\n".join(f"{name}={value}" for name, value in properties.items()),
    }


def wanted(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the message for the API.

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
