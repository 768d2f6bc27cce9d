"""The servers that are measured: our own, started here as one process, or another one that runs already."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from bench import requests
from bench.client import CallFailedError, Client
from bench.connection import ConnectionFailedError
from bench.headers import NOBODY
from popwheel_common.contract.credentials import Credentials
from tests.harness.standalone import READY, StandaloneProcess, child_pids

_PROBE_PAUSE_S = 0.005
FIRST_SEND_TIMEOUT_S = 60.0


class Server(Protocol):
    """Facts of a server that every case needs."""

    name: str
    words: str
    """Words that choose it on the bench's command line."""

    @property
    def address(self) -> str:
        """`host:port` of the client protocol."""

    @property
    def pids(self) -> Sequence[int]:
        """Its processes; none if they are not known, then CPU and memory are not measured."""


class CommandFailedError(Exception):
    """A command that had to do something to a peer did not."""


class PeerServer:
    """A server that somebody else has started; its topics must exist.

    Args:
        address: `host:port`.
        pids: its processes.
        kill_master: the words of a command that kills the master of its replicas as kill -9 does, and has it start
            again; without them it has none.
        in_sync: the words of a command whose exit code is 0 when all replicas are in sync.
    """

    def __init__(
        self, address: str, pids: Sequence[int], kill_master: Sequence[str] = (), in_sync: Sequence[str] = ()
    ) -> None:
        self.name = "peer"
        self.words = ""
        self.address = address
        self.pids = pids
        self.has_replicas = bool(kill_master and in_sync)
        self._kill_master = kill_master
        self._in_sync = in_sync

    async def kill_master(self) -> None:
        """Kill the master of its replicas.

        Raises:
            CommandFailedError: the command says that it could not.
        """
        code = await _exit_code(self._kill_master)
        if code != 0:
            raise CommandFailedError(f"{self._kill_master[0]} ended with {code}: no master was killed")

    async def in_sync(self) -> bool:
        """Return whether all replicas are in sync."""
        return await _exit_code(self._in_sync) == 0


class OwnServer:
    """`popwheel standalone` as a process of its own, or as several.

    Args:
        flush: `sync` or `async`, the value of `broker.flush`; also its name here.
        folder: for its data and its log.
        settings: further ones, as `--set` takes them.
        compiled: where its modules are compiled (`tools/compile.py`); it runs on those of this checkout if not given.
        workers: proxy processes; one is one process for all, if there is one broker.
        brokers: broker processes.
        forks: as in `Scale`.
    """

    def __init__(
        self,
        flush: str,
        folder: Path,
        settings: Sequence[str] = (),
        compiled: Path | None = None,
        workers: int = 1,
        brokers: int = 1,
        *,
        forks: bool = False,
    ) -> None:
        self.flush = flush
        self.forks = forks
        self.compiled = compiled
        self.workers = workers
        self.brokers = brokers
        self.name = flush if compiled is None else f"{flush}-compiled"
        self.words = f"--flush {flush}" if compiled is None else f"--flush {flush} --compiled {compiled}"
        if workers > 1:
            self.name += f"-{workers}w"
            self.words += f" --workers {workers}"
        if brokers > 1:
            self.name += f"-{brokers}b"
            self.words += f" --brokers {brokers}"
        self.data_dir = folder / f"data-{self.name}"
        words = [word for setting in (f"broker.flush={flush}", *settings) for word in ("--set", setting)]
        words += ["--workers", str(workers), "--brokers", str(brokers)]
        # Without the second the folder that the process starts in comes first, which has the modules as they stand.
        environment = {} if compiled is None else {"PYTHONPATH": str(compiled.resolve()), "PYTHONSAFEPATH": "1"}
        self._process = StandaloneProcess(self.data_dir, words, environment=environment, loads_itself=not forks)
        self._runs = False

    @property
    def is_one_process(self) -> bool:
        """True if one process is all of it."""
        return self.workers == self.brokers == 1

    @property
    def address(self) -> str:
        """`host:port` of the client protocol; the same over restarts."""
        return self._process.grpc_address

    @property
    def http_url(self) -> str:
        """Address of its admin API."""
        return self._process.http_url

    @property
    def pids(self) -> Sequence[int]:
        """The one process; of several, the parent, the brokers and the workers."""
        if self.is_one_process:
            return [self._process.pid]
        return [self._process.pid, *sorted(child_pids(self._process.pid), key=_is_worker)]

    @property
    def log_mib(self) -> float:
        """MiB of all it has on disk."""
        blocks = 0
        for path in self.data_dir.rglob("*"):
            with suppress(FileNotFoundError):  # it replaces small files all the time
                blocks += path.stat().st_blocks if path.is_file() else 0
        return blocks * 512 / 2**20

    async def start(self, credentials: Credentials = NOBODY, within_s: float = FIRST_SEND_TIMEOUT_S) -> float:
        """Start it on the data there is; seconds until a first send, with these credentials, was answered with OK."""
        began = time.perf_counter()
        # One that shares a port shall not get all connections because it is the first to listen.
        self._process.start(until="" if self.is_one_process else READY)
        self._runs = True
        await first_send(self.address, credentials=credentials, within_s=within_s)
        return time.perf_counter() - began

    async def loaded(self) -> None:
        """Wait until it answers over HTTP, too: until then it loads modules beside calls."""
        await asyncio.to_thread(self._process.wait_until, READY)

    async def start_afresh(self) -> float:
        """Like `start`, without any data."""
        await self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        return await self.start()

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._process.kill()
        self._runs = False

    async def stop(self) -> None:
        """End it as SIGTERM does, if it runs."""
        if self._runs:
            self._runs = False
            # The server waits for its clients to go, and they go only if this process's loop runs on.
            await asyncio.to_thread(self._process.stop)


def _is_worker(pid: int) -> bool:
    """Return whether a child is a worker, and not a broker."""
    return b"--shared-port" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


async def _exit_code(words: Sequence[str]) -> int:
    """Run a command without a shell; it says nothing on our standard output, where the figures go."""
    process = await asyncio.create_subprocess_exec(*words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return await process.wait()


async def first_send(
    address: str,
    topic: str = "bench-first",
    credentials: Credentials = NOBODY,
    within_s: float = FIRST_SEND_TIMEOUT_S,
) -> None:
    """Try until a send is answered with OK.

    Raises:
        CallFailedError: none was in that time.
    """
    until = time.perf_counter() + within_s
    template = requests.SendTemplate(topic, 1024)
    while True:
        try:
            client = await Client.connect(address, topic, credentials=credentials)
            try:
                await client.send(template.make())
            finally:
                client.close()
        except (ConnectionFailedError, CallFailedError) as error:
            if time.perf_counter() > until:
                raise CallFailedError(f"no send succeeded for {within_s:.0f} s: {error}") from error
            # No await: nothing else is to be done in this process, and a timer would add its own milliseconds.
            time.sleep(_PROBE_PAUSE_S)
        else:
            return
