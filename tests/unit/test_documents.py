"""Pages have a kind, guides are short, records say whether they count, and all of it can be read."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.source import ROOT

KINDS = {
    "docs/start": "tutorial",
    "docs/use": "guide",
    "docs/operate": "guide",
    "docs/reference": "reference",
    "docs/internals": "explanation",
    "docs/decisions": "record",
    "services": "explanation",
    "spark": "explanation",
    "examples": "tutorial",
    "helm": "guide",
}
"""Folder -> the kind of its pages."""
SINGLE = {
    "README.md": "tutorial",
    "CHANGELOG.md": "record",
    "CONTRIBUTING.md": "guide",
    "SECURITY.md": "guide",
    "docs/README.md": "index",
    "docs/DESIGN.md": "explanation",
    "docs/INVARIANTS.md": "reference",
}
GUIDE_LINES_MAX = 80
LINE_LENGTH_MAX = 120
WORDS_MAX = 40
"""Of a sentence."""
LINES_MAX = 5_950
"""Of all Markdown written by hand: what grows past it is shortened elsewhere. With the reference it is 7,000."""


def pages() -> list[Path]:
    """All Markdown."""
    folders = ("docs", "examples", "helm", "services", "spark")
    return [*ROOT.glob("*.md"), *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md")))]


def current_pages() -> list[Path]:
    """What people read from beginning to end; older entries of the changelog are not rewritten."""
    return [page for page in pages() if page.name != "CHANGELOG.md"]


def sentences(text: str) -> Iterator[str]:
    """The sentences of Markdown, code left out; an item of a list and a cell of a table are texts of their own."""
    prose = re.sub(r"^\s*```.*?^\s*```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for part in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) |\|", re.sub(r"`[^`]*`", "code", prose), flags=re.MULTILINE):
        yield from re.split(r"[.:!?][)*]*\s", part)


def kind(page: Path) -> str | None:
    """The kind of a page, by its name or its folder."""
    name = page.relative_to(ROOT).as_posix()
    folders = (kind for folder, kind in KINDS.items() if name.startswith(f"{folder}/"))
    return SINGLE.get(name) or next(folders, None)


def test_each_page_has_a_kind() -> None:
    assert [page for page in pages() if kind(page) is None] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/use").glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= GUIDE_LINES_MAX


def test_a_record_says_whether_it_counts() -> None:
    records = sorted((ROOT / "docs/decisions").glob("0*.md"))
    silent = [
        record.name
        for record in records
        if not re.match(r"# \d+ .+\n+.*(?:\*[Cc]urrent\*|\*[Rr]eplaced by|\*replaced by)", record.read_text())
    ]
    assert silent == []
    listed = (ROOT / "docs/decisions/README.md").read_text()
    assert [record.name for record in records if f"]({record.name})" not in listed] == []


def test_all_of_it_can_be_read() -> None:
    everything = [*pages(), *(ROOT / "tests").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
    by_hand = [page for page in everything if kind(page) != "reference" or page.name == "INVARIANTS.md"]
    assert sum(len(page.read_text().splitlines()) for page in by_hand) <= LINES_MAX


def test_internals_name_folders_and_methods_that_exist() -> None:
    folders = {folder.name for folder in (ROOT / "services").glob("*/popwheel_*/*/")}
    sources = [path.read_text() for path in (ROOT / "services").glob("*/popwheel_*/**/*.py")]
    wrong: list[str] = []
    for page in (ROOT / "docs/internals").glob("*.md"):
        text = page.read_text()
        named = " ".join(re.findall(r"The code is in (.*?)\(", text, re.DOTALL))
        wrong += [f"{page.name}: {folder}/" for folder in re.findall(r"(\w+)/`", named) if folder not in folders]
        for name, method in re.findall(r"\b((?:[A-Z][a-z]+){2,})\.(\w+)", text):
            if not any(f"class {name}" in source and f"def {method}(" in source for source in sources):
                wrong.append(f"{page.name}: {name}.{method}")
    assert wrong == []


def test_each_page_is_reached_from_the_index() -> None:
    """By links from docs/README.md, over as many pages as it takes; all but code maps, which stand beside the code."""
    reached: set[Path] = set()
    left = [ROOT / "docs/README.md"]
    while left:
        page = left.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+\.md)", page.read_text()):
            other = (page.parent / target).resolve()
            if other.exists():
                left.append(other)
    lost = [page.relative_to(ROOT).as_posix() for page in pages() if page.resolve() not in reached]
    assert [name for name in lost if not name.startswith(("services/", "spark/"))] == []


def test_no_sentence_of_the_documents_is_too_long() -> None:
    """A rule of thumb is 25 words; lists, tables and pictures take what does not fit."""
    long = [
        f"{page.relative_to(ROOT)}: {' '.join(words[:12])} ..."
        for page in current_pages()
        for sentence in sentences(page.read_text())
        if len(words := sentence.split()) > WORDS_MAX
    ]
    assert long == []


def test_a_sentence_that_is_too_long_is_seen() -> None:
    word = "word " * WORDS_MAX
    assert max(len(sentence.split()) for sentence in sentences(f"- short. A {word}`code`\n")) == WORDS_MAX + 2
    assert max(len(sentence.split()) for sentence in sentences(f"{word}\n- {word}. {word}| {word}")) == WORDS_MAX


def test_documents_fit_on_a_screen() -> None:
    """Rows of tables cannot be broken, and commands are copied."""
    wide = [
        f"{page.relative_to(ROOT)}: {line[:60]} ..."
        for page in current_pages()
        for line in re.sub(r"^\s*```.*?^\s*```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
        if len(line) > LINE_LENGTH_MAX and not line.startswith("|")
    ]
    assert wide == []
