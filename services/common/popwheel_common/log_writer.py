"""Standard error and standard output of a server, written by threads: a failed write neither delays nor stops it.

A log that lies on a full disk, whose reader is gone, or whose reader hangs, costs lines. They are counted, and a line
says how many there were as soon as it can be written.
"""

import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit of lines that wait to be written, for each of the two; those beyond are lost."""
_OVERHEAD_BYTES: Final = 64
_ATOMIC_BYTES: Final = getattr(select, "PIPE_BUF", 512)  # Windows names none; 512 is the least there is elsewhere
"""Processes that share a pipe do not cut each other's lines if these are written in pieces of no more."""
_TRY_AGAIN_S: Final = 1.0


class LogWriter:
    """Writes to a descriptor from a thread of its own.

    Args:
        descriptor: an open file, pipe or terminal.
        report: makes the line that says how many lines were lost.
        bytes_max: how much may wait to be written.
    """

    def __init__(self, descriptor: int, report: Callable[[int], str], bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._report = report
        self._bytes_max = bytes_max
        self._waiting: deque[bytes] = deque()
        self._is_writing = False
        self._is_cut = False
        self._lost_lines_reported = 0
        self.waiting_bytes = 0
        self.lost_lines = 0
        # Its lock can be taken again by the thread that has it: a collection of garbage in between may log.
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._run, name=f"log-writer-{descriptor}", daemon=True).start()

    def put(self, text: str) -> None:
        """Queue it to be written, or count its lines as lost if too much waits already. It never waits or raises."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self.waiting_bytes + len(data) + _OVERHEAD_BYTES > self._bytes_max:
                self.lost_lines += _lines(data)
                return
            self.waiting_bytes += len(data) + _OVERHEAD_BYTES
            self._waiting.append(data)
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until all is written or lost, for some seconds at the most; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_writing, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._waiting:
                    is_behind = self.lost_lines > self._lost_lines_reported
                    if not self._changed.wait(_TRY_AGAIN_S if is_behind else None):
                        break
                self._is_writing = True
                batch = self._next_batch()
                lost = self.lost_lines - self._lost_lines_reported
            if batch and not self._write(batch):
                continue
            if lost and not self._write_some(self._report(lost).encode()):
                self._lost_lines_reported += lost

    def _next_batch(self) -> bytes:
        """Return some lines, no more than are written as a whole; one at least, if there is one."""
        batch: list[bytes] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0]) <= _ATOMIC_BYTES):
            batch.append(self._waiting.popleft())
            size += len(batch[-1])
            self.waiting_bytes -= len(batch[-1]) + _OVERHEAD_BYTES
        return b"".join(batch)

    def _write(self, batch: bytes) -> bool:
        """Write it; return whether all of it is written. The lines of what is not are counted."""
        rest = self._write_some(batch)
        if rest:
            with self._changed:
                self.lost_lines += _lines(rest[-len(batch) :])
        return not rest

    def _write_some(self, data: bytes) -> bytes:
        """Write as much as can be; the rest."""
        rest = data = b"\n" + data if self._is_cut else data
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # whoever opened it has made it so
                select.select((), (self._descriptor,), (), _TRY_AGAIN_S)
            except OSError:
                if len(rest) < len(data):
                    self._is_cut = not data[: -len(rest)].endswith(b"\n")
                return rest
        self._is_cut = False
        return b""


class LogStream(io.TextIOBase):
    """Takes the place of `sys.stderr` or `sys.stdout`: writing to it never waits and never raises.

    Args:
        writer: writes whole lines.
        descriptor: where they go.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, writer: LogWriter, descriptor: int) -> None:
        self._writer = writer
        self._descriptor = descriptor
        self._begun = ""
        self._is_putting = False
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Queue it to be written as soon as its line is complete."""
        with self._lock:
            if self._is_putting:  # a collection of garbage, or a signal, in between: what has begun stays as it is
                self._writer.put(text)
                return len(text)
            self._is_putting = True
            try:
                whole = self._begun + text
                end = len(whole) if len(whole) > _ATOMIC_BYTES else whole.rfind("\n") + 1
                self._begun = whole[end:]
                if end:
                    self._writer.put(whole[:end])
            finally:
                self._is_putting = False
        return len(text)

    def drain(self, seconds: float) -> bool:
        """Wait until all is written or lost, for some seconds at the most; whether it is."""
        with self._lock:
            text, self._begun = self._begun, ""
        if text:
            self._writer.put(text)
        return self._writer.drain(seconds)

    @property
    def waiting_bytes(self) -> int:
        """Memory that waits to be written."""
        return self._writer.waiting_bytes

    @property
    def lost_lines(self) -> int:
        """Lines that were not written."""
        return self._writer.lost_lines

    def flush(self) -> None:
        """Return at once: it is called after each line; see `drain`."""

    def close(self) -> None:
        """Stay open: the process may still log until its end."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


class _LogMetrics(Collector):
    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "popwheel_log_lost_lines",
            "Lines of the log that could not be written: its disk is full, or its reader hangs or is gone.",
            value=sum(stream.lost_lines for stream in _streams()),
        )
        yield GaugeMetricFamily(
            "popwheel_log_waiting_bytes",
            "Memory of lines of the log that wait to be written, of 4 MiB for each of stderr and stdout.",
            value=sum(stream.waiting_bytes for stream in _streams()),
        )


def take_over(report: Callable[[int], str]) -> None:
    """Let threads write all that this process says on standard error and standard output, to its end.

    Args:
        report: makes the line that says how many lines were lost.
    """
    sys.stderr = _taken_over(sys.stderr, report)
    sys.stdout = _taken_over(sys.stdout, report)


def drain(seconds: float) -> None:
    """Wait until all is written or lost; for each of the two some seconds at the most, as whoever reads it may hang."""
    for stream in _streams():
        stream.drain(seconds)


def show(registry: CollectorRegistry) -> None:
    """Show how many lines were lost, and how much waits."""
    registry.register(_LogMetrics())


def _taken_over(stream: TextIO | None, report: Callable[[int], str]) -> TextIO:
    if stream is None:  # closed before the start: its number may be another file's now
        return Path(os.devnull).open("w", encoding="utf-8")
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return stream  # a test reads it
    return cast("TextIO", LogStream(LogWriter(descriptor, report), descriptor))


def _streams() -> list[LogStream]:
    both: tuple[object, ...] = (sys.stderr, sys.stdout)
    return [stream for stream in both if isinstance(stream, LogStream)]


def _lines(data: bytes) -> int:
    return max(1, data.count(b"\n"))
