"""List of topics, and the form that creates one."""

from typing import Final

from popwheel_console.page import Action, Done, Page
from popwheel_console.pages.definitions import make, said
from popwheel_console.pages.names import NameList, name_list
from popwheel_console.visit import Visit

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")


async def gather(visit: Visit) -> NameList:
    """Fetch a page of topics."""
    return await name_list(visit, "topics")


async def create(visit: Visit) -> Done:
    """Create a topic."""
    return await make(visit, "topics", {"type": visit.form.get("type", ""), **said(visit, ["queues"])})


PAGE: Final = Page("/topics", "topics.html", gather, title="Topics", section="/topics")
CREATE: Final = Action("/topics", create, PAGE)
