"""A process from its first line to its exit code."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

import pytest
import structlog

from popwheel_cli.errors import CommandError, WrongUseError
from popwheel_cli.process import run as run_module
from popwheel_cli.process.run import run
from popwheel_common import log_writer
from popwheel_common.errors import ConfigurationError, CorruptDataError
from popwheel_common.logs import LogOptions


class EndedAtOnceError(KeyboardInterrupt):
    """Instead of `os._exit`, which pytest would not outlive; of a kind that asyncio lets through."""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configuration, thresholds = (
        root.handlers[:],
        root.level,
        structlog.get_config(),
        gc.get_threshold(),
    )

    def end_at_once() -> None:
        raise EndedAtOnceError

    monkeypatch.setattr(run_module, "_end_at_once", end_at_once)
    monkeypatch.setattr(log_writer, "take_over", lambda _: None)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


class FakeProcess:
    """A process that does what the test says; `done` is what it did."""

    def __init__(self, start: Callable[[], object] = lambda: None, stop: Callable[[], object] = lambda: None) -> None:
        self.done: list[str] = []
        self._start = start
        self._stop = stop
        self.failure: Exception | None = None

    async def start(self) -> None:
        self.done.append("start")
        if asyncio.iscoroutine(step := self._start()):
            await step
        self.done.append("started")

    async def stop(self) -> None:
        self.done.append("stop")
        if asyncio.iscoroutine(step := self._stop()):
            await step
        self.done.append("stopped")

    async def failed(self) -> Exception:
        if self.failure is None:
            await asyncio.Event().wait()
        assert self.failure is not None
        return self.failure


def ask_to_end(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def fail_with(error: Exception) -> Callable[[], object]:
    async def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_well(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    process = FakeProcess(start=lambda: ask_to_end(number))
    assert run(lambda: process, LogOptions()) == 0
    assert process.done == ["start", "started", "stop", "stopped"]
    assert "draining" in capsys.readouterr().err


@pytest.mark.parametrize("heartbeat", [None, 7])
def test_an_old_name_of_an_option_is_warned_of_by_a_process_without_a_parent(
    heartbeat: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "give_signs_of_life", lambda _: asyncio.sleep(0))
    names = {"broker.controller_address": "broker.controller"}
    assert run(lambda: FakeProcess(start=ask_to_end), LogOptions(), heartbeat=heartbeat, old_names=names) == 0
    said = capsys.readouterr().err
    assert said.count("option has a new name") == (heartbeat is None)
    assert ('"new": "broker.controller"' in said) == (heartbeat is None)


def test_a_signal_during_the_start_breaks_it_off_and_ends_well() -> None:
    async def start() -> None:
        ask_to_end()
        await asyncio.Event().wait()

    process = FakeProcess(start=start)
    assert run(lambda: process, LogOptions()) == 0
    assert process.done == ["start", "stop", "stopped"]


def test_a_second_signal_ends_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def stop() -> None:
        ask_to_end()
        await asyncio.Event().wait()

    process = FakeProcess(start=ask_to_end, stop=stop)
    with pytest.raises(EndedAtOnceError):
        run(lambda: process, LogOptions())
    assert "second signal" in capsys.readouterr().err


def test_a_drain_that_lasts_too_long_is_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "_DRAIN_S_MAX", 0.01)
    process = FakeProcess(start=ask_to_end, stop=lambda: asyncio.Event().wait())
    with pytest.raises(EndedAtOnceError):
        run(lambda: process, LogOptions())
    assert "could not drain in time" in capsys.readouterr().err


@pytest.mark.parametrize("during", ["start", "stop"])
def test_a_drain_that_takes_no_cancellation_is_cut_short(
    during: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that does not answer is waited for by whoever has begun to sync."""
    goes_on = True

    async def go_on() -> None:
        while goes_on:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def start() -> None:
        ask_to_end()
        if during == "start":
            await go_on()

    def end_at_once() -> NoReturn:
        nonlocal goes_on
        goes_on = False  # for the test's own loop
        raise EndedAtOnceError

    monkeypatch.setattr(run_module, "_DRAIN_S_MAX", 0.01)
    monkeypatch.setattr(run_module, "_end_at_once", end_at_once)
    process = FakeProcess(start=start, stop=go_on)
    with pytest.raises(EndedAtOnceError):
        run(lambda: process, LogOptions())
    assert "could not drain in time" in capsys.readouterr().err


def test_a_process_that_cannot_go_on_says_why_and_ends_badly(capsys: pytest.CaptureFixture[str]) -> None:
    process = FakeProcess()
    process.failure = OSError(5, "Input/output error")
    assert run(lambda: process, LogOptions()) == 1
    assert process.done == ["start", "started", "stop", "stopped"]
    assert "Input/output error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            ConfigurationError("broker.flush", "must be sync or async"),
            WrongUseError,
            "broker.flush: must be sync or async",
        ),
        (CorruptDataError("the file is damaged"), CommandError, "cannot start: the file is damaged"),
        (OSError(28, "No space left on device"), CommandError, "cannot start: [Errno 28] No space left on device"),
    ],
)
def test_a_start_that_fails_is_one_sentence(error: Exception, kind: type[CommandError], sentence: str) -> None:
    process = FakeProcess(start=fail_with(error))
    with pytest.raises(CommandError) as caught:
        run(lambda: process, LogOptions())
    assert type(caught.value) is kind
    assert caught.value.format_message() == sentence
    assert process.done == ["start", "stop", "stopped"]


def test_a_mistake_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda: FakeProcess(start=fail_with(ZeroDivisionError())), LogOptions())


def test_a_loop_that_does_not_close_keeps_no_process() -> None:
    program = """
import sys, time, uvloop
from popwheel_cli.process import run

class Loop(uvloop.Loop):
    def close(self):
        time.sleep(60)

async def live():
    return 3

uvloop.new_event_loop = Loop
sys.exit(run._run(live()))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 3
