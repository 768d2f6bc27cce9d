"""Clients of all proxies: identity, topics, messages in flight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.page import Page
from popwheel_console.visit import Listed, Visit


@dataclass(frozen=True, slots=True)
class ClientsPage:
    """Data of the list of clients.

    Args:
        group, topic, prefix: that are asked for.
        after: where the page begins.
        clients: of this page; None: not answered yet.
        next: where the list goes on.
        unanswered: who could not be asked.
    """

    group: str
    topic: str
    prefix: str
    after: str
    clients: Sequence[Mapping[str, Any]] | None
    next: str
    unanswered: Sequence[str]


async def gather(visit: Visit) -> ClientsPage:
    """Fetch a page of clients."""
    asked = {name: visit.asked_for(name) for name in ("group", "topic", "prefix", "after")}
    found = await visit.together(clients=lambda: visit.listed(Question("/clients", asked), "clients"))
    listed: Listed | None = found["clients"]
    return ClientsPage(
        **asked,
        clients=None if listed is None else listed.rows,
        next="" if listed is None else listed.next,
        unanswered=[] if listed is None else listed.unanswered,
    )


PAGE: Final = Page("/clients", "clients.html", gather, title="Clients", section="/clients")
