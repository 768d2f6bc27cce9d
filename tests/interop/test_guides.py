"""The examples of the guides do what their pages say: each page's commands and programs run in turn, on one server."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from popwheel_testing import PopwheelServer
from tests.harness.programs import run_program
from tests.harness.standalone import ROOT

pytest_plugins = ["popwheel_testing.plugin"]

ADDRESS = "127.0.0.1:8081"
GUIDES = sorted(page for kind in ("start", "use") for page in (ROOT / "docs" / kind).glob("*.md"))
AT_ONCE = 4
"""Pages at one time; most of a page is waiting."""

_EXAMPLE = re.compile(
    r"(?:^<!-- (not run|run): (.+?) -->\n)?^```(sh|python)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.M
)


_WHOLE_PAGE = re.compile(r"^<!-- not run on this page: .+ -->$", re.M)
_FENCES = re.compile(r"^( *)```(\w*)\n.*?^\1```$", re.DOTALL | re.M)
_MARK = re.compile(r"<!-- (?:not run|run): .+ -->\n$")
PRINTED = "text"
"""Fences of this language are what an example prints."""


@dataclass(frozen=True)
class Example:
    """One example of a page.

    Args:
        language: `sh` or `python`.
        code: its lines.
        printed: what the page says that it prints, or None.
    """

    language: str
    code: str
    printed: str | None


def examples(page: Path) -> Iterator[Example]:
    """The examples that this test runs: all but those that say who else does, or why nobody can."""
    text = page.read_text(encoding="utf-8")
    for how, _, language, code, printed in _EXAMPLE.findall(text):
        if not (how or _WHOLE_PAGE.search(text)):
            yield Example(language, code, printed or None)


PAGES = {page.stem: page for page in GUIDES if any(examples(page))}


def run_page(page: Path, server: PopwheelServer, folder: Path) -> list[str]:
    """Run a page's examples one after another; the sentences say what went wrong."""
    wrong = []
    for number, example in enumerate(examples(page)):
        if example.language == "sh":
            wrong += [sentence for line in example.code.splitlines() if (sentence := run_command(line, server, folder))]
        else:
            program = folder / f"example{number}.py"
            program.write_text(example.code.replace(ADDRESS, server.endpoints), encoding="utf-8")
            outcome = run_program([str(program)], folder / f"home{number}")
            if outcome.exit_code or (example.printed is not None and outcome.output != example.printed):
                wrong.append(outcome.explain())
    return wrong


def run_command(line: str, server: PopwheelServer, folder: Path) -> str:
    """Run a line with `popwheel`; empty if it went well."""
    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[0] != "popwheel":
        return f"{line}: only commands of popwheel are run here; mark the example with <!-- not run: why -->"
    done = subprocess.run(
        [sys.executable, "-m", "popwheel_cli.main", *words[1:]],
        env={**os.environ, "POPWHEEL_SERVER": server.http_url, "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return "" if done.returncode == 0 else f"{line}: exit code {done.returncode}\n{done.stderr}"


@pytest.fixture(scope="module")
def runs(popwheel: PopwheelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[list[str]]]]:
    """How each page went; they run side by side."""
    root = tmp_path_factory.mktemp("guides")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = {name: root / name for name in PAGES}
        for folder in folders.values():
            folder.mkdir()
        yield {name: pool.submit(run_page, page, popwheel, folders[name]) for name, page in PAGES.items()}


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_do_what_it_says(name: str, runs: dict[str, "Future[list[str]]"]) -> None:
    wrong = runs[name].result()
    assert not wrong, "\n".join(wrong)


def silent(text: str) -> list[str]:
    """Examples of a page that no test runs, without a word beside them that says why or who does."""
    if _WHOLE_PAGE.search(text):
        return []
    return [
        fence[0]
        for fence in _FENCES.finditer(text)
        if fence[2] != PRINTED and not _MARK.search(text[: fence.start()])
        if fence[1] or fence[2] not in ("sh", "python")
    ]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_an_example_runs_or_says_why_not(page: Path) -> None:
    assert silent(page.read_text(encoding="utf-8")) == []


def test_an_example_that_says_nothing_is_noticed() -> None:
    assert silent("```go\nx\n```\n") == ["```go\nx\n```"]
    assert silent("- a\n\n  ```python\n  x\n  ```\n") == ["  ```python\n  x\n  ```"]
    assert silent("<!-- not run: why -->\n```go\nx\n```\n```text\ny\n```\n") == []


@pytest.mark.parametrize("name", ["delayed", "ordered", "transactions", "priority", "lite", "filters", "retries"])
def test_a_guide_has_a_program_with_what_it_prints(name: str) -> None:
    assert any(each.language == "python" and each.printed for each in examples(PAGES[name]))
