"""What a controller does with a broker group whose state somebody has deleted."""

import pytest

from services.controller.broker_group import GroupState, ReplicaRecord
from services.controller.documents import group_document_name
from services.controller.group_keeper import GroupKeeper
from tests.unit.controller.memory_store import MemoryStore

FIRST = GroupState("b0", 1, 1, 0, frozenset({0}), {0: ReplicaRecord(0, "a:1", b"i")})
DOCUMENT = group_document_name("b0")


async def test_a_group_that_was_deleted_is_stored_again_however_often_that_fails() -> None:
    store = MemoryStore()
    keeper = GroupKeeper(store, 10, lambda old, new: None, lambda: None)
    known = await keeper.change("b0", lambda state: FIRST)
    del store.history[DOCUMENT]
    store.failing_writes = 3
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            await keeper.look_for_changes(await store.versions())
    assert not store.history.get(DOCUMENT)
    await keeper.look_for_changes(await store.versions())
    assert len(store.history[DOCUMENT]) == 1
    await keeper.look_for_changes(await store.versions())
    assert len(store.history[DOCUMENT]) == 1
    assert keeper.states["b0"] == known
