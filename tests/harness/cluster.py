"""`popwheel cluster` as an operator runs it: one command, many processes."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.harness.ports import free_ports
from tests.harness.preloaded import PROGRAM, PreloadedProcess, can_fork
from tests.harness.preloaded_children import forks_children
from tests.harness.standalone import ROOT, ProcessFailedError

Found = TypeVar("Found")

START_S_MAX = 60.0
STOP_S_MAX = 30.0
_POLL_S = 0.02


class ClusterCommand:
    """One `popwheel cluster`, on ports and in a folder of its own. Use as a context manager.

    Args:
        folder: for data and output.
        words: more words for its command line.
        loads_itself: its processes load their modules as programs do (`tests/harness/preloaded.py`).
    """

    def __init__(self, folder: Path, *words: str, loads_itself: bool = False) -> None:
        self.data_dir = folder / "data"
        self.output = folder / "output"
        self.errors = folder / "errors"
        (self.http_port,) = free_ports(1)
        self._words = words
        self._is_forked = not loads_itself and can_fork(os.environ)
        self._process: subprocess.Popen[bytes] | PreloadedProcess | None = None

    @property
    def url(self) -> str:
        """Base of the controller's admin API."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """Number of the parent."""
        assert self._process is not None
        return self._process.pid

    @property
    def command(self) -> list[str]:
        """The whole command line."""
        return [
            *(*PROGRAM, "cluster"),
            *("--data-dir", str(self.data_dir), "--grpc-port", "0", "--http-port", str(self.http_port)),
            *self._words,
        ]

    def start(self) -> None:
        """Start it; returns when it has shown its table, and so is ready.

        Raises:
            ProcessFailedError: it ended, or is not ready in time.
        """
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            if self._is_forked:
                self._process = PreloadedProcess(self.command[len(PROGRAM) :], os.environ, output, errors)
            else:
                self._process = subprocess.Popen(
                    self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
                )
        until = time.monotonic() + START_S_MAX
        while not self.rows():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise ProcessFailedError(f"did not start:\n{self.explain()}")
            time.sleep(_POLL_S)

    def rows(self) -> dict[str, list[str]]:
        """The table it has shown: by name of the process, gRPC address, HTTP address, log."""
        text = self.output.read_text()
        lines = text.splitlines() if text.endswith("\n") else []
        return {words[0]: words[1:] for words in map(str.split, lines[1:])}

    def page(self, url: str) -> tuple[int, str]:
        """What a page answers: status and text; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def status(self) -> dict[str, dict[str, Any]]:
        """What the controller says of brokers and proxies, by name."""
        code, text = self.page(f"{self.url}/api/v1/cluster/status")
        assert code == 200, text
        return {one["name"]: one for one in json.loads(text)["processes"]}

    def send_signal(self, name: str, number: signal.Signals) -> int:
        """Send a broker or proxy a signal; its process number."""
        pid: int = self.status()[name]["pid"]
        os.kill(pid, number)
        return pid

    def kill_process(self, name: str) -> None:
        """End a proxy, or the master of a broker group, as kill -9 does."""
        code, text = self.page(f"{self.url}/api/v1/cluster/status")
        assert code == 200, text
        (pid,) = [
            one["pid"] for one in json.loads(text)["processes"] if one["name"] == name and one["role"] in ("", "master")
        ]
        os.kill(pid, signal.SIGKILL)

    def wait_until(self, wanted: Callable[[dict[str, dict[str, Any]]], bool], timeout_s: float = 15.0) -> None:
        """Wait until the status is as wanted."""
        until = time.monotonic() + timeout_s
        while not wanted(status := self.status()):
            assert time.monotonic() < until, f"{status}\n{self.explain()}"
            time.sleep(_POLL_S)

    def pids(self) -> list[int]:
        """Numbers of all its processes, the parent first."""
        found = [self.pid]
        for pid in found:  # grows while it is gone through
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                found += [pid for pid in map(int, text.split()) if not forks_children(pid)]
        return found

    def interrupt(self) -> None:
        """What Ctrl-C does to it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float = STOP_S_MAX) -> int:
        """Wait for its end; the exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """End the parent as kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def explain(self) -> str:
        """What it has said, and the ends of its processes' logs."""
        logs: Sequence[Path] = sorted(self.data_dir.glob("logs/*"))
        ends = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs)
        return f"{self.output.read_text()}\n{self.errors.read_text()[-6000:]}\n{ends}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.interrupt()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()
        if error is not None:
            error.add_note(self.explain())


def wait_until_found(read: Callable[[], list[Found]], timeout_s: float) -> list[Found]:
    """Read until there is something; return nothing if there is nothing in time.

    Args:
        read: gives what there is up to now.
        timeout_s: for how long to wait.
    """
    until = time.monotonic() + timeout_s
    while not (found := read()) and time.monotonic() < until:
        time.sleep(_POLL_S)
    return found


def wait_until_gone(pids: Sequence[int], timeout_s: float) -> None:
    """Wait until none of these processes is there any more.

    Raises:
        ProcessFailedError: some are.
    """
    until = time.monotonic() + timeout_s
    while left := [pid for pid in pids if _is_there(pid)]:
        if time.monotonic() > until:
            raise ProcessFailedError(f"still there: {left}")
        time.sleep(_POLL_S)


def _is_there(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody has waited for yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
