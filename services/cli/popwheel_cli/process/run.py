"""Run of a server process from start to exit code: its signals and its end."""

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, Protocol

import structlog

from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_cli.process.garbage_collection import GarbageCollection
from popwheel_cli.process.heartbeat import give_signs_of_life
from popwheel_common import log_writer, logs
from popwheel_common.clock import SystemClock
from popwheel_common.errors import ConfigurationError, CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.heap import reuse_freed_memory
from popwheel_common.logs import LogOptions

_DRAIN_S_MAX = 9.0
_CLOSE_S_MAX = 1.0
_EXIT_FAILED = 1
_COLLECTION_POLL_S = 10.0
_LAST_LINES_S_MAX = 0.5

_logger = structlog.get_logger()


class Process(Protocol):
    """Process of a server."""

    async def start(self) -> None:
        """Start serving; returns when everything is served."""

    async def stop(self) -> None:
        """Drain and end; also after a cancelled `start`."""

    async def failed(self) -> Exception:
        """Wait until the process cannot continue, and return the reason."""


def run(
    make: Callable[[], Process],
    log: LogOptions,
    drain_s_max: float | None = None,
    heartbeat: int | None = None,
    old_names: Mapping[str, str] | None = None,
) -> int:
    """Run a process until a signal or a failure ends it.

    Args:
        make: makes the process, within its loop.
        log: how it logs.
        drain_s_max: how long its `stop` may take, with the end of a `start` that is broken off; as long as that of a
            single process if not given.
        heartbeat: descriptor at which a parent waits for signs of life; None: there is no parent.
        old_names: old names of options that were used, and the new ones; a child leaves the warning to its parent.

    Returns:
        The exit code: 0 after a drain that a signal asked for, else 1.

    From then on slow readers of standard error and output do not block the process (`log_writer`).

    Raises:
        CommandError: it could not start (WrongUseError: because of a setting, or of the operating system).
    """
    if sys.platform == "win32":
        raise WrongUseError(
            "servers do not run on Windows itself, admin commands do: run this in WSL 2 or in the container image"
        )
    log_writer.take_over(logs.lost_lines)
    atexit.register(log_writer.drain, _LAST_LINES_S_MAX)
    logs.set_up(log)
    for old, new in (old_names or {}).items() if heartbeat is None else ():
        _logger.warning("option has a new name; the next minor release refuses the old one", option=old, new=new)
    reuse_freed_memory()
    GarbageCollection.freeze_loaded()
    try:
        return _run(_live(make, _DRAIN_S_MAX if drain_s_max is None else drain_s_max, heartbeat))
    except ConfigurationError as error:
        raise WrongUseError(str(error)) from error
    except (CorruptDataError, UnknownFormatError, StatusError, OSError) as error:
        raise CommandError(f"cannot start: {error}") from error


def _run(live: Coroutine[Any, Any, int]) -> int:
    """Run it on a loop, and close that: for good, also if a peer does not take what a socket still has."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    code = _EXIT_FAILED
    try:
        code = runner.run(live)
    finally:
        closing = threading.Timer(_CLOSE_S_MAX, _end_at_once, (code,))
        closing.daemon = True
        closing.start()
        runner.close()
        closing.cancel()
    return code


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, wherever that has wheels (decision 0053), else asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _live(make: Callable[[], Process], drain_s_max: float, heartbeat: int | None) -> int:
    ending = _EndSignals()
    signs: list[asyncio.Future[None]] = []
    if heartbeat is not None:  # to the end of the loop: a drain may take longer than silence may
        signs.append(asyncio.ensure_future(give_signs_of_life(heartbeat)))
    process = make()
    start = asyncio.ensure_future(process.start())
    asked = asyncio.ensure_future(ending.asked.wait())
    try:
        await asyncio.wait({start, asked}, return_when=asyncio.FIRST_COMPLETED)
        if start.done() and start.exception() is None:
            GarbageCollection.freeze_loaded()
            collecting = asyncio.ensure_future(_collect_often())
            failure = asyncio.ensure_future(process.failed())
            await asyncio.wait({failure, asked}, return_when=asyncio.FIRST_COMPLETED)
            collecting.cancel()
            if failure.done():
                _logger.error("cannot continue, ending", reason=str(failure.result()))
                await _drain(process, start, drain_s_max)
                return _EXIT_FAILED
            failure.cancel()
    finally:
        asked.cancel()
    if ending.asked.is_set():
        _logger.info("draining", signal=ending.signal_name)
    await _drain(process, start, drain_s_max)
    if not start.cancelled() and (error := start.exception()) is not None:
        raise error
    _logger.info("ended")
    return 0


async def _collect_often() -> None:
    garbage = GarbageCollection(SystemClock(), lambda: sum(os.times()[:2]))
    while True:
        await asyncio.sleep(_COLLECTION_POLL_S)
        garbage.collect_if_due()


async def _drain(process: Process, start: asyncio.Future[None], seconds: float) -> None:
    stopping = asyncio.create_task(_stop(process, start))
    await asyncio.wait([stopping], timeout=seconds)
    if not stopping.done():  # it is not cancelled: it may wait for a device that does not answer
        _logger.error("could not drain in time, ending at once", seconds=seconds)
        _end_at_once()
    await stopping


async def _stop(process: Process, start: asyncio.Future[None]) -> None:
    if not start.done():
        start.cancel()
        await asyncio.wait({start})  # its exception is handled by the caller that drains
    await process.stop()


class _EndSignals:
    """Handler of the signals that end the process: the first drains, the second ends at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.signal_name = ""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            _logger.warning("second signal, ending at once", signal=number.name)
            _end_at_once()
        self.signal_name = number.name
        self.asked.set()


def _end_at_once(code: int = _EXIT_FAILED) -> NoReturn:
    log_writer.drain(_LAST_LINES_S_MAX)
    os._exit(code)
