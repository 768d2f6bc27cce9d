"""The benchmark runs, from start-up to kill -9, with numbers too small to mean anything."""

import json
import subprocess
import sys
from pathlib import Path

from bench.measure import CASES
from tests.harness.standalone import ROOT

TIMERS_TRIED = ("timers-2000", "timers-accept", "timers-burst", "timers-recovery-1m", "timers-idle")
CASES_TRIED = ("send-16", "send-batch", "drain", "e2e-1", "idle-polls", "memory", "crash", *TIMERS_TRIED)


def test_the_bench_measures_a_server(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    words = ["--tiny", "--runs", "1", "--flush", "async", "--json", str(lines), "--data-dir", str(tmp_path)]
    for case in CASES_TRIED:
        words += ["--case", case]
    ended = subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

    runs = {run["case"]: run for run in map(json.loads, lines.read_text().splitlines())}
    assert tuple(runs) == CASES_TRIED
    assert set(CASES_TRIED) <= set(CASES)
    for case in ("send-16", "send-batch", "drain"):
        assert runs[case]["messages_per_s"] > 0
    assert runs["drain"]["duplicates"] == 0
    assert runs["e2e-1"]["missing"] == runs["e2e-1"]["duplicates"] == 0
    assert runs["e2e-1"]["e2e_p50_ms"] > 0
    assert runs["memory"]["anonymous_mib"] > 1
    assert runs["crash"]["first_send_s"] > 0
    for case in ("timers-2000", "timers-burst"):
        assert runs[case]["missing"] == runs[case]["duplicates"] == runs[case]["early"] == 0
    assert runs["timers-2000"]["late_p99_ms"] > 0
    assert runs["timers-accept"]["delayed_to_normal"] >= 0
    assert runs["timers-burst"]["messages_per_s"] > 0
    assert runs["timers-recovery-1m"]["first_send_s"] > 0
    assert runs["timers-idle"]["server_cpu_percent"] >= 0
    assert all("python -m bench --case" in run["command"] for run in runs.values())
    assert "messages_per_s" in ended.stdout, "the table"
