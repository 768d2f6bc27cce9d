"""What code, tests and documents cite is there: promises (INVARIANTS), sections of the design (DESIGN), files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.source import ROOT

FOLDERS = ("services", "spark", "tests", "tools", "bench", "demo", "examples", "helm", "proto", "docs")
ENDINGS = {".py", ".md", ".proto", ".yaml"}
GENERATED = ROOT / "services/common/popwheel_common/pb"

PROMISE = re.compile(r"\b[CELMPSTX]\d\b")
SECTIONS = re.compile(r"\bDESIGN (\d+(?:, \d+)*)(?:, \"?([A-Z][a-z][A-Za-z ]*))?")
ABROAD = re.compile(r"\b(?:RELIABILITY|PROTOCOL|STYLE|USERS)\b(?: \d|\.md)")
"""Papers from before this law, which are not part of this repository."""
SHORT = re.compile(r"`([a-z]+)/([\w/.-]+\.py)`")
"""A file as INVARIANTS names it: `broker/consume/acks.py` is of the service, `unit/broker/test_core.py` below tests."""
PATH = re.compile(r"`((?:services|spark|tests|tools|bench|demo|examples|helm|proto|docs)/[\w./-]+)`")
"""A file or folder that a document names in full, as in `services/common/popwheel_common/clock.py`."""


def texts() -> Iterator[tuple[str, str]]:
    """(name, text) of each file that may cite something."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    files += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in ENDINGS]
    for path in files:
        if path.is_file() and not path.is_relative_to(GENERATED) and path != Path(__file__).resolve():
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def is_history(name: str) -> bool:
    """A decision record says what was true on its day: sections and files that it names may be gone."""
    return name.startswith("docs/decisions/")


def promises() -> set[str]:
    return set(re.findall(r"^### ([A-Z]\d+)$", (ROOT / "docs/INVARIANTS.md").read_text(), re.MULTILINE))


def sections() -> dict[str, set[str]]:
    """The number of each section of the design -> the titles of its parts."""
    found: dict[str, set[str]] = {}
    number = ""
    for line in (ROOT / "docs/DESIGN.md").read_text().splitlines():
        if section := re.match(r"## (\d+) ", line):
            number = section[1]
            found[number] = set()
        elif line.startswith("### "):
            found[number].add(line.removeprefix("### "))
    return found


def unknown_promises(name: str, text: str, known: set[str]) -> list[str]:
    """What a text cites that INVARIANTS.md does not have."""
    return [f"{name}: {cited}" for cited in PROMISE.findall(text) if cited not in known]


def unknown_sections(name: str, text: str, known: dict[str, set[str]]) -> list[str]:
    """What a text cites that DESIGN.md does not have."""
    wrong = []
    for numbers, part in SECTIONS.findall(text):
        listed = numbers.split(", ")
        if not (known.keys() >= set(listed) and (not part or part in known[listed[-1]])):
            wrong.append(f"{name}: DESIGN {numbers}{', ' if part else ''}{part}")
    return wrong


def test_promises_that_are_cited_are_in_the_law() -> None:
    known = promises()
    assert known, "docs/INVARIANTS.md has none"
    assert [cited for name, text in texts() for cited in unknown_promises(name, text, known)] == []


def test_sections_that_are_cited_are_in_the_design() -> None:
    known = sections()
    cited = [(name, text) for name, text in texts() if not is_history(name)]
    assert [each for name, text in cited for each in unknown_sections(name, text, known)] == []


def test_files_that_documents_name_are_there() -> None:
    gone = [
        f"{name}: {path}"
        for name, text in texts()
        if name.endswith(".md") and not is_history(name)
        for path in PATH.findall(text)
        if not (ROOT / path).exists()
    ]
    assert gone == []


def answers() -> list[tuple[str, str]]:
    """(file, name) of each answer of CONTRIBUTING, "Where is what", that names more than a file."""
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Where is what\n")
    return re.findall(r"\| `([\w./-]+)` \(`([\w.]+)`\) \|$", table, re.MULTILINE)


def defines(path: str, name: str) -> bool:
    """Whether a file has a function, a class or a template of this name."""
    begins = rf'^\s*(?:(?:async )?def |class |{{{{- define "){re.escape(name)}\b'
    return re.search(begins, (ROOT / path).read_text(), re.MULTILINE) is not None


def test_what_decides_is_where_the_guide_says() -> None:
    assert len(answers()) >= 20
    assert [(path, name) for path, name in answers() if not defines(path, name)] == []
    assert not defines("tests/unit/test_law.py", "test_what")


def test_files_that_the_promises_name_are_there() -> None:
    named = SHORT.findall((ROOT / "docs/INVARIANTS.md").read_text())
    assert len(named) > 200
    folders = {"unit", "sim", "integration", "fuzz"}
    paths = [
        f"tests/{place}/{rest}" if place in folders else f"services/{place}/popwheel_{place}/{rest}"
        for place, rest in named
        if place not in ("services", "tests")
    ]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_nothing_cites_papers_that_are_not_here() -> None:
    assert [(name, cited) for name, text in texts() if not is_history(name) for cited in ABROAD.findall(text)] == []


@pytest.mark.parametrize("text", ["(S8)", "as P0 says", "T1 to T5"])
def test_a_promise_that_nobody_made_is_noticed(text: str) -> None:
    assert unknown_promises("x.py", text, promises())


@pytest.mark.parametrize("text", ["(DESIGN 10)", "DESIGN 2, 11", 'DESIGN 4, "Prayer"', "(pure; DESIGN 5, Send)"])
def test_a_section_that_is_not_there_is_noticed(text: str) -> None:
    assert unknown_sections("x.py", text, sections())
