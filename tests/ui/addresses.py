"""All pages of the console, each with something on it."""

from typing import Final

from popwheel_console.catalog import PAGES
from popwheel_console.view.links import link
from tests.ui.known import Known

EXAMPLES: Final = {
    "/topics/{name}": ("Orders", "Hostile", "Reminders"),
    "/groups/{name}": ("billing", "fussy", "steps"),
    "/topics/{name}/send": ("Orders", "Chats"),
    "/topics/{name}/messages": ("Orders", "Hostile"),
    "/topics/{name}/tail": ("Orders",),
    "/groups/{name}/reset": ("billing",),
    "/groups/{name}/retries": ("billing", "fussy"),
    "/groups/{name}/dead-letters": ("fussy", "billing"),
}
"""Path of a page -> names that stand in it."""

WITHOUT: Final = frozenset({"/trouble/{broker}/{id}"})
"""Pages about what a cluster that is well does not have: a message that was quarantined."""


def addresses(known: Known) -> list[str]:
    """An address or several of each page of the catalog.

    Args:
        known: what there is to show.

    Raises:
        AssertionError: a page has been added, and nobody has said what to show on it.
    """
    found = []
    for page in PAGES:
        if "{" not in page.path:
            found.append(page.path)
        elif page.path in EXAMPLES:
            found += [page.path.replace("{name}", name) for name in EXAMPLES[page.path]]
        elif page.section == "/messages":
            # The first is a script and the last a long one; a test of their own looks at the others.
            of_hostile = (link("messages", "Hostile", known.hostile[place]) for place in (0, -1))
            found += [link("messages", "Orders", known.held["billing"][0]), *of_hostile]
        elif page.section == "/clients":
            found.append(link("clients", known.holders["billing"]))
        elif page.path not in WITHOUT:
            raise AssertionError(f"say in tests/ui/addresses.py what {page.path} is to show")
    filtered = [
        link("held", group="billing"),
        link("held", topic="Hostile"),
        link("timers", topic="Reminders"),
        link("balance", group="billing", topic="Orders"),
        link("messages", topic="Orders", key="order-1"),
    ]
    return [*found, *filtered]
