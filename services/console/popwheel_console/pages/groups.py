"""List of consumer groups with their lag, and the form that creates one."""

from typing import Final

from popwheel_console.page import Action, Done, Page
from popwheel_console.pages.definitions import make, said
from popwheel_console.pages.names import NameList, name_list
from popwheel_console.visit import Visit


async def gather(visit: Visit) -> NameList:
    """Fetch a page of groups."""
    return await name_list(visit, "groups")


async def create(visit: Visit) -> Done:
    """Create a group."""
    return await make(visit, "groups", {"fifo": visit.form.get("fifo") == "yes", **said(visit, ["max_attempts"])})


PAGE: Final = Page("/groups", "groups.html", gather, title="Groups", section="/groups")
CREATE: Final = Action("/groups", create, PAGE)
