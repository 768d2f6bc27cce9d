"""What no linter knows: who may import whom, and who may read a clock, roll dice or do I/O (DESIGN 2, 3)."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.source import GENERATED, ROOT, Source, sources

LINES_MAX = 700
LINE_LENGTH_MAX = 120
WORDS_MAX = 40
"""Of a sentence in the documents."""

FLOORS = {"common": 0, "rpc": 1, "proxy": 2, "broker": 2, "controller": 2, "cli": 3}
"""Imports go down, never up, and never across: `cli -> proxy | broker | controller -> rpc -> common`."""

WINGS = {
    "common": ("settings", "contract", "filter"),
    "rpc": ("http2", "socket", "server", "client", "membership"),
    "cli": ("process", "drills", "cluster", "admin"),
    "broker": (
        *("records", "store", "filter", "names", "wheel", "progress", "quarantine", "pop"),
        *("lite", "timer", "transactions", "state", "replica", "repair", "files", "checkpoint_sync", "calls", "role"),
    ),
    "controller": ("store", "cluster", "leadership", "broker_groups", "checkpoints", "kubernetes", "http"),
    "proxy": ("failover", "session", "access", "send", "transactions", "ack", "lite", "receive", "poll_counts"),
}
"""Service -> its folders; each imports those before it and none behind it.

A file beside them stands below them all if it imports none of them, else above them all.
"""

ENTRY_POINTS = {"services.cli.main"}
"""Modules that nobody imports because the world calls them."""

CLOCK = "services.common.clock"

WAITING = {
    "services.broker.app": "wires the broker, and waits as it ends",
    "services.broker.role.departure": "asks again and again whether a replica may go",
    "services.broker.role.role_machine": "takes one role after the other",
    "services.broker.role.checkpoint_server": "looks at all offsets a part at a time",
    "services.broker.store.flusher": "waits for the device and wakes who waits for it",
    "services.broker.role.follower": "runs what keeps up with a master",
    "services.broker.calls.router": "lets calls wait for a term",
    "services.broker.role.leader": "runs what a leader does",
    "services.broker.role.upkeep": "does what time brings about",
    "services.broker.pace": "leaves the loop to others",
    "services.broker.replica.log_receiver": "takes over the log, syncs and reports at once",
    "services.broker.replica.log_sender": "sends the log while it hears how far a slave is",
    "services.broker.checkpoint_sync.master_checkpoint_file": "stores one checkpoint after the other",
    "services.broker.files.saved_checkpoint": "lets others go on while it writes many rows",
    "services.broker.repair.repair": "mends one record at a time",
    "services.broker.replica.replication_master": "looks after its slaves from time to time",
    "services.broker.replica.replication_slave": "keeps a stream open and opens it anew",
    "services.broker.role.replica_server": "goes on when its role was not taken over in time",
    "services.broker.files.log_fold": "folds piece by piece, reads in threads",
    "services.broker.files.replica_store": "syncs and saves",
    "services.broker.role.reviver": "sleeps until the next message is due",
    "services.broker.calls.server": "answers calls",
    "services.broker.calls.pull_handler": "answers pulls, which may wait",
    "services.broker.store.commit_log": "lets one sync wait for another",
    "services.broker.files.superblock": "lets one write wait for another",
    "services.broker.store.queue_index": "syncs files, and yields between the steps of writing and merging them",
    "services.broker.supervision": "tasks that run as long as the broker does",
    "services.broker.transactions.transaction_server": "holds the streams by which proxies ask senders",
    "services.broker.transactions.transaction_service": "looks several times a second what is due",
    "services.broker.timer.service": "fires when it is time, and saves every second",
    "services.cli.admin.check": "runs a check",
    "services.cli.admin.drill": "runs a drill",
    "services.cli.certificates": "asks the API server",
    "services.cli.cluster.children": "waits for child processes",
    "services.cli.cluster.cluster": "lives until its signal",
    "services.cli.drills.check": "tries again what fails",
    "services.cli.drills.client": "limits how long an answer may take",
    "services.cli.drills.drill": "strikes, and watches what becomes of it",
    "services.cli.drills.traffic": "has clients at work side by side",
    "services.cli.cluster.health": "asks other processes over HTTP",
    "services.cli.drills.links": "takes orders over a socket",
    "services.cli.process.service_process": "wires one service",
    "services.cli.drills.relay": "passes on what two sides say, when it may",
    "services.cli.process.run": "runs a process from its start to its signal",
    "services.cli.process.listeners": "loads heavy modules beside the loop",
    "services.cli.process.standalone": "waits until the broker cannot go on",
    "services.cli.cluster.worker_metrics": "asks all workers at once",
    "services.cli.cluster.workers": "lives until its signal",
    "services.common.cold_reads": "lets calls wait for what is read in a thread",
    "services.common.disk": "hands writes to a thread",
    "services.common.http": "runs the HTTP server",
    "services.controller.checkpoints.checkpoint_carrier": "asks masters and slaves at once",
    "services.controller.store.file_state_store": "waits for the lock of a folder that several controllers share",
    "services.controller.broker_groups.group_keeper": "waits until a change is stored",
    "services.controller.http.inquiry": "asks all brokers at once",
    "services.controller.broker_groups.leadership_transfer": "waits for a replica that catches up",
    "services.controller.kubernetes.api": "hands its calls to threads",
    "services.controller.kubernetes.reconciler": "deals with some resources at once",
    "services.controller.kubernetes.mirror": "waits for switchovers",
    "services.controller.kubernetes.rounds": "waits for what is new",
    "services.controller.kubernetes.resource_watch": "watches resources",
    "services.controller.leadership.leadership": "renews its lease, or waits for another's to end",
    "services.controller.broker_groups.overseer": "looks at replicas several times a second, and probes them",
    "services.controller.replica_streams": "holds the streams of replicas",
    "services.controller.server": "answers calls",
    "services.controller.cluster.state_keeper": "waits until a change is saved",
    "services.controller.http.status_routes": "asks all processes at once",
    "services.controller.cluster.stored_cluster": "reads again what was out of date",
    "services.proxy.ack.ack_handler": "asks several brokers at once",
    "services.proxy.app": "wires the proxy and runs what time brings about",
    "services.proxy.background": "holds the tasks that nobody waits for",
    "services.proxy.failover.brokers": "leaves calls to a former master a moment to end",
    "services.proxy.failover.parked_calls": "lets calls wait until they may try again",
    "services.proxy.send.batcher": "lets senders wait for the Put that carries them",
    "services.proxy.send.batchers": "looks at Puts in flight from time to time",
    "services.proxy.send.lanes": "lets sends of a message group wait for one another",
    "services.proxy.lite.lite_sync": "tells all brokers at once, one thing after another",
    "services.proxy.receive.notifications": "holds the streams of notifications open",
    "services.proxy.receive.poll": "lets a poll wait, and tells its machine the time",
    "services.proxy.transactions.check_links": "holds the streams open by which brokers have producers asked",
    "services.proxy.poll_counts.shared_count": "exchanges counts with other proxies every second",
    "services.proxy.session.telemetry": "holds the streams of clients open",
    "services.rpc.client.socket_channel": "connects",
    "services.rpc.client.client_call": "lets callers wait for their answer",
    "services.rpc.client.client_connection": "is the asyncio protocol of a connection",
    "services.rpc.deadline_timer": "sleeps until the next deadline",
    "services.rpc.membership.follower": "keeps a stream open and opens it anew",
    "services.rpc.server.grpcio_server": "serves on grpcio",
    "services.rpc.server.host": "tells when its last connection is gone",
    "services.rpc.server.light_task": "steps a handler without a task of its own",
    "services.rpc.local": "calls a service of the same process",
    "services.rpc.membership.registrar": "keeps a stream open and opens it anew",
    "services.rpc.server.server": "listens",
    "services.rpc.server.server_call": "lets a handler wait for its messages",
    "services.rpc.server.server_connection": "is the asyncio protocol of a connection",
    "services.rpc.socket.endpoint": "is the asyncio protocol of a connection",
}
"""Module -> why it may use asyncio. All others decide: they are told what they need and return what is to be done."""

TOUCHING = {
    CLOCK: "is the clock",
    "services.cli.admin.api": "calls the admin API",
    "services.cli.admin.cluster": "waits between two looks",
    "services.cli.admin.check": "draws the name of a run",
    "services.cli.admin.dead_letters": "waits between two batches",
    "services.cli.admin.drill": "signals processes, and draws the name of a run",
    "services.cli.drills.broker_process": "looks at a process, and signals it",
    "services.cli.cluster.children": "starts processes, signals them, reads the ends of their logs",
    "services.cli.cluster.cluster": "makes the folder of the logs",
    "services.cli.process.cores": "asks the system how many cores there are",
    "services.cli.process.data_lock": "holds the data folder for this process",
    "services.cli.drills.links": "makes a socket in the data folder",
    "services.cli.main": "reads the environment",
    "services.cli.cluster.parent": "has the kernel end a child with its parent",
    "services.cli.cluster.ports": "binds the ports that it reserves",
    "services.cli.process.service_process": "draws the seed of the random source, and says which process it is",
    "services.cli.process.run": "takes signals",
    "services.cli.drills.socket_owner": "asks the kernel whose a socket is",
    "services.cli.process.standalone": "draws the seed of the random source",
    "services.common.settings.config": "reads the file of settings",
    "services.common.disk": "is the disk",
    "services.common.http": "is an HTTP server",
    "services.common.settings.watched_file": "reads a file anew when it changes",
    "services.controller.http.admin": "declares routes of an HTTP API",
    "services.controller.http.audit_routes": "declares routes of an HTTP API",
    "services.controller.http.consumption_routes": "declares routes of an HTTP API",
    "services.controller.http.group_routes": "declares routes of an HTTP API",
    "services.controller.kubernetes.api": "calls the API server in threads, and reads in which namespace it is",
    "services.controller.http.quarantine_routes": "declares routes of an HTTP API",
    "services.controller.http.status_routes": "declares routes of an HTTP API, and asks others over HTTP",
    "services.controller.http.timer_routes": "declares routes of an HTTP API",
    "services.controller.store.private_disk": "makes files that nobody else may read, and locks folders",
    "services.rpc.socket.certificate_files": "reads certificates",
    "services.rpc.client.socket_channel": "speaks TLS",
    "services.rpc.client.client_connection": "speaks TLS",
    "services.rpc.server.grpcio_server": "is grpcio's server",
    "services.rpc.server.host": "speaks TLS",
    "services.rpc.server.server": "speaks TLS",
    "services.rpc.server.server_connection": "speaks TLS",
    "services.rpc.socket.tls": "makes and reads certificates",
}
"""Module -> why it may touch files, sockets, the machine's clock or its randomness."""

CLOCK_READS = re.compile(
    r"time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?"
    r"|time\.(sleep|localtime|gmtime|ctime)"
    r"|datetime\.(datetime|date)\.(now|utcnow|today)"
)
RANDOMNESS = re.compile(r"random\.(?!Random$)\w+|secrets\.\w+|os\.(urandom|getrandom)|uuid\.uuid[14]")
WORLD = re.compile(
    r"(socket|ssl|select|selectors|threading|subprocess|signal|mmap|shutil|tempfile|concurrent"
    r"|grpc|httpx|fastapi|uvicorn|starlette)(\..*)?"
    r"|open|input|print|breakpoint|os\.(?!fspath|PathLike|sep|linesep)\w+|pathlib\.Path\.(cwd|home)"
)
FILE_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "touch", "iterdir", "rglob"),
    *("fsync", "fdatasync"),
}


def of_services() -> list[Source]:
    return sources("services")


def touches(source: Source) -> list[str]:
    """Where a module reads a clock, rolls dice, or does I/O."""
    found = {
        f"{source.name}:{line}: {name}"
        for line, name in source.uses
        if CLOCK_READS.fullmatch(name) or RANDOMNESS.fullmatch(name) or WORLD.fullmatch(name)
    }
    found |= {f"{source.name}:{line}: .{name}()" for line, name in source.method_names if name in FILE_METHODS}
    return sorted(found)


def waits(source: Source) -> list[str]:
    """Where a module uses asyncio."""
    found = {f"{source.name}:{line}: {name}" for line, name in source.uses if name.startswith("asyncio.")}
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


def imports_within(service: str) -> dict[str, set[str]]:
    """Module of a service -> the modules of that service that it imports."""
    found = {
        source.module: source.imports for source in of_services() if source.module.startswith(f"services.{service}.")
    }
    return {module: imports & (found.keys() - {module}) for module, imports in found.items()}


@pytest.mark.parametrize("service", WINGS)
def test_the_table_has_all_wings(service: str) -> None:
    folders = {file.parent.name for file in (ROOT / "services" / service).glob("*/__init__.py")}
    assert folders - {GENERATED.rpartition(".")[2]} == set(WINGS[service])


@pytest.mark.parametrize("service", WINGS)
def test_wings_import_one_way(service: str) -> None:
    order, imports = WINGS[service], imports_within(service)
    wings = {module: module.split(".")[2] for module in imports}
    ranks = {module: order.index(wing) if wing in order else -1 for module, wing in wings.items()}
    while above := {
        module
        for module, others in imports.items()
        if wings[module] not in order and ranks[module] < 0 <= max((ranks[other] for other in others), default=-1)
    }:
        ranks |= dict.fromkeys(above, len(order))
    wrong = [
        f"{module} imports {other}" for module in imports for other in imports[module] if ranks[other] > ranks[module]
    ]
    assert wrong == []


@pytest.mark.parametrize("service", WINGS)
def test_no_imports_run_in_a_circle(service: str) -> None:
    left = imports_within(service)
    while ends := {module for module, others in left.items() if not others}:
        left = {module: others - ends for module, others in left.items() if module not in ends}
    assert left == {}, "some of these import one another"


def test_only_the_clock_reads_clocks() -> None:
    wrong = [
        f"{source.name}:{line}: {name}"
        for source in of_services()
        if source.module != CLOCK
        for line, name in source.uses
        if CLOCK_READS.fullmatch(name)
    ]
    assert wrong == []


def test_what_decides_touches_nothing() -> None:
    others = [source for source in of_services() if source.module not in TOUCHING]
    assert [touch for source in others for touch in touches(source)] == []


def test_what_decides_waits_for_nothing() -> None:
    others = [source for source in of_services() if source.module not in WAITING]
    assert [wait for source in others for wait in waits(source)] == []


@pytest.mark.parametrize(("edges", "look"), [(TOUCHING, touches), (WAITING, waits)], ids=["touching", "waiting"])
def test_the_lists_of_edges_are_true(edges: dict[str, str], look: Callable[[Source], list[str]]) -> None:
    by_module = {source.module: source for source in of_services()}
    assert edges.keys() - by_module.keys() == set(), "these are gone: take them from the list"
    needless = {module for module in edges if not look(by_module[module])}
    assert needless == set(), "these do not need it: take them from the list"


def test_nobody_writes_modules_that_nobody_uses() -> None:
    everything = of_services()
    modules = {source.module for source in everything if source.path.name != "__init__.py"}
    used = {imported for source in everything for imported in source.imports if imported != source.module}
    assert modules - used - ENTRY_POINTS == set()


def test_every_module_says_what_it_is_for() -> None:
    written = [
        source
        for source in sources("services", "spark", "tests", "tools", "bench", "demo", "examples")
        if source.text.strip()
    ]
    assert [source.name for source in written if not source.docstring] == []


def test_no_file_holds_two_nouns() -> None:
    files = sources("services", "spark", "tests", "tools", "bench", "demo", "examples")
    assert [source.name for source in files if len(source.text.splitlines()) > LINES_MAX] == []


def test_tests_do_not_sleep() -> None:
    wrong = [
        f"{source.name}:{line}"
        for source in sources("tests")
        if "sleep" in source.text  # parsing the others takes seconds
        if not source.name.startswith("tests/harness/")  # waits for other processes, which cannot be told the time
        for line, name in source.uses
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
    assert [line.split(": ")[1] for line in [*touches(Source(file)), *waits(Source(file))]] == [seen]


def test_the_eyes_see_no_ghosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.source.ROOT", tmp_path)
    file = tmp_path / "example.py"
    file.write_text(
        "import random\ndef roll(dice: random.Random, time: int) -> float:\n    return dice.random() + time"
    )
    assert [*touches(Source(file)), *waits(Source(file))] == []


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


def test_no_page_links_to_a_place_that_is_not_there() -> None:
    broken = []
    for page in pages():
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


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
