"""All consumer groups: how far behind each is."""

from typing import Final

from popwheel_console.page import Page
from popwheel_console.pages.names import NameList, name_list
from popwheel_console.visit import Visit


async def gather(visit: Visit) -> NameList:
    """Ask for a page of groups."""
    return await name_list(visit, "groups")


PAGE: Final = Page("/groups", "groups.html", gather, title="Groups", section="/groups")
