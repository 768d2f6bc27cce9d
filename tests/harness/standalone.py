"""`popwheel standalone` as a process of its own, started, stopped and killed as an operator or a crash would."""

import os
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.ports import free_ports
from tests.harness.preloaded import MAIN, PreloadedProcess, can_fork
from tests.harness.preloaded_children import forks_children

ROOT = Path(__file__).resolve().parent.parent.parent

READY = "/readyz"
"""Answers 200 when all is well."""

ALIVE = "/healthz"
"""Answers 200 as soon as anything is served."""

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
"""How long the process may take to end after SIGTERM (issue 3, section 2)."""

_POLL_S = 0.02
_LOG_TAIL_CHARACTERS = 4_000


class ProcessFailedError(Exception):
    """The process did not start, did not stop or ended by itself; the text holds the end of its log."""


class StandaloneProcess:
    """One server process, on ports and in a folder of its own. Use as a context manager (which starts it if it
    does not run yet), or call start and stop.

    Args:
        data_dir: where it keeps its data; kept over `restart` and `kill`.
        extra_args: more words for its command line, such as `["--set", "broker.flush=async"]`.
        log_path: where its output goes; beside the data folder if not given. Appended to over restarts.
        environment: variables that it gets on top of this process's own.
        open_files_max: how many files it may have open; as many as this process if not given.
        module: what to run: the command line, or a module that changes something and then runs it.
        loads_itself: it loads its modules as a program does (`tests/harness/preloaded.py`).
    """

    def __init__(
        self,
        data_dir: Path,
        extra_args: Sequence[str] = (),
        *,
        log_path: Path | None = None,
        environment: dict[str, str] | None = None,
        open_files_max: int | None = None,
        module: str = MAIN,
        loads_itself: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.extra_args = list(extra_args)
        self.log_path = log_path or data_dir.parent / f"{data_dir.name}.log"
        self.grpc_port, self.http_port = free_ports(2)
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._open_files_max = open_files_max
        self._module = module
        is_program = loads_itself or module != MAIN or open_files_max is not None
        self._is_forked = not is_program and can_fork(self._environment)
        self._process: subprocess.Popen[bytes] | PreloadedProcess | None = None

    @property
    def grpc_address(self) -> str:
        """`host:port` of the client protocol; stays the same over restarts."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """Base of the admin API and of `/healthz`, `/readyz`, `/metrics`."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        """Number of the running process."""
        return self._running().pid

    def start(self, *, until: str = READY) -> None:
        """Start the process, and wait until it answers with 200.

        Args:
            until: `READY`, or `ALIVE` where it is expected not to get ready, or "" to wait for nothing.

        Raises:
            ProcessFailedError: it ended, or is not ready after 30 seconds.
        """
        if self._process is not None:
            raise ProcessFailedError("it runs already")
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        words = [
            *("standalone", "--data-dir", str(self.data_dir), "--host", "127.0.0.1"),
            *("--grpc-port", str(self.grpc_port), "--http-port", str(self.http_port)),
            *self.extra_args,
        ]
        with self.log_path.open("ab") as log:
            if self._is_forked:
                self._process = PreloadedProcess(words, self._environment, log)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self._module, *words],
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        if self._open_files_max is not None:
            # Before it gets that far itself: the interpreter takes longer to start than this.
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (self._open_files_max, self._open_files_max))
        if until:
            self.wait_until(until)

    def wait_until(self, path: str) -> None:
        """Wait until a path is answered with 200. Raises as `start` does."""
        process = self._running()
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            code = process.poll()
            if code is not None:
                self._process = None
                raise ProcessFailedError(f"ended with code {code} at its start:\n{self._log_tail()}")
            if self._answers(path):
                return
            time.sleep(_POLL_S)
        self.kill()
        raise ProcessFailedError(f"no 200 from {path} after {START_TIMEOUT_S:.0f} s:\n{self._log_tail()}")

    def stop(self) -> None:
        """Send SIGTERM and wait for the end.

        Raises:
            ProcessFailedError: it did not end within 10 seconds (it is killed then), or not with exit code 0.
        """
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            message = f"still there {STOP_TIMEOUT_S:.0f} s after SIGTERM:\n{self._log_tail()}"
            raise ProcessFailedError(message) from None
        self._process = None
        if code != 0:
            raise ProcessFailedError(f"ended with code {code} after SIGTERM:\n{self._log_tail()}")

    def terminate(self) -> None:
        """Send SIGTERM and do not wait; `stop` or `wait` comes later."""
        self._running().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as kill -9 does, and wait until it is gone."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for a process that ends by itself; its exit code.

        Raises:
            ProcessFailedError: it is still there after `timeout_s` seconds.
        """
        try:
            code = self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessFailedError(f"still there after {timeout_s} s:\n{self._log_tail()}") from None
        self._process = None
        return code

    def restart(self, *, until: str = READY) -> None:
        """Stop it and start it again on the same ports and data; `until` as in `start`."""
        self.stop()
        self.start(until=until)

    def log_text(self) -> str:
        """All that it has written to its standard output and error so far, over all its lives."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if error is None:
            self.stop()
        else:
            self.kill()
            error.add_note(f"log of the server:\n{self._log_tail()}")

    def _running(self) -> subprocess.Popen[bytes] | PreloadedProcess:
        if self._process is None:
            raise ProcessFailedError(f"it does not run:\n{self._log_tail()}")
        return self._process

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.http_url}{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _log_tail(self) -> str:
        return self.log_text()[-_LOG_TAIL_CHARACTERS:]


def child_pids(pid: int) -> list[int]:
    """The processes that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in map(int, children) if not forks_children(child)]
