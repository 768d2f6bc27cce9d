"""The one place where logging is set up: structlog, one line per event, for a person or for a machine.

Libraries that log through the standard library (asyncio, uvicorn) come out in the same lines.
"""

import io
import logging
import re
import sys
from collections import deque
from typing import Any, Final, Literal, TextIO

import structlog
from pydantic import BaseModel, ConfigDict, Field

LAST_LINES_MAX: Final = 500
"""The number of lines that a process keeps in memory, for a debug bundle."""
_LINE_LENGTH_MAX: Final = 2_000
"""Characters that are kept of each."""
_COLORS = re.compile("\x1b\\[[0-9;]*m")

_last_lines: deque[str] = deque(maxlen=LAST_LINES_MAX)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogOptions(BaseModel):
    """Options for the log: how much is logged, and in which form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is logged."
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="Lines for a person or JSON objects; auto is console on a terminal, else json."
    )


class _ToStructlog(logging.Handler):
    """Hands records of the standard library on, so that there is one form of line."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            structlog.get_logger().log(record.levelno, record.getMessage(), logger=record.name, **fields)
        except Exception:  # noqa: BLE001 - whoever logs must not fail because of it
            self.handleError(record)


class _LineLogger:
    """Writes lines to a stream. Without a lock: a collection of garbage in between may log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        _last_lines.append(line[:_LINE_LENGTH_MAX])
        self._stream.write(f"{line}\n")
        self._stream.flush()

    debug = info = warning = error = critical = msg


def last_lines() -> list[str]:
    """Return the last lines that this process has logged, the oldest first; of a long one its beginning."""
    return [_COLORS.sub("", line) for line in list(_last_lines)]


def lost_lines(count: int) -> str:
    """Make the line that says how many could not be written."""
    line = io.StringIO()
    logger = structlog.wrap_logger(_LineLogger(line))
    logger.warning("lines of the log were lost: its disk was full, or its reader hung or was gone", count=count)
    return line.getvalue()


def set_up(options: LogOptions, stream: TextIO | None = None) -> None:
    """Send all log lines of this process to `stream` (stderr if None) in the form the options ask for."""
    stream = stream or sys.stderr
    level = _LEVELS[options.level]
    # Tracebacks are plain text: the richer forms show local variables, and with them keys and people's messages.
    console = options.format == "console" or (options.format == "auto" and stream.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not console),
    ]
    if console:
        renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        processors.append(renderer)
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineLogger(stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    # Libraries log their own steps at `info`; here only what one would act on is wanted.
    root.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
