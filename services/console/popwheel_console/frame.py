"""Frame of every page: navigation, breadcrumb, and the state of the connection to the cluster (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from popwheel_console.answer import Answer
from popwheel_console.page import Crumb, Page

THEMES: Final = ("light", "dark")
SECTIONS: Final[Sequence[tuple[str, Sequence[str]]]] = (
    ("", ("/",)),
    ("Messages", ("/topics", "/groups", "/held", "/messages", "/timers")),
    ("Cluster", ("/clients", "/replicas", "/polls", "/trouble", "/balance", "/changes", "/settings")),
)
"""Navigation: headings with the pages below them. Missing pages are left out."""


@dataclass(frozen=True, slots=True)
class NavigationLink:
    """Entry of the navigation.

    Args:
        title: as it is shown.
        address: of the page.
        is_current: whether the shown page is this one, or below it.
    """

    title: str
    address: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame as the templates of all pages know it, as `frame`.

    Args:
        heading: above the page.
        crumbs: path to the page, without itself.
        sections: of the navigation.
        address: of this page with its query, to return to it.
        refresh_s: interval of its refresh; 0: none.
        now_ms: time of the page.
        cluster: the cluster's name; empty if it is not known.
        trouble: why the cluster cannot be asked; empty if it can.
        leader: the other controller that leads; empty if this one does.
        theme: `light`, `dark`, or empty for the system's.
        version: of the static files.
        user: name of the user; empty without logins.
        csrf: token that forms send.
        notice: a sentence about the last action.
        is_live: whether only the refreshed part is rendered.
        may_operate, may_administer: rights of the user; other forms are hidden.
    """

    heading: str
    crumbs: Sequence[Crumb]
    sections: Sequence[tuple[str, Sequence[NavigationLink]]]
    address: str
    refresh_s: int
    now_ms: int
    cluster: str
    trouble: str
    leader: str
    theme: str
    version: str
    user: str
    csrf: str
    notice: str
    is_live: bool
    may_operate: bool = True
    may_administer: bool = True

    @property
    def patient_address(self) -> str:
        """Address of the page with a longer wait for slow answers."""
        return f"{self.address}{'&' if '?' in self.address else '?'}wait=1"

    @property
    def layout(self) -> str:
        """Template that pages extend."""
        return "live.html" if self.is_live else "base.html"


def navigation(pages: Mapping[str, Page], section: str) -> list[tuple[str, list[NavigationLink]]]:
    """Return the sections of the navigation.

    Args:
        pages: all, by their addresses.
        section: the one that is marked.
    """
    return [
        (heading, links)
        for heading, paths in SECTIONS
        if (links := [NavigationLink(pages[path].title, path, path == section) for path in paths if path in pages])
    ]


def crumbs(pages: Mapping[str, Page], page: Page, names: Mapping[str, str]) -> list[Crumb]:
    """Return the path to a page: the pages whose addresses are prefixes of its own."""
    steps = page.path.strip("/").split("/")[:-1]
    found: list[Crumb] = []
    for number in range(1, len(steps) + 1):
        path = "/" + "/".join(steps[:number])
        above = pages.get(path)
        if above is not None:
            found.append(Crumb(above.heading(names), filled(path, names)))
    return found


def filled(path: str, names: Mapping[str, str]) -> str:
    """Return an address with quoted names in place of its braces."""
    for name, value in names.items():
        for hole in (f"{{{name}:path}}", f"{{{name}}}"):
            path = path.replace(hole, quote(value, safe=""))
    return path


def trouble_of(cluster: Answer) -> str:
    """Return why the cluster cannot be asked; empty if it can."""
    if cluster.is_good:
        return ""
    return "the controller has not answered yet" if cluster.is_pending else cluster.why
