"""The one place where logging is set up: structlog, one line per event, for a person or for a machine.

Libraries that log through the standard library (asyncio, uvicorn) come out in the same lines.
"""

import logging
import sys
from typing import Any, Literal, TextIO

import structlog
from pydantic import BaseModel, ConfigDict, Field

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogOptions(BaseModel):
    """How much is logged, and in what form."""

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
        structlog.get_logger().log(record.levelno, record.getMessage(), logger=record.name, **fields)


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
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_ToStructlog()]
    # Libraries tell of their own steps at `info`; here only what one would act on is wanted.
    root.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
