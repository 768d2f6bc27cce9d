"""Page of the console: an address, a template, and the function that gathers its data."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from popwheel_console.visit import Visit


@dataclass(frozen=True, slots=True)
class Crumb:
    """A step of the way to a page.

    Args:
        title: as it is shown.
        address: where it leads.
    """

    title: str
    address: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Args:
        path: its address, names in braces, as FastAPI has it.
        template: of this name in `templates`.
        gather: makes the view model that the template shows as `view`.
        title: in the navigation and above the page; with names of the path in braces.
        section: of the navigation that is marked while the page is shown: the path of its list.
        refresh_s: how often a browser asks for it anew; 0: not at all.
    """

    path: str
    template: str
    gather: Callable[[Visit], Awaitable[object]]
    title: str
    section: str
    refresh_s: int = 5

    def heading(self, names: Mapping[str, str]) -> str:
        """The title with the names that the address has."""
        heading = self.title
        for name, value in names.items():
            heading = heading.replace("{" + name + "}", value)
        return heading


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a form's work: where the browser goes next.

    Args:
        address: of the page that is shown next.
        notice: a sentence for it.
    """

    address: str
    notice: str


@dataclass(frozen=True, slots=True)
class Action:
    """A form that changes something.

    Args:
        path: that it is sent to, names in braces.
        work: does it by the API; raises Refused, and then the form's page is shown again with the refusal.
        page: that has the form.
    """

    path: str
    work: Callable[[Visit], Awaitable[Done]]
    page: Page


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer of the API that a browser gets as it comes: it is not rendered.

    Args:
        path: its address, names in braces.
        of: path of the API, below `/api/v1`, that is asked first whether there is such a thing.
        below: what follows that path.
        query: fields of the address that are passed on.
        media_type: of the answer.
    """

    path: str
    of: str
    below: str
    query: Sequence[str]
    media_type: str
