"""Child processes: starts them, waits until they are ready, reports those that end, stops them in order."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog

from popwheel_cli.cluster.health import fetch
from popwheel_cli.cluster.liveness import POLL_S, Liveness
from popwheel_cli.cluster.supervisor import Effect, GiveUp, Kill, Phase, Restart, Start, Supervisor, Terminate
from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_common.clock import Clock

_POLL_S = 0.05
_POLL_TIMEOUT_S = 2.0
_LAST_LINES = 5
_LAST_BYTES = 8192
_SIGNS_AT_ONCE = 4096

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Child:
    """A child process, started again when it ends.

    Args:
        name: its name.
        words: of its command line, after `popwheel`.
        host: where it answers over HTTP.
        port: the same.
        page: answers 200 when the child counts as started: `/readyz` or `/healthz`.
        log: where its output goes; None: where ours goes.
    """

    name: str
    words: Sequence[str]
    host: str
    port: int
    page: str
    log: Path | None

    @property
    def label(self) -> str:
        """Value of the label `worker` in metrics: "0" of `proxy-1/0`."""
        return self.name.rpartition("/")[2]


class Children:
    """Runs children from `start` to `stop`.

    Args:
        tiers: the children, tier by tier (`Supervisor`).
        clock: the time.
        stop_s_max: how long one may take to end when asked.
        silence_s_max: how long one may give no sign of life; then it is killed, and started again.
        restarted: called with the name of each that is started again.
        hung: called with the name of each that is killed because it hangs.
        files: open files of ours that each has as well, under the same numbers.
    """

    def __init__(
        self,
        tiers: Sequence[Sequence[Child]],
        clock: Clock,
        stop_s_max: float,
        silence_s_max: float,
        restarted: Callable[[str], None] = lambda _: None,
        hung: Callable[[str], None] = lambda _: None,
        files: Sequence[int] = (),
    ) -> None:
        self._children = {child.name: child for tier in tiers for child in tier}
        self._supervisor = Supervisor([[child.name for child in tier] for tier in tiers], stop_s_max)
        self._liveness = Liveness(silence_s_max)
        self._clock = clock
        self._restarted = restarted
        self._hung = hung
        self._files = files
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._log_begins: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_poll: asyncio.TimerHandle | None = None
        self._not_well: list[str] = []
        self._codes: dict[str, int | None] = {}
        self._complete: asyncio.Future[None] | None = None
        self._done = asyncio.Event()

    def running(self, name: str) -> bool:
        """Return whether a child runs."""
        return name in self._processes

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the running children, by name."""
        return {name: process.pid for name, process in self._processes.items()}

    async def start(self) -> None:
        """Start all; return when each has been ready.

        Raises:
            CommandError: one of them cannot start (WrongUseError: because of a setting).
        """
        self._complete = asyncio.get_running_loop().create_future()
        self._perform(self._supervisor.start(self._clock.monotonic()))
        self._kill_hung()
        await self._complete

    async def stop(self) -> None:
        """Stop all, tier by tier.

        Raises:
            CommandError: some did not end well.
        """
        self._not_well.clear()
        self._perform(self._supervisor.stop(self._clock.monotonic()))
        if not self._supervisor.done:
            await self._done.wait()
        for timer in (self._timer, self._next_poll):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._not_well:
            raise CommandError(f"not all ended well: {', '.join(self._not_well)}")

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(name):
                    self._begin(self._live(self._children[name]))
                case Restart(name, wait_s):
                    _logger.warning("starting it again", process=name, in_s=wait_s)
                    self._restarted(name)
                case GiveUp(name):
                    if self._complete is not None and not self._complete.done():
                        self._complete.set_exception(self._refusal(name))
                case Terminate(name):
                    self._liveness.forget(name)
                    self._signal(name, signal.SIGTERM)
                case Kill(name):
                    _logger.error("did not end in time, killing it", process=name)
                    self._signal(name, signal.SIGKILL)
        if self._supervisor.done:
            self._done.set()
        self._arm()

    def _arm(self) -> None:
        """Schedule the next `time_passed`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self._supervisor.wake_at) is not None:
            wait_s = max(0.0, due - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_passed)

    def _time_passed(self) -> None:
        self._perform(self._supervisor.time_passed(self._clock.monotonic()))

    def _kill_hung(self) -> None:
        """Kill hanging children, periodically."""
        for name in self._liveness.silent(self._clock.monotonic()):
            _logger.error("gave no sign of life, killing it", process=name, silent_s=self._liveness.silence_s_max)
            self._hung(name)
            self._signal(name, signal.SIGKILL)
        self._next_poll = asyncio.get_running_loop().call_later(POLL_S, self._kill_hung)

    def _begin(self, life: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(life)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            process.send_signal(number)

    async def _live(self, child: Child) -> None:
        """Life of a child, from its start to its end."""
        try:
            process, signs = await self._spawn(child)
        except OSError as error:
            _logger.error("cannot be started", process=child.name, reason=str(error))
            self._perform(self._supervisor.ended(child.name, self._clock.monotonic()))
            return
        self._processes[child.name] = process
        if self._supervisor.phase(child.name) is Phase.STOPPING:  # stopped while it was being started
            process.send_signal(signal.SIGTERM)
        else:
            self._liveness.started(child.name)
        asyncio.get_running_loop().add_reader(signs, self._on_sign, child.name, signs)
        polling = asyncio.ensure_future(self._poll_until_ready(child))
        try:
            await process.wait()
        finally:
            polling.cancel()
            asyncio.get_running_loop().remove_reader(signs)
            os.close(signs)
        self._liveness.forget(child.name)
        del self._processes[child.name]
        code = self._codes[child.name] = process.returncode
        if self._supervisor.phase(child.name) is not Phase.STOPPING:
            _logger.warning("a process has ended", process=child.name, how=how_it_ended(code))
            for line in self._last_lines(child):
                sys.stderr.write(f"    {child.name}: {line}\n")
        elif code not in (0, -signal.SIGTERM):  # the latter: before it could listen to signals
            self._not_well.append(f"{child.name} ({how_it_ended(code)})")
        self._perform(self._supervisor.ended(child.name, self._clock.monotonic()))

    def _on_sign(self, name: str, signs: int) -> None:
        if os.read(signs, _SIGNS_AT_ONCE):
            self._liveness.sign(name)
        else:  # it is ending
            asyncio.get_running_loop().remove_reader(signs)

    async def _spawn(self, child: Child) -> tuple[asyncio.subprocess.Process, int]:
        """Return the process, and the end of a pipe that receives its heartbeats."""
        signs, its_end = os.pipe()
        words = [sys.executable, "-P", "-m", "popwheel_cli.main", *child.words]  # -P: no modules of the current folder
        words += ["--parent", str(os.getpid()), "--heartbeat", str(its_end)]
        try:
            with ExitStack() as stack:
                log = None
                if child.log is not None:
                    log = stack.enter_context(child.log.open("ab"))
                    self._log_begins[child.name] = os.fstat(log.fileno()).st_size
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(*self._files, its_end),
                )
        except BaseException:
            os.close(signs)
            raise
        finally:
            os.close(its_end)
        return process, signs

    async def _poll_until_ready(self, child: Child) -> None:
        """Poll until it is ready."""
        while True:
            try:
                status, _ = await fetch(child.host, child.port, child.page, _POLL_TIMEOUT_S)
            except OSError:
                status = 0
            if status == 200:
                self._liveness.ready(child.name)
                self._supervisor.ready(child.name, self._clock.monotonic())
                if self._supervisor.complete and self._complete is not None and not self._complete.done():
                    self._complete.set_result(None)
                return
            await asyncio.sleep(_POLL_S)

    def _last_lines(self, child: Child) -> list[str]:
        """Return the last lines of its log since its start."""
        if child.log is None:
            return []
        try:
            with child.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_begins.get(child.name, 0), end - _LAST_BYTES))
                return log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        except OSError as error:
            return [f"its log cannot be read: {error.strerror}"]

    def _refusal(self, name: str) -> CommandError:
        """Return why a child could not start, in one sentence: its own if it wrote one."""
        child = self._children[name]
        lines = self._last_lines(child)
        said = [line.removeprefix("popwheel: ") for line in lines if line.startswith("popwheel: ")]
        kind = WrongUseError if self._codes.get(name) == WrongUseError.exit_code else CommandError
        if said:
            return kind(f"{name}: {said[-1]}")
        where = "as it said above" if child.log is None else f"see {child.log}"
        return kind(f"{name} has ended before it was ready; {where}")


def how_it_ended(code: int | None) -> str:
    """Return an exit code in words."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
