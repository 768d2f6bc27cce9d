"""All topics, and the form that makes one."""

from typing import Final

from popwheel_console.answer import Question
from popwheel_console.page import Action, Done, Page
from popwheel_console.pages.names import NameList, name_list
from popwheel_console.view.links import link
from popwheel_console.visit import Visit

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")


async def gather(visit: Visit) -> NameList:
    """Ask for a page of topics."""
    return await name_list(visit, "topics")


async def create(visit: Visit) -> Done:
    """Make a topic."""
    name, queues = visit.form.get("name", ""), visit.form.get("queues", "").strip()
    body: dict[str, object] = {"name": name, "type": visit.form.get("type", "")}
    if queues:
        # What is no number is the API's to refuse.
        body["queues"] = int(queues) if queues.isascii() and queues.isdigit() and len(queues) < 9 else queues
    await visit.need(Question("/topics", method="POST", body=body))
    return Done(link("topics", name), f"The topic {name} was created.")


PAGE: Final = Page("/topics", "topics.html", gather, title="Topics", section="/topics")
CREATE: Final = Action("/topics", create, PAGE)
