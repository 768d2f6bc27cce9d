"""Structure that no linter knows: who may import whom, and who may read a clock, roll dice or do I/O (DESIGN 2, 3)."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.source import GENERATED, ROOT, Source, sources

FLOORS = {"common": 0, "rpc": 1, "console": 1, "proxy": 2, "broker": 2, "controller": 2, "cli": 3, "testing": 4}
"""Imports go down, never up, and never across: `testing -> cli -> proxy | broker | controller -> rpc -> common`.

The console stands beside `rpc`: it has `common` alone, and asks the rest by the admin API.
"""

FOLDERS = {
    "common": ("settings", "contract", "filter", "web"),
    "rpc": ("http2", "socket", "server", "client", "membership"),
    "cli": ("process", "drills", "cluster", "messages", "admin"),
    "broker": (
        "log",
        "topics",
        "consume",
        "delay",
        "transactions",
        "lite",
        "time_to_live",
        "core",
        "replication",
        "calls",
        "role",
    ),
    "console": ("view", "login", "pages"),
    "controller": ("store", "cluster", "broker_groups", "activity", "kubernetes", "http"),
    "testing": (),
    "proxy": ("protocol", "brokers", "session", "access", "send", "lite", "receive"),
}
"""Service -> its folders; each imports those before it and none behind it.

A file beside them stands below them all if it imports none of them, else above them all.
"""

WING_LIST = "core.wings"
FEATURES: dict[str, set[str]] = {
    "delay": {
        "app",
        "calls.balance_server",
        "calls.context",
        "core.core",
        "core.retrial",
        "role.follower",
        "role.leader",
        "role.upkeep",
    },
    "lite": {"calls.server", "core.cluster_changes", "core.core", "core.notification"},
    "transactions": {"calls.event_answer", "core.core", "core.waiting_places", "role.leader"},
    "time_to_live": set(),
}
"""Folder of a feature -> modules beside `WING_LIST` that import it. It only shrinks."""

ENTRY_POINTS = {
    "popwheel_cli.healthcheck",
    "popwheel_cli.main",
    "popwheel_testing.child",
    "popwheel_testing.plugin",
}
"""Modules that nobody imports because the world calls them."""

CLOCK = "popwheel_common.clock"

WAITING = {
    "popwheel_controller.http.activity_sampler": "asks every ten seconds",
    "popwheel_controller.http.settings_routes": "asks several processes at once, and waits for them for so long",
    "popwheel_proxy.receive.poll_list": "lists some at a time",
    "popwheel_broker.app": "wires the broker, and waits as it ends",
    "popwheel_broker.role.departure": "asks again and again whether a replica may go",
    "popwheel_broker.role.role_machine": "takes one role after the other",
    "popwheel_broker.log.flusher": "waits for the device and wakes who waits for it",
    "popwheel_broker.role.follower": "runs what keeps up with a master",
    "popwheel_broker.calls.router": "lets calls wait for a term",
    "popwheel_broker.role.leader": "runs what a leader does",
    "popwheel_broker.role.upkeep": "does what time brings about",
    "popwheel_common.pace": "leaves the loop to others",
    "popwheel_common.turn_budget": "lets callers begin in a later turn",
    "popwheel_broker.replication.log_receiver": "takes over the log, syncs and reports at once",
    "popwheel_broker.replication.log_sender": "sends the log while it hears how far a slave is",
    "popwheel_broker.replication.record_skip": "looks through the log a part at a time",
    "popwheel_broker.replication.saved_checkpoint": "lets others go on while it writes many rows",
    "popwheel_broker.replication.repair": "mends one record at a time",
    "popwheel_broker.replication.replication_master": "looks after its slaves from time to time",
    "popwheel_broker.replication.replication_slave": "keeps a stream open and opens it anew",
    "popwheel_broker.role.replica_server": "goes on when its role was not taken over in time",
    "popwheel_broker.replication.log_fold": "folds piece by piece, reads in threads",
    "popwheel_broker.replication.replica_store": "syncs and saves",
    "popwheel_broker.role.reviver": "sleeps until the next message is due",
    "popwheel_broker.calls.server": "answers calls",
    "popwheel_broker.calls.pull_handler": "answers pulls, which may wait",
    "popwheel_broker.log.commit_log": "lets one sync wait for another",
    "popwheel_broker.replication.superblock": "lets one write wait for another",
    "popwheel_broker.log.queue_index": "syncs files, and yields between the steps of writing and merging them",
    "popwheel_common.supervision": "tasks that run as long as the broker does",
    "popwheel_broker.transactions.transaction_server": "holds the streams by which proxies ask senders",
    "popwheel_broker.transactions.transaction_service": "looks several times a second what is due",
    "popwheel_broker.delay.service": "fires when it is time, and saves every second",
    "popwheel_cli.admin.check": "runs a check",
    "popwheel_cli.admin.drill": "runs a drill",
    "popwheel_cli.admin.message_read": "pauses between two polls",
    "popwheel_cli.admin.proxy_way": "runs what a command does with a proxy",
    "popwheel_cli.messages.client": "limits how long an answer may take",
    "popwheel_cli.messages.queue_reader": "reads many queues at once",
    "popwheel_cli.certificates": "asks the API server",
    "popwheel_cli.cluster.children": "waits for child processes",
    "popwheel_cli.cluster.cluster": "lives until its signal",
    "popwheel_cli.drills.check": "tries again what fails",
    "popwheel_cli.drills.client": "limits how long an answer may take",
    "popwheel_cli.drills.drill": "strikes, and watches what becomes of it",
    "popwheel_cli.drills.traffic": "has clients at work side by side",
    "popwheel_cli.cluster.health": "asks other processes over HTTP",
    "popwheel_cli.drills.links": "takes orders over a socket",
    "popwheel_cli.process.service_process": "wires one service",
    "popwheel_cli.drills.relay": "passes on what two sides say, when it may",
    "popwheel_cli.process.heartbeat": "gives a sign of life again and again",
    "popwheel_cli.process.loop_turns": "sees how late the loop calls it",
    "popwheel_cli.process.run": "runs a process from its start to its signal",
    "popwheel_cli.process.standalone": "waits until the broker cannot go on",
    "popwheel_cli.cluster.worker_metrics": "asks all workers at once",
    "popwheel_cli.cluster.workers": "lives until its signal",
    "popwheel_common.beside_loop": "runs work in a thread",
    "popwheel_common.cold_reads": "lets calls wait for what is read in a thread",
    "popwheel_common.disk": "hands writes to a thread",
    "popwheel_common.http": "runs the HTTP server",
    "popwheel_common.web.connections": "looks at connections every second",
    "popwheel_common.web.metrics_page": "leaves the loop to others between its steps",
    "popwheel_common.web.shared_work": "lets many wait for one piece of work",
    "popwheel_console.api_client": "asks within the process",
    "popwheel_console.login.passwords": "hashes in a thread",
    "popwheel_console.console": "gathers a page and its frame at once",
    "popwheel_console.view.renderer": "leaves the loop to others between the slices of a page",
    "popwheel_console.visit": "asks several questions at once",
    "popwheel_controller.broker_groups.checkpoint_carrier": "asks masters and slaves at once",
    "popwheel_controller.store.file_state_store": "waits for the lock of a folder that several controllers share",
    "popwheel_controller.broker_groups.group_writer": "waits until a change is stored",
    "popwheel_controller.http.inquiry": "asks all brokers at once",
    "popwheel_controller.broker_groups.leadership_transfer": "waits for a replica that catches up",
    "popwheel_controller.kubernetes.api": "hands its calls to threads",
    "popwheel_controller.kubernetes.reconciler": "deals with some resources at once",
    "popwheel_controller.kubernetes.mirror": "waits for switchovers",
    "popwheel_controller.kubernetes.rounds": "waits for what is new",
    "popwheel_controller.kubernetes.resource_watch": "watches resources",
    "popwheel_controller.store.leadership": "renews its lease, or waits for another's to end",
    "popwheel_controller.broker_groups.overseer": "looks at replicas several times a second, and probes them",
    "popwheel_controller.cluster.inspections": "waits for answers of processes",
    "popwheel_controller.http.debug_routes": "makes few pages at once",
    "popwheel_controller.http.send_routes": "leaves the loop to others between the pieces of a body",
    "popwheel_controller.http.tail": "waits between two looks",
    "popwheel_controller.cluster.inspection_streams": "holds the streams of processes that are asked",
    "popwheel_controller.broker_groups.replica_streams": "holds the streams of replicas",
    "popwheel_controller.cluster.server": "answers calls",
    "popwheel_controller.cluster.change_log": "waits a second until a line is stored",
    "popwheel_controller.cluster.admission": "waits until the cluster's id is stored",
    "popwheel_controller.cluster.state_writer": "waits until a change is saved",
    "popwheel_controller.http.recovery_routes": "serves one recovery at a time, and plans it in a thread",
    "popwheel_controller.http.status_routes": "asks all processes at once",
    "popwheel_controller.cluster.stored_cluster": "reads again what was out of date",
    "popwheel_proxy.receive.ack_handler": "asks several brokers at once",
    "popwheel_proxy.receive.renewal": "renews and releases many handles a part at a time",
    "popwheel_proxy.protocol.turns": "leaves the loop to others between the pieces of a request",
    "popwheel_proxy.app": "wires the proxy and runs what time brings about",
    "popwheel_proxy.receive.client_list": "leaves the loop to others between the parts of a list",
    "popwheel_proxy.brokers.background": "holds the tasks that nobody waits for",
    "popwheel_proxy.brokers.brokers": "leaves calls to a former master a moment to end",
    "popwheel_proxy.brokers.parked_calls": "lets calls wait until they may try again",
    "popwheel_proxy.send.batcher": "lets senders wait for the Put that carries them",
    "popwheel_proxy.send.batchers": "looks at Puts in flight from time to time",
    "popwheel_proxy.send.send_queues": "lets sends of a message group wait for one another",
    "popwheel_proxy.lite.lite_sync": "tells all brokers at once, one thing after another",
    "popwheel_proxy.receive.absent_names": "holds polls until a name is made",
    "popwheel_proxy.receive.notifications": "holds the streams of notifications open",
    "popwheel_proxy.receive.poll": "lets a poll wait, and tells its machine the time",
    "popwheel_proxy.protocol.spans": "waits for the last spans",
    "popwheel_proxy.send.check_links": "holds the streams open by which brokers have producers asked",
    "popwheel_proxy.receive.shared_count": "exchanges counts with other proxies every second",
    "popwheel_proxy.session.telemetry": "holds the streams of clients open",
    "popwheel_rpc.client.socket_channel": "connects",
    "popwheel_rpc.client.client_call": "lets callers wait for their answer",
    "popwheel_rpc.client.client_connection": "is the asyncio protocol of a connection",
    "popwheel_rpc.deadline_timer": "sleeps until the next deadline",
    "popwheel_rpc.membership.controller_watch": "keeps a stream open and opens it anew",
    "popwheel_rpc.server.grpcio_server": "serves on grpcio",
    "popwheel_rpc.server.host": "tells when its last connection is gone",
    "popwheel_rpc.server.light_task": "steps a handler without a task of its own",
    "popwheel_rpc.local": "calls a service of the same process",
    "popwheel_rpc.membership.inspection_stream": "keeps a stream open and opens it anew",
    "popwheel_rpc.membership.registrar": "keeps a stream open and opens it anew",
    "popwheel_rpc.server.server": "listens",
    "popwheel_rpc.server.server_call": "lets a handler wait for its messages",
    "popwheel_rpc.server.server_connection": "is the asyncio protocol of a connection",
    "popwheel_rpc.socket.endpoint": "is the asyncio protocol of a connection",
}
"""Module -> why it may use asyncio. All others decide: they are told what they need and return what is to be done."""

TOUCHING = {
    CLOCK: "is the clock",
    "popwheel_cli.admin.api": "calls the admin API",
    "popwheel_cli.admin.cluster": "waits between two looks",
    "popwheel_cli.admin.check": "draws the name of a run",
    "popwheel_cli.admin.connection": "reads the environment",
    "popwheel_cli.admin.context": "reads the environment",
    "popwheel_cli.admin.contexts": "keeps a file",
    "popwheel_cli.admin.dead_letters": "waits between two batches",
    "popwheel_cli.admin.message_read": "asks how wide the terminal is",
    "popwheel_cli.admin.message_send": "asks for the machine's name, and draws what ids begin with",
    "popwheel_cli.admin.proxy_way": "draws the name of a client",
    "popwheel_cli.messages.client": "speaks TLS",
    "popwheel_cli.admin.debug": "writes the file of a bundle",
    "popwheel_cli.admin.health": "asks servers over HTTP, and waits between two looks",
    "popwheel_cli.admin.drill": "signals processes, and draws the name of a run",
    "popwheel_cli.process.broker_process": "looks at a process, and signals it",
    "popwheel_cli.cluster.children": "starts processes, signals them, reads the ends of their logs",
    "popwheel_cli.cluster.cluster": "makes the folder of the logs",
    "popwheel_cli.process.console": "draws a secret, or reads it",
    "popwheel_cli.process.cores": "asks the system how many cores there are",
    "popwheel_cli.process.data_lock": "holds the data folder for this process",
    "popwheel_cli.drills.links": "makes a socket in the data folder",
    "popwheel_cli.process.listeners": "asks for the machine's name",
    "popwheel_cli.healthcheck": "reads another process's command line, and asks it over HTTP",
    "popwheel_cli.main": "reads the environment",
    "popwheel_cli.cluster.parent": "has the kernel end a child with its parent",
    "popwheel_cli.process.ports": "binds the ports that it reserves",
    "popwheel_cli.process.service_process": "draws the seed of the random source, and says which process it is",
    "popwheel_cli.process.heartbeat": "writes into a pipe",
    "popwheel_cli.process.quick_load": "sets variables for libraries",
    "popwheel_cli.process.run": "takes signals",
    "popwheel_cli.drills.socket_owner": "asks the kernel whose a socket is",
    "popwheel_cli.process.standalone": "draws the seed of the random source",
    "popwheel_common.settings.config": "reads the file of settings",
    "popwheel_common.disk": "is the disk",
    "popwheel_common.http": "is an HTTP server",
    "popwheel_common.log_writer": "writes the log from a thread",
    "popwheel_common.web.connections": "asks how many files may be open",
    "popwheel_common.web.before_answer": "stands around an HTTP application",
    "popwheel_common.web.security_headers": "stands around an HTTP application",
    "popwheel_common.web.gate": "stands before an HTTP application",
    "popwheel_common.web.refusals": "answers requests of HTTP",
    "popwheel_common.web.routes": "gives routes to an HTTP application",
    "popwheel_common.settings.watched_file": "reads a file anew when it changes",
    "popwheel_console.api_client": "calls an HTTP application, or the leader over HTTP",
    "popwheel_console.console": "declares routes of HTTP",
    "popwheel_console.login.logins": "reads and sets cookies, and reads forms",
    "popwheel_console.login.oidc": "asks a provider over HTTP, and reads the client's secret",
    "popwheel_console.login.pages": "declares routes of HTTP",
    "popwheel_console.login.session": "draws the ids of sessions",
    "popwheel_console.static_files": "reads the files for browsers",
    "popwheel_controller.http.admin": "declares routes of an HTTP API",
    "popwheel_controller.http.api_document": "reads the file of examples when somebody asks for it",
    "popwheel_controller.http.browse_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.broker_pages": "declares parameters of an HTTP API",
    "popwheel_controller.http.changes_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.dead_letter_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.send_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.tail": "answers requests of HTTP",
    "popwheel_controller.http.tail_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.guard": "stands before the routes of an HTTP API",
    "popwheel_controller.http.audit_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.client_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.consumption_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.debug_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.activity_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.balance_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.pages": "declares routes of an HTTP API",
    "popwheel_controller.http.path_parts": "declares parameters of an HTTP API",
    "popwheel_controller.http.poll_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.settings_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.holder_routes": "declares routes of an HTTP API",
    "popwheel_controller.kubernetes.api": "calls the API server in threads, and reads in which namespace it is",
    "popwheel_controller.http.quarantine_routes": "declares routes of an HTTP API",
    "popwheel_controller.http.status_routes": "declares routes of an HTTP API, and asks others over HTTP",
    "popwheel_controller.http.timer_routes": "declares routes of an HTTP API",
    "popwheel_controller.store.private_disk": "makes files that nobody else may read, and locks folders",
    "popwheel_proxy.protocol.spans": "exports the last spans in a thread",
    "popwheel_rpc.socket.certificate_files": "reads certificates",
    "popwheel_rpc.client.socket_channel": "speaks TLS",
    "popwheel_rpc.client.client_connection": "speaks TLS",
    "popwheel_rpc.server.grpcio_server": "is grpcio's server",
    "popwheel_rpc.server.host": "speaks TLS",
    "popwheel_rpc.server.server": "speaks TLS",
    "popwheel_rpc.server.server_connection": "speaks TLS",
    "popwheel_rpc.socket.certificates": "has a key in a file for as long as OpenSSL reads it",
    "popwheel_rpc.socket.tls": "reads certificates",
    "popwheel_testing.child": "looks for its parent, and removes their folder",
    "popwheel_testing.plugin": "draws names that no other test has",
    "popwheel_testing.server": "starts a process in a temporary folder, and asks it over HTTP",
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
        for line, name in source.facts.uses
        if CLOCK_READS.fullmatch(name) or RANDOMNESS.fullmatch(name) or WORLD.fullmatch(name)
    }
    found |= {f"{source.name}:{line}: .{name}()" for line, name in source.facts.method_names if name in FILE_METHODS}
    return sorted(found)


def waits(source: Source) -> list[str]:
    """Where a module uses asyncio."""
    found = {f"{source.name}:{line}: {name}" for line, name in source.facts.uses if name.startswith("asyncio.")}
    return sorted(found)


def floor(module: str) -> tuple[int, str]:
    package = module.split(".")[0].removeprefix("popwheel_")
    return FLOORS[package], package


def test_imports_go_one_way() -> None:
    wrong = []
    for source in of_services():
        own_floor, own_package = floor(source.module)
        for imported in source.facts.imports:
            if not imported.startswith("popwheel_"):
                continue
            other_floor, other_package = floor(imported)
            if other_package != own_package and other_floor >= own_floor:
                wrong.append(f"{source.name} imports {imported}")
    assert wrong == []


def imports_within(service: str) -> dict[str, set[str]]:
    """Module of a service -> the modules of that service that it imports."""
    found = {
        source.module: source.facts.imports
        for source in of_services()
        if source.module.startswith(f"popwheel_{service}.")
    }
    return {module: imports & (found.keys() - {module}) for module, imports in found.items()}


@pytest.mark.parametrize("service", FOLDERS)
def test_the_table_has_all_folders(service: str) -> None:
    folders = {file.parent.name for file in (ROOT / "services" / service / f"popwheel_{service}").glob("*/__init__.py")}
    assert folders - {GENERATED.rpartition(".")[2]} == set(FOLDERS[service])


@pytest.mark.parametrize("service", FOLDERS)
def test_folders_import_one_way(service: str) -> None:
    order, imports = FOLDERS[service], imports_within(service)
    wings = {module: module.split(".")[1] for module in imports}
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


def test_features_are_known_by_the_list_of_wings_alone() -> None:
    found: dict[str, set[str]] = {feature: set() for feature in FEATURES}
    for source in of_services():
        for name in source.facts.imports:
            feature = name.removeprefix("popwheel_broker.").partition(".")[0]
            if feature in FEATURES and not source.module.startswith(f"popwheel_broker.{feature}."):
                found[feature].add(source.module.removeprefix("popwheel_broker."))
    assert found == {feature: {WING_LIST, *others} for feature, others in FEATURES.items()}, (
        "a feature's folder is imported by core/wings.py alone; where one of FEATURES is imported by fewer, take it "
        "from the list"
    )


@pytest.mark.parametrize("service", FOLDERS)
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
        for line, name in source.facts.uses
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
    used = {imported for source in everything for imported in source.facts.imports if imported != source.module}
    assert modules - used - ENTRY_POINTS == set()


def test_tests_do_not_sleep() -> None:
    wrong = [
        f"{source.name}:{line}"
        for source in sources("tests")
        if "sleep" in source.text  # parsing the others takes seconds
        if not source.name.startswith("tests/harness/")  # waits for other processes, which cannot be told the time
        for line, name in source.facts.uses
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
