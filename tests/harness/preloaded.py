"""Processes of `popwheel` that are forked from one which has loaded all modules, as loading takes most of a start.

`python -m tests.harness.preloaded FD` is that one: it is asked over a socket, one for each process of tests. What is
forked has the arguments, folder, variables, output and command line that it would have as a program of its own. It
differs in that its modules were loaded by another: tests of starts use programs. Children of a cluster
and workers are forked, too (`tests/harness/preloaded_children.py`).
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

from popwheel_cli.process.quick_load import loads_quickly
from popwheel_controller import http

_ROOT = Path(__file__).resolve().parent.parent.parent
MAIN = "popwheel_cli.main"
PROGRAM = (sys.executable, "-m", MAIN)
"""`popwheel`, whose words follow."""
_LOADED = (
    "popwheel_cli.process.console",
    "popwheel_cli.process.run",
    "popwheel_cli.process.standalone",
    "popwheel_common.http",
    "popwheel_rpc.server.server",
    "uvloop",
)
"""What a server loads, with what those load, and the routes of the admin API."""
_STATUS = struct.Struct("!i")
_REQUEST_BYTES_MAX = 1 << 20
_FILES_MAX = 64
_OUT_OF_THE_WAY = 200
"""Numbers of files from here on are wanted by nobody."""
_ARG_START, _ARG_END = 45, 46
"""Places in `/proc/PID/stat`, behind the name: where the kernel finds the command line."""
_COMMAND_LINE_BYTES = 16_384
_HAVE_CHILDREN = frozenset({"--workers", "--brokers"})
"""Options with which a standalone starts further processes."""
_IN_TURN = threading.Lock()
"""Held by the thread that asks for a process."""


class PreloadedProcess:
    """Process that was forked; used as `subprocess.Popen`.

    Args:
        words: the command line of `popwheel`.
        environment: its variables.
        output: for standard output, and for standard error unless that has its own.
        errors: for standard error.
    """

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes] | None = None
    ) -> None:
        self.returncode: int | None = None
        self._words = list(words)
        self._status, child_end = socket.socketpair()
        with child_end, Path(os.devnull).open("rb") as nothing, _IN_TURN:
            files = (nothing.fileno(), output.fileno(), (errors or output).fileno(), child_end.fileno())
            self.pid = _parent().fork(self._words, environment, files)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code.

        Raises:
            subprocess.TimeoutExpired: it is still there.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            status = self._status.recv(_STATUS.size)
            self._status.close()
            assert status, "the process that has loaded all modules is gone"
            self.returncode = os.waitstatus_to_exitcode(_STATUS.unpack(status)[0])
        return self.returncode


def can_fork(environment: Mapping[str, str]) -> bool:
    """Return whether Python would run in the same way with these variables."""
    return sys.platform == "linux" and _for_python(environment) == _for_python(os.environ)


def _for_python(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "COV")) and name != "PYTHONUNBUFFERED"
    }


class _Parent:
    """Process that has loaded all modules, as its user sees it."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.preloaded", str(other.fileno()), "." * _COMMAND_LINE_BYTES],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
        atexit.register(self._close)

    def fork(self, words: list[str], environment: Mapping[str, str], files: Sequence[int]) -> int:
        """Have a process be forked; its number."""
        request = Request([*PROGRAM, *words], dict(environment), [0, 1, 2])
        socket.send_fds(self._socket, [request.encode()], list(files))
        return int(self._socket.recv(64))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _parent() -> _Parent:
    return _Parent()


@dataclass(frozen=True, slots=True)
class Request:
    """What a process that is to be forked runs with."""

    command: list[str]
    """The whole command line."""
    environment: dict[str, str]
    numbers: list[int]
    """Numbers of its open files, in the order in which they are sent."""

    @property
    def words(self) -> list[str]:
        """Return what follows the program."""
        return self.command[self.command.index(MAIN) + 1 :]

    def encode(self) -> bytes:
        """Return it as it is sent."""
        return json.dumps(asdict(self)).encode()


def receive(requests: socket.socket) -> tuple[Request, list[int]] | None:
    """Wait for a request; with it come the files. None when nobody can ask any more."""
    text, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, _FILES_MAX)
    return (Request(**json.loads(text)), files) if text else None


def take_files(numbers: Sequence[int], files: Sequence[int]) -> None:
    """Give files the numbers that this process is to know them by."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
        os.close(file)


def _serve(requests: socket.socket) -> Request:
    """Fork what is asked for, and tell of the ends. Returns in a forked process; ends when nobody can ask any more."""
    reported_to: dict[int, socket.socket] = {}
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests, awake], [], [])
        if awake in ready:
            awake.recv(4096)
            _report_ends(reported_to)
        if requests not in ready:
            continue
        received = receive(requests)
        if received is None:
            sys.exit()
        request, (*files, status) = received
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (requests, awake, wake, *reported_to.values()):
                each.close()
            os.close(status)
            take_files(request.numbers, files)
            return request
        for file in files:
            os.close(file)
        reported_to[pid] = socket.socket(fileno=status)
        requests.send(str(pid).encode())


def _report_ends(reported_to: dict[int, socket.socket]) -> None:
    """Tell the exit codes of those that have ended."""
    while reported_to:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with reported_to.pop(pid) as other, suppress(OSError):
            other.send(_STATUS.pack(status))


@loads_quickly
def _load() -> int:
    routes = pkgutil.iter_modules(http.__path__, f"{http.__name__}.")
    for name in (*_LOADED, *(each.name for each in routes)):
        importlib.import_module(name)
    _compile_templates()
    gc.collect()
    gc.freeze()
    return 0


def _compile_templates() -> None:
    from popwheel_common.clock import SystemClock
    from popwheel_console.view.renderer import Renderer
    from tests.harness.compiled_templates import keep_compiled

    keep_compiled()
    Renderer(SystemClock()).compile_all()


def _show_command_line(words: Sequence[str]) -> None:
    """Have `/proc` show a command line in place of this process's own, which is as long as any."""
    places = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(places[_ARG_START]), int(places[_ARG_END])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    assert len(text) < end - start, "too long a command line"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run(request: Request) -> NoReturn:
    """Run `popwheel` in a process that was forked."""
    if request.words[:1] == ["cluster"] or _HAVE_CHILDREN.intersection(request.words):
        request = fork_children(request)
    _show_command_line(request.command)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [MAIN, *request.words]
    runpy.run_module(MAIN, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    from tests.harness.preloaded_children import fork_children

    _load()
    _run(_serve(socket.socket(fileno=int(sys.argv[1]))))
