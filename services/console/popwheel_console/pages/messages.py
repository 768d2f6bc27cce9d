"""Search for a message by its id, or for messages by a key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.page import Page
from popwheel_console.view.links import link
from popwheel_console.visit import Elsewhere, Listed, Visit


@dataclass(frozen=True, slots=True)
class MessagesPage:
    """Data of the page that finds messages.

    Args:
        topic, key, message_id: that are asked for.
        was_asked: whether there is a search.
        messages: that were found; None: not answered yet.
        looked_through: number of scanned messages; None: not known.
        next: where the list goes on.
        topics: some names, for the form.
        unanswered: who could not be asked.
    """

    topic: str
    key: str
    message_id: str
    was_asked: bool
    messages: Sequence[Mapping[str, Any]] | None
    looked_through: int | None
    next: str
    topics: Sequence[str]
    unanswered: Sequence[str]


async def gather(visit: Visit) -> MessagesPage:
    """Find messages with a key."""
    topic, key, message_id = (visit.asked_for(name) for name in ("topic", "key", "id"))
    if topic and message_id:
        raise Elsewhere(link("messages", topic, message_id.strip()))
    question = Question("/messages", {"topic": topic, "key": key, "after": visit.asked_for("after")})
    was_asked = bool(topic and key)
    found = await visit.together(
        topics=Question("/topics", {"limit": 100}),
        **({"messages": lambda: visit.listed(question, "messages")} if was_asked else {}),
    )
    listed: Listed | None = found.get("messages")
    return MessagesPage(
        topic=topic,
        key=key,
        message_id=message_id,
        was_asked=was_asked,
        messages=None if listed is None else listed.rows,
        looked_through=None if listed is None else listed.first.number("looked_through"),
        next="" if listed is None else listed.next,
        topics=[str(each["name"]) for each in found["topics"].rows("topics")],
        unanswered=[] if listed is None else listed.unanswered,
    )


PAGE: Final = Page("/messages", "messages.html", gather, title="Messages", section="/messages", refresh_s=0)
