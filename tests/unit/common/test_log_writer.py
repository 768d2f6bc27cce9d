"""The log outlives its surroundings: what can't be written is counted, and delays and ends nothing."""

import errno
import fcntl
import io
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import click
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common import log_writer
from popwheel_common.log_writer import LogStream, LogWriter
from tests.harness.standalone import ROOT

PATIENCE_S = 20.0


def report(count: int) -> str:
    return f"{count} lost\n"


class Device:
    """A stand-in for a descriptor: it takes what it is given, unless it is full, gone, or hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.descriptor, self._other_end = os.pipe()
        self._real = os.write
        self.written = b""
        self.error: int | None = None
        self.bytes_at_once = 1 << 20
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.is_asked = threading.Event()
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(log_writer, "_TRY_AGAIN_S", 0.01)

    def _write(self, descriptor: int, data: bytes) -> int:
        if descriptor != self.descriptor:
            return self._real(descriptor, data)
        self.is_asked.set()
        self.goes_on.wait()
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.written += data[: self.bytes_at_once]
        return min(len(data), self.bytes_at_once)

    def close(self) -> None:
        self.goes_on.set()
        os.close(self.descriptor)
        os.close(self._other_end)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(monkeypatch)
    yield device
    device.close()


def stream_to(device: Device, bytes_max: int = log_writer.BUFFER_BYTES_MAX) -> LogStream:
    return LogStream(LogWriter(device.descriptor, report, bytes_max), device.descriptor)


def until_reported(device: Device, stream: LogStream) -> None:
    for _ in range(round(PATIENCE_S / 0.01)):
        if b" lost\n" in device.written:
            break
        device.is_asked.clear()
        device.is_asked.wait(0.01)
    assert stream.drain(PATIENCE_S)


def reported(lines: list[str]) -> int:
    """Lines lost, by all reports: there are two if the first lines were taken only while others came."""
    return sum(int(line.removesuffix(" lost")) for line in lines if line.endswith(" lost"))


def test_lines_come_whole_and_in_order_whatever_writes_them(device: Device) -> None:
    stream = stream_to(device)
    device.bytes_at_once = 7
    stream.write("one ")
    print("and", "two", file=stream)
    click.echo("three", file=cast("io.StringIO", stream))
    stream.write("Zoë \udcff " + "x" * 5000 + "\n")
    try:
        raise ValueError("why")
    except ValueError:
        traceback.print_exc(file=stream)
    stream.write("no end")
    assert stream.drain(PATIENCE_S)
    text = device.written.decode()
    assert text.startswith("one and two\nthree\nZoë \\udcff " + "x" * 5000 + "\nTraceback")
    assert text.endswith("ValueError: why\nno end")
    assert (stream.lost_lines, stream.waiting_bytes) == (0, 0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF])
def test_what_cannot_be_written_is_counted_and_said_when_it_can(device: Device, code: int) -> None:
    stream = stream_to(device)
    device.error = code
    for number in range(5):
        print("line", number, file=stream)
    assert stream.drain(PATIENCE_S)
    assert stream.lost_lines == 5
    device.error = None
    until_reported(device, stream)
    print("again", file=stream)
    assert stream.drain(PATIENCE_S)
    assert device.written == b"5 lost\nagain\n"
    assert stream.lost_lines == 5


def test_a_line_that_was_cut_ends_before_the_next_one(device: Device) -> None:
    stream = stream_to(device)

    device.bytes_at_once = 4
    device.goes_on.clear()
    print("abcdef", file=stream)
    assert device.is_asked.wait(PATIENCE_S)
    real = device._write

    def once(descriptor: int, data: bytes) -> int:
        device.error = errno.ENOSPC
        return real(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", once)
        device.goes_on.set()
        assert stream.drain(PATIENCE_S)
    device.error = None
    device.bytes_at_once = 1 << 20
    until_reported(device, stream)
    assert device.written == b"abcd\n1 lost\n"
    assert stream.lost_lines == 1


def test_a_reader_that_hangs_stops_nobody_and_costs_lines_beyond_the_limit(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_to(device, bytes_max=10_000)
    device.goes_on.clear()
    for number in range(1000):
        print("line", number, file=stream)
    assert 0 < stream.waiting_bytes <= 10_000
    assert 0 < stream.lost_lines < 1000
    assert not stream.drain(0.01), "the end of a process waits a moment only"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        registry = CollectorRegistry()
        log_writer.show(registry)
        assert registry.get_sample_value("popwheel_log_lost_lines_total") == stream.lost_lines
        assert registry.get_sample_value("popwheel_log_waiting_bytes") == stream.waiting_bytes
    lost = stream.lost_lines
    device.goes_on.set()
    assert stream.drain(PATIENCE_S)
    until_reported(device, stream)
    lines = device.written.decode().splitlines()
    assert reported(lines) == lost
    numbers = [int(line.removeprefix("line ")) for line in lines if not line.endswith(" lost")]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 1000 - lost
    assert stream.lost_lines == lost


def test_a_descriptor_that_does_not_wait_is_waited_for_by_the_thread_alone() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    stream = LogStream(LogWriter(writing, report), writing)
    wanted = "".join(f"{number}\n" for number in range(2000))
    stream.write(wanted)
    got = b""
    while len(got) < len(wanted):
        got += os.read(reading, size)
    assert got.decode() == wanted
    assert stream.drain(PATIENCE_S)
    os.close(reading)
    os.close(writing)


def test_whoever_logs_within_a_line_is_not_stopped(device: Device) -> None:
    """As a collection of garbage may, between any two steps."""
    stream = stream_to(device)

    class Loud:
        def __str__(self) -> str:
            stream.write("within\n")
            return "around"

    with stream._lock, stream._writer._changed:
        print(Loud(), file=stream)
    assert stream.drain(PATIENCE_S)
    assert device.written == b"within\naround\n"


def test_what_has_begun_is_written_once_whatever_logs_in_between(device: Device) -> None:
    """As a collection of garbage does that logs while a line is cut off from what is after it."""

    class Text(str):
        def __radd__(self, begun: str) -> str:
            whole = begun + str(self)
            stream.write("between\n")
            return whole

    stream = stream_to(device)
    stream.write("begun, ")
    stream.write(Text("ended\n"))
    stream.write("next\n")
    assert stream.drain(PATIENCE_S)
    assert device.written == b"between\nbegun, ended\nnext\n"


def test_what_tests_read_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr, sys.stdout
    log_writer.take_over(report)
    assert (sys.stderr, sys.stdout) == before
    log_writer.drain(0)
    with suppress(ValueError):
        print("seen")
    assert capsys.readouterr().out == "seen\n"


PROGRAM = """
import atexit, sys
from popwheel_common import log_writer
log_writer.take_over(str)
atexit.register(log_writer.drain, 5.0)
print("said before")
raise ValueError("the crash")
"""


@pytest.mark.parametrize("stderr", ["there", "full", "closed"])
def test_a_crash_still_says_why_and_ends_as_it_would(stderr: str) -> None:
    streams = {"there": "", "full": "2>/dev/full", "closed": "2>&-"}
    words = ["sh", "-c", f'exec "$0" -c "$1" {streams[stderr]}', sys.executable, PROGRAM]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (1, "said before\n")
    assert ("ValueError: the crash" in ended.stderr) == (stderr == "there")
