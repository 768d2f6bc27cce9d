"""A page in Chromium, watched: what it asks of whom, what its console says, what axe finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

AXE: Final = files("axe_playwright_python").joinpath("axe.min.js")
"""The rules of accessibility, as a package of PyPI carries them. Its own wrapper is not needed."""

GRAVE: Final = frozenset({"serious", "critical"})

_LOADED: Final = "Failed to load resource: the server responded with a status of"
"""Chromium says so of each answer that is an error; a test of errors expects them."""


@dataclass(slots=True)
class Watched:
    """A tab, and all that went wrong in it.

    Args:
        page: the tab.
        url: of the console, without a slash at its end.
        said: by the browser's console, and errors of scripts.
        elsewhere: addresses of other hosts that were asked.
    """

    page: Page
    url: str
    said: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def go(self, address: str, *, status: int = 200) -> None:
        """Open an address of the console, and see that it answers so.

        Raises:
            AssertionError: it answers otherwise.
        """
        answer = self.page.goto(self.url + address, wait_until="load")
        assert answer is not None and answer.status == status, f"{address}: {answer and answer.status}"

    def fresh(self) -> None:
        """Have the page refresh itself at once, as it does when one comes back to its tab."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def is_clean(self, *, errors_expected: bool = False) -> None:
        """See that no other host was asked and that the console is empty.

        Args:
            errors_expected: answers that are errors are meant to be so.
        """
        said = [line for line in self.said if not (errors_expected and line.startswith(_LOADED))]
        assert not said, f"{self.page.url}: the browser's console is not empty: {said}"
        assert not self.elsewhere, f"{self.page.url} asks other hosts: {self.elsewhere}"

    def violations(self) -> list[str]:
        """What axe finds that is serious or critical, each with the element."""
        self.page.evaluate(AXE.read_text())
        found: list[dict[str, Any]] = self.page.evaluate(
            "async () => (await axe.run({ resultTypes: ['violations'] })).violations"
        )
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]}"
            for each in found
            if each["impact"] in GRAVE
            for node in each["nodes"]
        ]

    def rows(self, heading: str) -> dict[str, dict[str, str]]:
        """The table below a heading: by the first cell, its cells by the heading of their columns."""
        reported: list[list[str]] = self.page.evaluate(
            """heading => {
                const panel = [...document.querySelectorAll("section")].find(
                    each => each.querySelector("h2")?.textContent.trim().startsWith(heading));
                return [...(panel?.querySelectorAll("tr") ?? [])].map(
                    row => [...row.cells].map(cell => cell.textContent.trim()));
            }""",
            heading,
        )
        names = reported[0] if reported else []
        return {row[0]: dict(zip(names, row, strict=False)) for row in reported[1:]}

    def figures(self) -> dict[str, str]:
        """The numbers at a glance, by their names."""
        reported: dict[str, str] = self.page.evaluate(
            """() => {
                const text = (each, part) => each.querySelector(part).textContent.trim();
                const figures = [...document.querySelectorAll(".figure")];
                return Object.fromEntries(figures.map(each => [text(each, "dt"), text(each, ".value")]));
            }"""
        )
        return reported


@contextmanager
def watched(browser: Browser, url: str, **context: Any) -> Iterator[Watched]:
    """Open a tab of its own that is watched.

    Args:
        browser: it is one of.
        url: of the console.
        context: how the tab is, such as `viewport`.
    """
    opened = browser.new_context(**context)
    opened.set_default_timeout(15_000)
    tab = Watched(opened.new_page(), url)

    def note(message: ConsoleMessage) -> None:
        tab.said.append(message.text)

    def look(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != url:
            tab.elsewhere.append(request.url)

    def refuse(dialog: Dialog) -> None:
        tab.said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    tab.page.on("console", note)
    tab.page.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.page.on("dialog", refuse)
    tab.page.on("request", look)
    try:
        yield tab
    finally:
        opened.close()
