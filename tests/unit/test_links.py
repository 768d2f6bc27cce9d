"""Links lead somewhere: from page to page, and from code, charts and alerts to pages of the documentation."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.source import ROOT
from tests.unit.test_documents import pages

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^\s*```.*?^\s*```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<![\w/.-])docs/([\w/.-]+\.md)(?:#([\w-]+))?")
"""A page as code names it: `docs/operate/alerts.md#popwheelnomaster`."""

FOLDERS = ("services", "spark", "tests", "tools", "bench", "demo", "examples", "helm", "proto", "packaging", ".github")
ENDINGS = {".py", ".proto", ".yaml", ".yml", ".toml", ".txt", ".json", ".tpl", ".service", ".js", ".html", ""}


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return frozenset(found)


def leads_nowhere(page: Path, anchor: str) -> bool:
    """Whether there is no such page, or no such heading on it."""
    return not page.exists() or bool(anchor and page.suffix == ".md" and anchor not in anchors(page))


def naming() -> Iterator[Path]:
    """All files but Markdown that may name a page."""
    yield from (path for path in ROOT.glob("*") if path.is_file() and path.suffix in ENDINGS)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in ENDINGS and path.is_file() and path != Path(__file__).resolve():
                yield path


def test_links_of_pages_lead_to_pages_and_headings_that_are_there() -> None:
    broken = []
    for page in pages():
        for target, anchor in LINK.findall(FENCE.sub("", page.read_text())):
            if leads_nowhere(page.parent / target if target else page, anchor):
                broken.append(f"{page.relative_to(ROOT)}: {target}{'#' if anchor else ''}{anchor}")
    assert broken == []


def test_pages_that_code_and_charts_name_are_there() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: docs/{page}{'#' if anchor else ''}{anchor}"
        for path in naming()
        for page, anchor in NAMED.findall(path.read_text(encoding="utf-8", errors="replace"))
        if leads_nowhere(ROOT / "docs" / page, anchor)
    ]
    assert broken == []


@pytest.mark.parametrize(("page", "anchor"), [("gone.md", ""), ("DESIGN.md", "gone")])
def test_a_link_that_leads_nowhere_is_seen(page: str, anchor: str) -> None:
    assert leads_nowhere(ROOT / "docs" / page, anchor)
