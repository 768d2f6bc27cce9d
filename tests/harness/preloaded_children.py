"""Children of a forked `popwheel cluster`, or workers: they are forked as well, as loading takes most of a start.

What forks them is a process that has loaded all modules and done nothing else. The parent adopts what is forked
(prctl(2), PR_SET_CHILD_SUBREAPER): so it waits for its children and kills them as it does with others.
"""

import asyncio
import ctypes
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.harness.preloaded import MAIN, Request, receive, take_files

_PR_SET_CHILD_SUBREAPER = 36
_PROGRAM = (sys.executable, "-P", "-m", MAIN)
_FORKING = b"tests.harness.preloaded"
_POLL_S = 0.001


def forks_children(pid: int) -> bool:
    """Return whether it is what children are forked from, and no child itself."""
    try:
        return _FORKING in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def fork_children(request: Request) -> Request:
    """Have children of this process be forked from now on. Returns the request in this process, and in each child its
    own.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        asked.close()
        return _serve(requests, parent)
    requests.close()
    forks = _Forks(asked)
    asyncio.create_subprocess_exec = forks.start  # type: ignore[assignment]
    return request


class _Forks:
    """Start of children, as their parent sees it."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked

    async def start(
        self,
        *words: str,
        stdin: int,
        stdout: IO[bytes] | None,
        stderr: IO[bytes] | None,
        start_new_session: bool,
        pass_fds: Sequence[int],
    ) -> "_ForkedChild":
        """Start a child: what `asyncio.create_subprocess_exec` is called with for one."""
        assert words[: len(_PROGRAM)] == _PROGRAM
        assert stdin == asyncio.subprocess.DEVNULL
        assert start_new_session
        request = Request(list(words), dict(os.environ), [0, 1, 2, *pass_fds])
        with Path(os.devnull).open("rb") as nothing:
            output = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
            socket.send_fds(self._asked, [request.encode()], [nothing.fileno(), *output, *pass_fds])
            return _ForkedChild(int(self._asked.recv(64)))


class _ForkedChild:
    """Child that was forked; used as `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._file = os.pidfd_open(pid)
        loop.add_reader(self._file, self._on_end)

    async def wait(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set_result(self.returncode)


def _serve(requests: socket.socket, parent: int) -> Request:
    """Fork what the parent asks for. Returns in a forked child; ends when the parent has ended."""
    while True:
        received = receive(requests)
        if received is None:
            os._exit(0)
        request, files = received
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                break
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(os.read(reader, 64))
        for file in (reader, writer, *files):
            os.close(file)
    while os.getppid() not in (parent, 1):
        time.sleep(_POLL_S)
    requests.close()
    os.close(reader)
    os.close(writer)
    os.setsid()
    take_files(request.numbers, files)
    return request
