"""Page of the console: an address, a template, and the function that gathers its data."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from popwheel_console.visit import Visit


@dataclass(frozen=True, slots=True)
class Crumb:
    """Step of a breadcrumb.

    Args:
        title: as it is shown.
        address: where it leads.
    """

    title: str
    address: str


@dataclass(frozen=True, slots=True)
class Page:
    """Page of the console.

    Args:
        path: its address, names in braces, as FastAPI has it.
        template: of this name in `templates`.
        gather: builds the view model, `view` in the template.
        title: in the navigation and above the page; with names of the path in braces.
        section: of the navigation that is marked while the page is shown: the path of its list.
        refresh_s: interval of its refresh; 0: none.
    """

    path: str
    template: str
    gather: Callable[[Visit], Awaitable[object]]
    title: str
    section: str
    refresh_s: int = 5

    def heading(self, names: Mapping[str, str]) -> str:
        """Return the title with the names of the address."""
        heading = self.title
        for name, value in names.items():
            heading = heading.replace("{" + name + "}", value)
        return heading


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a form's work: redirect of the browser.

    Args:
        address: of the next page.
        notice: a sentence for that page.
    """

    address: str
    notice: str


@dataclass(frozen=True, slots=True)
class Action:
    """Form that changes something.

    Args:
        path: that it is sent to, names in braces.
        work: makes the change; if it raises Refused, the form's page is shown with the refusal.
        page: with the form.
    """

    path: str
    work: Callable[[Visit], Awaitable[Done]]
    page: Page


@dataclass(frozen=True, slots=True)
class Stream:
    """Answer of the API that is streamed to the browser as it is.

    Args:
        path: its address, names in braces.
        of: path of the API, below `/api/v1`, that is requested first to check that the object exists.
        below: what follows that path.
        query: fields of the address that are passed to the API.
        media_type: of the answer.
    """

    path: str
    of: str
    below: str
    query: Sequence[str]
    media_type: str
