"""A server for tests: `popwheel standalone` as a child process that leaves nothing behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from popwheel_cli.settings import assigned
from popwheel_common.clock import SystemClock

_HOST = "127.0.0.1"
_QUICK = {"broker.flush": "async"}
"""The data does not outlive the test, so no send waits for the disk."""
_START_TRIES = 3
_START_S_MAX = 60.0
_STOP_S_MAX = 15.0
_POLL_S = 0.01
_ANSWER_S_MAX = 10.0
_LOG_TAIL_CHARACTERS = 4_000
_TAKEN = "cannot listen on"


class ServerFailedError(Exception):
    """Failure of a server: it did not start, ended by itself, or refused a request; the text says why."""


class _PortTakenError(ServerFailedError):
    """Error: another process has taken a port that was free a moment ago."""


class PopwheelServer:
    """Server with its own ports and temporary folder. Use it as a context manager, or call `start` and `stop`.

    It ends with this process, also after a kill, and removes its folder.

    Args:
        settings: as in docs/reference/options.md, `{"proxy.receive.invisible_ms_min": 1000}`. Without `broker.flush`
            nobody waits for the disk. Variables `POPWHEEL_...` of the environment do not count.
        topics: made at the start: their names with their types (`NORMAL`, `FIFO`, `DELAY`, `TRANSACTION` ...). Others
            are made on first use.
    """

    def __init__(
        self, settings: Mapping[str, object] | None = None, *, topics: Mapping[str, str] | None = None
    ) -> None:
        self._settings = {**_QUICK, **(settings or {})}
        self._topics = dict(topics or {})
        self._folder = Path()
        self._ports = (0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        # Without the proxy that the environment may name: it does not reach this machine's loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def endpoints(self) -> str:
        """`host:port` for clients: what `ClientConfiguration` takes."""
        return f"{_HOST}:{self._ports[0]}"

    @property
    def http_url(self) -> str:
        """Base of the admin API (`/api/v1`), `/readyz` and `/metrics`."""
        return f"http://{_HOST}:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._running().pid

    def start(self) -> None:
        """Start it; return when it is ready and has its topics.

        Raises:
            ServerFailedError: it cannot start; the text has the end of its log.
        """
        if self._process is not None:
            raise ServerFailedError("it runs already; stop it first, or make another PopwheelServer")
        for tries_left in reversed(range(_START_TRIES)):
            try:
                self._start()
                break
            except _PortTakenError:
                if not tries_left:
                    raise
        try:
            for name, kind in self._topics.items():
                self.create_topic(name, type=kind)
        except BaseException:
            self._abandon()
            raise

    def stop(self) -> None:
        """End it, and remove its folder.

        Raises:
            ServerFailedError: it had ended before, or did not end well; the text has the end of its log.
        """
        process = self._running()
        code = process.poll()
        if code is not None:
            why = f"the server ended by itself, with exit code {code}"
        else:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_STOP_S_MAX)
                why = "" if code == 0 else f"the server ended with exit code {code} when it was stopped"
                if code < 0:  # by a signal that is not ours: that one it takes
                    why = f"the server ended by itself, with exit code {code}"
            except subprocess.TimeoutExpired:
                why = f"the server was still there {_STOP_S_MAX:.0f} s after SIGTERM, and was killed"
        log = self._log_tail()
        self._abandon()
        if why:
            raise ServerFailedError(f"{why}:\n{log}")

    def log_text(self) -> str:
        """Return its log so far."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if self._process is not None and path.exists() else ""

    def create_topic(self, name: str, **properties: object) -> None:
        """Create a topic by the admin API.

        Args:
            name: its name.
            properties: further ones of `POST /api/v1/topics`, such as `type="FIFO"` or `queues=1`.

        Raises:
            ServerFailedError: it was refused; the text says why.
        """
        self._post("topics", {"name": name, **properties})

    def create_group(self, name: str, **properties: object) -> None:
        """Create a consumer group by the admin API.

        Args:
            name: its name.
            properties: further ones of `POST /api/v1/groups`, such as `fifo=True` or `max_attempts=2`.

        Raises:
            ServerFailedError: it was refused; the text says why.
        """
        self._post("groups", {"name": name, **properties})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except ServerFailedError as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def _start(self) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="popwheel-"))
        try:
            with ExitStack() as reserved:
                self._ports = (_free_port(reserved), _free_port(reserved))
                with (folder / "log").open("wb") as log:
                    self._process = subprocess.Popen(
                        [
                            *(sys.executable, "-m", "popwheel_testing.child", str(os.getpid()), str(folder)),
                            *("standalone", "--data-dir", str(folder / "data"), "--host", _HOST),
                            *("--grpc-port", str(self._ports[0]), "--http-port", str(self._ports[1])),
                            *assigned(self._settings),
                        ],
                        cwd=folder,  # no module of the folder that tests run in hides one of ours
                        env={name: value for name, value in os.environ.items() if not name.startswith("POPWHEEL_")},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C is for the tests, which then stop it
                    )
                self._wait_until_ready(self._process)
        except BaseException:
            self._abandon()
            raise

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        monotonic = SystemClock().monotonic
        until = monotonic() + _START_S_MAX
        while monotonic() < until:
            if self._is_ready():
                return
            try:
                code = process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            error = _PortTakenError if _TAKEN in self.log_text() else ServerFailedError
            raise error(f"the server ended with exit code {code} at its start:\n{self._log_tail()}")
        raise ServerFailedError(f"the server was not ready after {_START_S_MAX:.0f} s:\n{self._log_tail()}")

    def _is_ready(self) -> bool:
        try:
            with self._opener.open(f"{self.http_url}/readyz", timeout=_ANSWER_S_MAX):
                return True
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass  # it does not listen yet
        return False

    def _post(self, path: str, body: Mapping[str, object]) -> None:
        request = urllib.request.Request(
            f"{self.http_url}/api/v1/{path}",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=_ANSWER_S_MAX):
                return
        except urllib.error.HTTPError as error:
            with error:
                refusal = _sentence(error.read())
            raise ServerFailedError(f"{path} {body['name']}: {refusal or error}") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailedError("the server does not run: call `start`, or use it in a `with` statement")
        return self._process

    def _log_tail(self) -> str:
        return self.log_text()[-_LOG_TAIL_CHARACTERS:]

    def _abandon(self) -> None:
        """Kill it if it still runs, and remove its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._folder)


def _free_port(reserved: ExitStack) -> int:
    """Return a free port; on Linux no other process gets it before the server listens.

    A bound socket that does not listen keeps others away there, but not a server that sets SO_REUSEADDR.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((_HOST, 0))
    port: int = sock.getsockname()[1]
    if sys.platform == "linux":
        reserved.enter_context(sock)
    else:
        sock.close()
    return port


def _sentence(answer: bytes) -> str:
    """Return the sentence of a refusal; empty if the answer has none."""
    try:
        refusal: Any = json.loads(answer)
    except ValueError:
        return ""
    return str(refusal.get("message", "")) if isinstance(refusal, dict) else ""
