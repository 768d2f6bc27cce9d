"""For all tests: an async test that leaves a task behind has not stopped what it started, and fails.

Sockets, files and processes that are left open are told by Python itself (ResourceWarning, an error here).
"""

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio


@pytest.fixture(autouse=True)
def nothing_is_left_running(request: pytest.FixtureRequest) -> None:
    """Look at the event loop after each async test, when all of its other fixtures are gone."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_pending_tasks")


@pytest_asyncio.fixture
async def no_pending_tasks() -> AsyncIterator[None]:
    """Fails if tasks are still pending at the end, cancelled ones apart: those get one turn of the loop to end."""
    yield
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.cancelling()}
    assert not left, f"tasks left running: {[task.get_coro() for task in left]}"
