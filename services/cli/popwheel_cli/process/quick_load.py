"""Savings of a service while it loads its modules, so that it serves sooner; shares are of the CPU time of a start."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

_VARIABLES = {
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables for libraries, unless the environment has others.

pydantic reads the metadata of every distribution for plugins. numpy's linear algebra, which nothing here uses, starts a
thread for each core.
"""

Arguments = ParamSpec("Arguments")


def loads_quickly(verb: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorate the function of a verb that runs a service, and loads the service's modules."""

    @wraps(verb)
    def quickly(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
        with _collector_at_rest():
            for name, value in _VARIABLES.items():
                os.environ.setdefault(name, value)
            load_structlog()
            return verb(*args, **kwargs)

    return quickly


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Have Python's cycle collector rest: what is loaded stays, and each pass looks at more of it (a seventh).

    `GarbageCollection.freeze_loaded` has it work again, before anything is served.
    """
    works = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if works:
            gc.enable()


def load_structlog() -> None:
    """Load it without rich and pygments, which take longer than all the rest of it (a tenth).

    It needs them for tracebacks that show local variables. Our logs never have these (`popwheel_common.logs`).
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    modules["rich"] = None  # an import of it fails
    try:
        import structlog  # noqa: F401
    finally:
        del modules["rich"]
