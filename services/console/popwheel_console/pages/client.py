"""Page of a client, at every proxy that knows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Question
from popwheel_console.api_client import part
from popwheel_console.page import Page
from popwheel_console.visit import Visit, silences


@dataclass(frozen=True, slots=True)
class ClientPage:
    """Data of the page of one client.

    Args:
        id: of the client.
        at: its data at each proxy.
        messages: its messages in flight, as far as proxies know.
        unanswered: who could not be asked.
    """

    id: str
    at: Sequence[Mapping[str, Any]]
    messages: Sequence[Mapping[str, Any]]
    unanswered: Sequence[str]


async def gather(visit: Visit) -> ClientPage:
    """Fetch the client from all proxies."""
    client_id = visit.path["id"]
    answer = await visit.need(Question(f"/clients/{part(client_id)}"))
    return ClientPage(client_id, answer.rows("at"), answer.rows("messages"), silences(answer))


PAGE: Final = Page("/clients/{id:path}", "client.html", gather, title="{id}", section="/clients")
