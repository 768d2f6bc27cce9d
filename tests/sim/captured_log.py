"""The log of all processes of a run, as part of its trace."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import structlog

from tests.sim.loop import PROCESS
from tests.sim.process import Process
from tests.sim.trace import Trace


class CapturedLog:
    """Takes structlog's events into the trace while it is entered.

    Args:
        trace: where they go.
        on_error: called with those that carry an exception or stand for a fault of the program.
    """

    def __init__(self, trace: Trace, on_error: Callable[[str], None]) -> None:
        self._trace = trace
        self._on_error = on_error
        self.muted = False
        self._stack = ExitStack()

    def __enter__(self) -> "CapturedLog":
        before = structlog.get_config()
        structlog.configure(
            processors=[self._take],
            wrapper_class=structlog.BoundLogger,
            logger_factory=_NoLogger,
            cache_logger_on_first_use=False,
        )
        self._stack.callback(structlog.configure, **before)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _take(self, _: Any, level: str, event: Any) -> Any:
        if self.muted:
            raise structlog.DropEvent
        what = event.pop("event")
        error = event.pop("exc_info", None)
        shown = [f"{key}={value}" for key, value in event.items() if key != "seconds"]
        process = PROCESS.get()
        who = process.name if isinstance(process, Process) else "log"
        self._trace.add(who, level, what, *shown, *([repr(error)] if error is not None else []))
        if level == "exception" or error is not None:
            self._on_error(f"{what} {' '.join(shown)} {error!r}")
        raise structlog.DropEvent


class _NoLogger:
    def __init__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None
