"""For all tests: what one leaves behind is its fault, or is put away before the next.

An async test that leaves a task running has not stopped what it started, and fails. Sockets, files and processes that
are left open are reported by Python itself (ResourceWarning, an error here).
"""

import asyncio
import gc
import inspect
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from tests.harness.compiled import is_compiled, skip_replacements

ROOT = Path(__file__).resolve().parent.parent
# What tests start as processes runs the same code as they do, also where another checkout is the installed one.
os.environ["PYTHONPATH"] = os.pathsep.join(
    path for path in sys.path if Path(path).is_relative_to(ROOT) and not Path(path).is_relative_to(sys.prefix)
)

# Spark starts its JVM by a fork. There gRPC would start its poller again, lose its descriptors and end the child before
# it became the JVM (grpc/grpc#43055).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests send Ctrl-C. A shell that starts its jobs in the background has them, and all that they start, ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CAMPAIGNS = ("test_session_turns.py", "test_fuzz.py")
"""Files of tests that measure turns in what they call."""

_MOMENT_S = 1.0
_REPLACED = re.compile(
    r"attribute '\w+' is read-only|cannot set '\w+' attribute of immutable type|object expected; got None"
    r"|cannot create weak reference to|interpreted classes cannot inherit from compiled|no attribute '__slots__'"
)
"""What compiled code says to a test that reaches into it."""

# A busy machine is no fault of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# Python would look through all modules and tests that are loaded again and again: a seventh of the time of unit tests.
gc.set_threshold(20_000, 20, 50)


def pytest_collection_finish() -> None:
    """What is loaded now stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def compiled_parts_stay() -> Iterator[None]:
    """Tests that would replace parts of compiled modules are skipped."""
    with pytest.MonkeyPatch.context() as patch:
        if is_compiled():
            skip_replacements(patch)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bounds on turns are tried three times: for a moment this machine may be slower still than what it is told in."""
    for item in items:
        if hasattr(getattr(item, "module", None), "measured_turns") or item.path.name in _CAMPAIGNS:
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["longest turn", "a turn of"]))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """So are those that try to do it by themselves."""
    try:
        return (yield)
    except (AttributeError, TypeError) as error:
        if is_compiled() and _REPLACED.search(str(error)):
            pytest.skip(f"a compiled part can't be replaced: {error}")
        raise


@pytest.fixture(autouse=True)
def nothing_is_left_running(request: pytest.FixtureRequest) -> None:
    """Look at the event loop after each async test, when all of its other fixtures are gone."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_pending_tasks")


@pytest_asyncio.fixture
async def no_pending_tasks() -> AsyncIterator[None]:
    """Fails if tasks are still pending at the end and do not end by themselves within a moment (grpcio's own do)."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=_MOMENT_S)
    assert not left, f"tasks left running: {[task.get_coro() for task in left]}"


@pytest.fixture(autouse=True)
def logs_are_as_before() -> Iterator[None]:
    """A test that runs a command in this process sets up its logs; the next test shall not find them so."""
    configuration = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**configuration)
    root.handlers[:] = handlers
    root.setLevel(level)
