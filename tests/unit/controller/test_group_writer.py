"""What a controller does with the state of a broker group that somebody has deleted, or that nobody waits for."""

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from popwheel_common.errors import CorruptDataError
from popwheel_controller.broker_groups.broker_group import GroupState, ReplicaRecord
from popwheel_controller.broker_groups.group_writer import GroupWriter
from popwheel_controller.store.file_state_store import FileStateStore
from popwheel_controller.store.state_store import group_document_name
from tests.harness.memory_disk import MemoryDisk
from tests.unit.controller.memory_store import MemoryStore

FIRST = GroupState("b0", 1, 1, 0, frozenset({0}), {0: ReplicaRecord(0, "a:1", b"i")})
DOCUMENT = group_document_name("b0")


async def test_a_group_that_was_deleted_is_stored_again_however_often_that_fails() -> None:
    store = MemoryStore()
    group_writer = GroupWriter(store, 10, lambda: None)
    known = await group_writer.change("b0", lambda state: FIRST)
    del store.history[DOCUMENT]
    store.failing_writes = 3
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            await group_writer.poll_store(await store.versions())
    assert not store.history.get(DOCUMENT)
    await group_writer.poll_store(await store.versions())
    assert len(store.history[DOCUMENT]) == 1
    await group_writer.poll_store(await store.versions())
    assert len(store.history[DOCUMENT]) == 1
    assert group_writer.states["b0"] == known


async def test_who_looks_at_a_group_is_let_go_in_time_though_the_device_hangs() -> None:
    """A lead ends with its lease, whatever the store does; what was begun is done to its end all the same."""
    disk = MemoryDisk(random.Random(1))
    store, name = FileStateStore(Path("/data"), disk), group_document_name("b0")
    group_writer = GroupWriter(store, 10, lambda: None)
    await group_writer.change("b0", lambda state: FIRST)
    disk.remove(Path("/data/broker-groups/b0.json"))  # so it is stored again
    disk.hold_syncs()
    looking = asyncio.create_task(group_writer.refresh("b0"))
    await disk.until_stored()
    looking.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    was_let_go = looking.cancelled()
    disk.release_syncs()
    assert was_let_go
    await group_writer.finish()
    assert await store.read(name) is not None
    changed = await group_writer.change("b0", lambda state: None if state is None else state.resigned())
    assert changed is not None and changed.version == 3


@pytest.mark.parametrize("error", [OSError("the store is away"), CorruptDataError("it is no state"), None])
async def test_a_change_that_its_caller_does_not_wait_for_fails_without_an_error_that_nobody_took(
    error: Exception | None,
) -> None:
    untaken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: untaken.append(context))
    goes_on = asyncio.Event()

    class SlowStore(MemoryStore):
        async def write(self, name: str, document: Any, expected: str | None) -> str:
            await goes_on.wait()
            if error is not None:
                raise error
            return await super().write(name, document, expected)

    store = SlowStore()
    group_writer = GroupWriter(store, 10, lambda: None)
    caller = asyncio.create_task(group_writer.change("b0", lambda state: FIRST))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    goes_on.set()
    with capture_logs() as lines:
        await group_writer.finish()
        await asyncio.sleep(0)
    gc.collect()
    assert untaken == []
    assert ("b0" in group_writer.states) is (error is None)
    # What the store says is told once; what nobody foresaw, too.
    assert [line["log_level"] for line in lines] == ([] if error is None else ["error"])
