"""Install a wheel as a user would, in a clean environment, and send first messages through what it starts.

It runs beside a folder `services/` whose modules fail, as most back ends have one of that name: none of it may be
imported. The official client is that of the environment which runs this.
"""

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.harness.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "send_and_receive.py"
RECEIVED = "received order 4 attempt 1"
VERBS = (("standalone",), ("standalone", "--workers", "2"), ("cluster", "--groups", "1", "--proxies", "1"))
"""Ways to run Popwheel on one machine."""

_START_S_MAX = 120.0
_CLIENT_S_MAX = 120.0
_STOP_S_MAX = 30.0
_POLL_S = 0.05
_OF_SPARK = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_REMOTE")
_IN_THE_WAY = 'raise RuntimeError("this is the services folder of somebody else")\n'


class InstallError(Exception):
    """An installation or a program of it failed: what it said."""


@dataclass(frozen=True)
class Step:
    """A step.

    Args:
        name: of it.
        seconds: by the clock on the wall.
        cpu_s: of all its processes: what it would take on a machine that does nothing else, if it waits for nothing.
    """

    name: str
    seconds: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.name:<48} {self.seconds:7.1f} s {self.cpu_s:7.1f} s of CPU"


class CleanInstall:
    """An environment of its own, and a folder to start things from.

    Args:
        folder: is made; it must not be there.
        python: the interpreter.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.steps: list[Step] = []
        self._project = folder / "project"
        self._bin = folder / "venv" / "bin"
        self._python = python
        in_the_way = self._project / "services"
        in_the_way.mkdir(parents=True)
        (in_the_way / "__init__.py").touch()
        (in_the_way / "cli.py").write_text(_IN_THE_WAY)
        own = (*("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV"), *_OF_SPARK)
        self._environment = {name: text for name, text in os.environ.items() if name not in own}

    def install(self, requirements: Sequence[str]) -> None:
        """Make the environment, unless that was done already, and install into it.

        Args:
            requirements: wheels, names with versions, and options of pip.

        Raises:
            InstallError: pip refused.
        """
        with self._timed(f"install {' '.join(Path(each).name for each in requirements)}"[:48]):
            if not self._bin.exists():
                self._call([self._python, "-m", "venv", str(self._bin.parent)])
            pip = [str(self._bin / "python"), "-m", "pip", "--disable-pip-version-check"]
            self._call([*pip, "install", "--quiet", *requirements])

    def run(self, words: Sequence[str], seconds_max: float) -> str:
        """Run a program of the environment; what it wrote.

        Args:
            words: its name, and what follows.
            seconds_max: how long it may take.

        Raises:
            InstallError: it failed, or took longer.
        """
        with self._timed(" ".join(Path(each).name for each in words)[:48]):
            return self._call([str(self._bin / words[0]), *words[1:]], seconds_max)

    def first_message(self, words: Sequence[str]) -> None:
        """Start servers, send messages to them and receive them with the official client, and stop them.

        Args:
            words: of the command `popwheel`, without ports and data folder.

        Raises:
            InstallError: no server was ready, no message came, or it did not end as it should.
        """
        with self.server(words) as grpc_port:
            client = [sys.executable, str(EXAMPLE), f"127.0.0.1:{grpc_port}"]
            said = self._call(client, _CLIENT_S_MAX, HOME=str(self._project))
            if RECEIVED not in said:
                raise InstallError(f"the client got no message: {said}")

    @contextmanager
    def server(self, words: Sequence[str]) -> Iterator[int]:
        """Servers that are ready, as long as the context lasts; the port for gRPC.

        Args:
            words: of the command `popwheel`, without ports and data folder.

        Raises:
            InstallError: they were not ready, did not end as they should, or what was done with them raised it; with
                the end of their log.
        """
        grpc_port, http_port = free_ports(2)
        name = f"popwheel {' '.join(words)}"
        log = self._project / f"{http_port}.log"
        ports = ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
        command = [str(self._bin / "popwheel"), *words, "--data-dir", str(self._project / f"data-{http_port}"), *ports]
        with self._timed(name), log.open("wb") as output:
            server = subprocess.Popen(
                command,
                cwd=self._project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                self._until_ready(server, http_port)
                yield grpc_port
                server.send_signal(signal.SIGTERM)
                code = server.wait(_STOP_S_MAX)
                if code != 0:
                    raise InstallError(f"it ended with {code}")
            except (InstallError, subprocess.TimeoutExpired) as error:
                raise InstallError(f"{name}: {error}\n{log.read_text(errors='replace')[-3000:]}") from error
            finally:
                if server.poll() is None:
                    server.kill()
                    server.wait()

    def _until_ready(self, server: "subprocess.Popen[bytes]", http_port: int) -> None:
        until = time.monotonic() + _START_S_MAX
        while server.poll() is None and time.monotonic() < until:
            connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=5)
            with suppress(OSError):
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    connection.close()
                    return
            connection.close()
            time.sleep(_POLL_S)
        raise InstallError(f"it was not ready (exit code {server.poll()})")

    def _call(self, words: Sequence[str], seconds_max: float | None = None, **variables: str) -> str:
        try:
            done = subprocess.run(
                words,
                cwd=self._project,
                env=self._environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds_max,
            )
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"{words[0]} did not end in {seconds_max} s: {error.output!r}") from error
        if done.returncode:
            raise InstallError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began, cpu_began = time.monotonic(), _cpu_s()
        yield
        self.steps.append(Step(name, time.monotonic() - began, _cpu_s() - cpu_began))


def try_wheel(
    wheel: Path, folder: Path, python: str, others: Sequence[str] = (), verbs: Sequence[Sequence[str]] = VERBS
) -> list[Step]:
    """Install a wheel and send first messages; how long each step took, and all of them.

    Args:
        wheel: its file.
        folder: is made; it must not be there.
        python: the interpreter.
        others: further words for pip: `fastapi==0.115.0`.
        verbs: what is started, one after the other.

    Raises:
        InstallError: something failed.
    """
    installed = CleanInstall(folder, python)
    installed.install([str(wheel.resolve()), *others])
    for words in verbs:
        installed.first_message(words)
    steps = installed.steps
    return [*steps, Step("all", sum(each.seconds for each in steps), sum(each.cpu_s for each in steps))]


def _cpu_s() -> float:
    """CPU time of all processes that this one started and that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main(words: Sequence[str] | None = None) -> int:
    """Try a wheel; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("others", nargs="*", help="further words for pip, such as fastapi==0.115.0")
    parser.add_argument("--python", default=sys.executable, help="the interpreter; this one if not given")
    parser.add_argument("--constraint", type=Path, help="a file of versions that pip keeps to")
    given = parser.parse_args(words)
    others = (
        given.others if given.constraint is None else [*given.others, "--constraint", str(given.constraint.resolve())]
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(*try_wheel(given.wheel, Path(folder) / "clean", given.python, others), sep="\n")
        except InstallError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
