"""Frame of every page: the navigation, the breadcrumb, and how the cluster is reached (pure)."""

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
"""The navigation: a heading, and the pages below it. One that is not there is left out."""


@dataclass(frozen=True, slots=True)
class NavigationLink:
    """An entry of the navigation.

    Args:
        title: as it is shown.
        address: of the page.
        is_current: the page that is shown is this one, or below it.
    """

    title: str
    address: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """Frame as the templates of all pages know it, as `frame`.

    Args:
        heading: above the page.
        crumbs: the way to the page, the page itself left out.
        sections: of the navigation.
        address: of this page with its query, for coming back to it.
        refresh_s: how often it is asked for anew; 0: not at all.
        now_ms: when it was made.
        cluster: the cluster's name; empty if it is not known.
        trouble: why the cluster cannot be asked; empty if it can.
        leader: which other controller was asked, as it leads; empty if this one does.
        theme: `light`, `dark`, or empty for what the system has.
        version: of the files for browsers.
        user: who uses the console; empty where nobody logs in.
        csrf: what forms send.
        notice: a sentence about what was done.
        is_live: only the part that is refreshed is made.
        may_operate, may_administer: what the user's role allows: other forms are not shown.
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
        """The address at which the page waits longer for what is slow."""
        return f"{self.address}{'&' if '?' in self.address else '?'}wait=1"

    @property
    def layout(self) -> str:
        """The template that pages extend."""
        return "live.html" if self.is_live else "base.html"


def navigation(pages: Mapping[str, Page], section: str) -> list[tuple[str, list[NavigationLink]]]:
    """The sections of the navigation.

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
    """The way to a page: those whose addresses its address begins with."""
    steps = page.path.strip("/").split("/")[:-1]
    found: list[Crumb] = []
    for number in range(1, len(steps) + 1):
        path = "/" + "/".join(steps[:number])
        above = pages.get(path)
        if above is not None:
            found.append(Crumb(above.heading(names), filled(path, names)))
    return found


def filled(path: str, names: Mapping[str, str]) -> str:
    """An address with names in place of its braces, each quoted."""
    for name, value in names.items():
        for hole in (f"{{{name}:path}}", f"{{{name}}}"):
            path = path.replace(hole, quote(value, safe=""))
    return path


def trouble_of(cluster: Answer) -> str:
    """Return why the cluster cannot be asked; empty if it can."""
    if cluster.is_good:
        return ""
    return "the controller has not answered yet" if cluster.is_pending else cluster.why
