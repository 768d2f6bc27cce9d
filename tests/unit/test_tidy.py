"""What no linter knows: who may import whom, and who may read a clock, roll dice or do I/O (DESIGN 2, 3)."""

import ast
import re
from pathlib import Path

import pytest

from tests.unit.source import ROOT, Source, sources

LINES_MAX = 700

FLOORS = {"common": 0, "rpc": 1, "proxy": 2, "broker": 2, "controller": 2, "cli": 3}
"""Imports go down, never up, and never across: `cli -> proxy | broker | controller -> rpc -> common`."""

ENTRY_POINTS = {"services.cli.main"}
"""Modules that nobody imports because the world calls them."""

CLOCK = "services.common.clock"

EDGES = {
    CLOCK: "is the clock",
}
"""Module -> why it may do I/O. All others decide: they are told what they need and return what is to be done."""

CLOCK_READS = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?"
    r"|time\.(sleep|localtime|gmtime|ctime)"
    r"|datetime\.(datetime|date)\.(now|utcnow|today)"
)
RANDOMNESS = re.compile(r"random\.(?!Random$)\w+|secrets\.\w+|os\.(urandom|getrandom)|uuid\.uuid[14]")
WORLD = re.compile(
    r"(asyncio|socket|ssl|select|selectors|threading|subprocess|signal|mmap|shutil|tempfile|concurrent"
    r"|grpc|httpx|fastapi|uvicorn|starlette)(\..*)?"
    r"|open|input|print|breakpoint|os\.(?!fspath|PathLike|sep|linesep)\w+|pathlib\.Path\.(cwd|home)"
)
FILE_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "touch", "iterdir", "rglob"),
    *("fsync", "fdatasync", "run_in_executor"),
}


def of_services() -> list[Source]:
    return sources("services")


def touches_of_the_world(source: Source) -> list[str]:
    """Where a module reads a clock, rolls dice, or does I/O."""
    found = {
        f"{source.name}:{line}: {name}"
        for line, name in source.uses()
        if CLOCK_READS.fullmatch(name) or RANDOMNESS.fullmatch(name) or WORLD.fullmatch(name)
    }
    found |= {f"{source.name}:{line}: .{name}()" for line, name in source.method_names() if name in FILE_METHODS}
    return sorted(found)


def floor(module: str) -> tuple[int, str]:
    package = module.split(".")[1]
    return FLOORS[package], package


def test_imports_go_one_way() -> None:
    wrong = []
    for source in of_services():
        if source.module == "services":
            continue
        own_floor, own_package = floor(source.module)
        for imported in source.imports:
            if not imported.startswith("services."):
                continue
            other_floor, other_package = floor(imported)
            if other_package != own_package and other_floor >= own_floor:
                wrong.append(f"{source.name} imports {imported}")
    assert wrong == []


def test_only_the_clock_reads_clocks() -> None:
    wrong = [
        f"{source.name}:{line}: {name}"
        for source in of_services()
        if source.module != CLOCK
        for line, name in source.uses()
        if CLOCK_READS.fullmatch(name)
    ]
    assert wrong == []


def test_what_decides_touches_nothing() -> None:
    cores = [source for source in of_services() if source.module not in EDGES]
    assert [touch for source in cores for touch in touches_of_the_world(source)] == []


def test_the_list_of_edges_is_true() -> None:
    by_module = {source.module: source for source in of_services()}
    assert EDGES.keys() - by_module.keys() == set(), "these are gone: take them from the list"
    needless = {module for module in EDGES if not touches_of_the_world(by_module[module])}
    assert needless == set(), "these touch nothing: take them from the list"


def test_nobody_writes_modules_that_nobody_uses() -> None:
    everything = of_services()
    modules = {source.module for source in everything if source.path.name != "__init__.py"}
    used = {imported for source in everything for imported in source.imports if imported != source.module}
    assert modules - used - ENTRY_POINTS == set()


def test_every_module_says_what_it_is_for() -> None:
    written = [source for source in sources("services", "tests", "tools", "bench", "demo") if source.text.strip()]
    assert [source.name for source in written if not ast.get_docstring(source.tree)] == []


def test_no_file_holds_two_nouns() -> None:
    files = sources("services", "tests", "tools", "bench", "demo")
    assert [source.name for source in files if len(source.text.splitlines()) > LINES_MAX] == []


def test_tests_do_not_sleep() -> None:
    wrong = [
        f"{source.name}:{line}"
        for source in sources("tests")
        if not source.name.startswith("tests/harness/")  # waits for other processes, which cannot be told the time
        for line, name in source.uses()
        if name == "time.sleep"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import time\ntime.monotonic()", "time.monotonic"),
        ("from time import time as now\nnow()", "time.time"),
        ("from datetime import datetime, UTC\ndatetime.now(UTC)", "datetime.datetime.now"),
        ("import random\nrandom.choice([1])", "random.choice"),
        ("import os\nos.replace('a', 'b')", "os.replace"),
        ("open('a')", "open"),
        ("import asyncio\nasyncio.create_task(None)", "asyncio.create_task"),
        ("def f(path):\n    path.read_bytes()", ".read_bytes()"),
    ],
)
def test_the_eyes_see(code: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.source.ROOT", tmp_path)
    file = tmp_path / "example.py"
    file.write_text(code)
    assert [touch.split(": ")[1] for touch in touches_of_the_world(Source(file))] == [seen]


def test_the_eyes_see_no_ghosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.source.ROOT", tmp_path)
    file = tmp_path / "example.py"
    file.write_text(
        "import random\ndef roll(dice: random.Random, time: int) -> float:\n    return dice.random() + time"
    )
    assert touches_of_the_world(Source(file)) == []


def test_the_readme_names_no_place_that_is_not_there() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
