"""How many workers `popwheel standalone` has, and what they hold together."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Counter

from popwheel_cli.main import main
from popwheel_cli.process.cores import cores_within, usable_cores
from popwheel_cli.process.data_lock import DataLock
from popwheel_common.errors import ConfigurationError
from popwheel_common.exposition import PLAIN
from popwheel_common.web.metrics_page import MetricsPage


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("", 8),
        ("max 100000", 8),
        ("-1 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("100000 0", 8),
        ("lots", 8),
    ],
)
def test_a_container_has_as_many_cores_as_its_limit_comes_to(limit: str, cores: int) -> None:
    assert cores_within(8, limit) == cores


def test_there_is_always_one_core() -> None:
    assert cores_within(0, "") == 1
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("value", ["0", "-1", "65", "many", "1.5", "", "AUTO", "٣", "9" * 5000])
def test_a_number_of_workers_that_cannot_be_is_refused_in_a_sentence(value: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ("standalone", "--data-dir", str(tmp_path / "data"), "--workers", value))
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "--workers" in line
    assert "must be a number from 1 to 64, or auto, not" in line
    assert len(line) < 200
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("value", ["0", "65", "many"])
def test_a_number_of_brokers_that_cannot_be_is_refused_in_a_sentence(value: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ("standalone", "--data-dir", str(tmp_path / "data"), "--brokers", value))
    assert (result.exit_code, "--brokers" in result.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


def test_a_record_is_skipped_in_one_log_alone(tmp_path: Path) -> None:
    words = ("standalone", "--data-dir", str(tmp_path / "data"), "--brokers", "2", "--skip-record", "556")
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert (
        "broker.skip_record: is a place in one log, and there are 2: first start and stop the broker" in result.stderr
    )
    assert f"popwheel broker --data-dir {tmp_path}/data/broker-1" in result.stderr
    assert not (tmp_path / "data").exists()


async def test_the_parents_metrics_are_on_the_page_of_its_children() -> None:
    own = CollectorRegistry()
    Counter("calls", "Calls", ["code"], registry=own).labels("OK").inc(2)

    async def read(pairs: bool) -> dict[str, str]:
        page = '# HELP calls_total Calls\n# TYPE calls_total counter\ncalls_total{code="OK"} 3\n'
        return {"broker": page, "0": page if pairs else ""}

    metrics = MetricsPage(own, read)
    for _ in range(2):  # asking twice adds nothing
        lines = (await metrics.text(PLAIN, pairs=False)).decode().splitlines()
        assert [line for line in lines if line.startswith("calls_total")] == [
            'calls_total{code="OK"} 2.0',
            'calls_total{code="OK",worker="broker"} 3',
        ]
        assert lines.count("# TYPE calls_total counter") == 1
    lines = (await metrics.text(PLAIN, pairs=True)).decode().splitlines()
    assert lines[-1] == 'calls_total{code="OK",worker="0"} 3'


def test_a_child_that_has_the_lock_holds_the_folder_after_its_parent(tmp_path: Path) -> None:
    lock, other = DataLock(tmp_path), DataLock(tmp_path)
    with pytest.raises(ValueError, match="take the folder first"):
        _ = lock.descriptor
    lock.acquire()
    assert fcntl.fcntl(lock.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC, "only those that are to have it"
    words = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(lock.descriptor,))
    os.close(lock.descriptor)  # as a kill -9 of the parent does
    with pytest.raises(ConfigurationError, match="in use by process"):
        other.acquire()
    child.communicate(b"\n")
    other.acquire()
    other.release()
