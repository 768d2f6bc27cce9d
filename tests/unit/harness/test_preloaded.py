"""Processes that are forked from one that has loaded their modules run as programs of their own do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.preloaded import PreloadedProcess, can_fork
from tests.harness.standalone import ROOT, StandaloneProcess

pytestmark = pytest.mark.skipif(not can_fork(os.environ), reason="processes are forked on Linux only")


@pytest.mark.parametrize("words", [["--version"], ["standalone", "--set", "x.y=1"], ["standalone", "--workers", "0"]])
def test_it_says_and_returns_what_a_program_does(words: list[str], tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as output:
        code = PreloadedProcess(words, os.environ, output).wait(60)
        output.seek(0)
        said = output.read()
    own = subprocess.run(
        [sys.executable, "-m", "popwheel_cli.main", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (code, said) == (own.returncode, own.stdout)


def test_it_has_the_variables_that_it_is_given(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as output:
        assert PreloadedProcess(["context", "list"], os.environ | {"HOME": str(tmp_path)}, output).wait(60) == 0
    assert not can_fork(os.environ | {"PYTHONHASHSEED": "7"}), "Python reads that before anything is loaded"


def test_it_is_stopped_and_killed(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data")
    server.start(until="")
    with pytest.raises(Exception, match="still there"):
        server.wait(0.0)
    os.kill(server.pid, signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    with server:
        assert server._is_forked
