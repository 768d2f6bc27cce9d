"""What operating systems lack that Popwheel is not tested on: docs/operate/install.md."""

import asyncio
import fcntl
import subprocess
import sys
from typing import Any

import pytest

from popwheel_cli.errors import WrongUseError
from popwheel_cli.process import run
from popwheel_common import disk
from popwheel_common.logs import LogOptions

AS_ON_WINDOWS = """
import os, select, sys

for name in ("fcntl", "resource", "uvloop"):
    sys.modules[name] = None
del os.fdatasync, os.preadv, os.pwritev, select.PIPE_BUF
import popwheel_cli.cluster.cluster, popwheel_cli.process.run, popwheel_cli.process.standalone
from click.testing import CliRunner
from popwheel_cli.main import main

for words in (["--help"], ["standalone", "--help"], ["admin", "topic", "--help"]):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
"""


def test_help_and_imports_need_nothing_that_windows_lacks() -> None:
    done = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_servers_say_what_to_do_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(WrongUseError, match="do not run on Windows itself"):
        run.run(lambda: pytest.fail("nothing is started"), LogOptions())


def test_without_uvloop_the_loop_is_that_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run._loop_factory().__module__ == "uvloop"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run._loop_factory() is asyncio.new_event_loop


def test_on_macos_bytes_go_through_the_cache_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *words: asked.append(words))
    disk._flush(7)
    assert asked == [(7, 51)]
