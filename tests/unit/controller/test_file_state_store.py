"""The state files: what is saved comes back, damage is seen, and no crash leaves half a state."""

import asyncio
import json
import random
import sys
from contextlib import nullcontext
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.disk import Disk
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.broker_groups.broker_group import GroupState, ReplicaRecord, group_document, group_of
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.store.file_state_store import FileStateStore, decode, encode
from popwheel_controller.store.private_disk import PrivateDisk, folder_lock
from popwheel_controller.store.state_store import CLUSTER, ConflictError, group_document_name
from tests.harness.memory_disk import MemoryDisk
from tests.unit.controller.changes import (
    CHANGES,
    KEY,
    OPTIONS,
    Change,
    contents,
    document_of,
    fresh_state,
    state_of,
    try_change,
)
from tests.unit.controller.fault_disk import CrashError, FaultDisk

FOLDER = Path("/data/controller")


class ClusterFile:
    """The cluster's document in a store, as a controller that is alone changes it."""

    def __init__(self, disk: Disk, folder: Path = FOLDER) -> None:
        self.store = FileStateStore(folder, disk)

    async def load(self) -> ClusterState | None:
        stored = await self.store.read(CLUSTER)
        return None if stored is None else state_of(stored.document, "the file")

    async def save(self, state: ClusterState) -> None:
        stored = await self.store.read(CLUSTER)
        await self.store.write(CLUSTER, document_of(state), None if stored is None else stored.version)


def with_topics(*names: str) -> ClusterState:
    state = fresh_state()
    for name in names:
        state = state.after(state.create_topic(OPTIONS, name, TopicType.MIXED))
    return state


def there_and_back(state: ClusterState) -> ClusterState:
    return state_of(decode(encode(document_of(state)), "the file"), "the file")


@given(changes=st.lists(CHANGES, max_size=30))
def test_what_is_saved_comes_back_without_its_brokers(changes: list[Change]) -> None:
    state = fresh_state()
    for change in changes:
        state, _ = try_change(state, change)
    found = there_and_back(state)
    assert found.version == state.version
    assert found.brokers == {}
    assert contents(found)[:2] == contents(state)[:2]
    assert (found.name, found.receipt_key) == (state.name, state.receipt_key)


async def test_nothing_saved_is_nothing_found() -> None:
    assert await ClusterFile(FaultDisk()).load() is None


async def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one() -> None:
    old, new = with_topics("a"), with_topics("a", "b")
    outcomes = set()
    for steps in range(12):
        for names_kept in (False, True):
            for bytes_kept in (False, True):
                disk = FaultDisk()
                await ClusterFile(disk).save(old)
                disk.steps_left = steps
                try:
                    await ClusterFile(disk).save(new)
                    saved = True
                except CrashError:
                    saved = False
                found = await ClusterFile(disk.after_power_loss(names_kept=names_kept, bytes_kept=bytes_kept)).load()
                assert found is not None
                outcomes.add(found.version)
                assert found.version in ((new.version,) if saved else (old.version, new.version))
    assert outcomes == {old.version, new.version}


async def test_a_crash_of_the_first_save_leaves_nothing_or_the_state() -> None:
    for steps in range(12):
        disk = FaultDisk(steps_left=steps)
        try:
            await ClusterFile(disk).save(with_topics("a"))
        except CrashError:
            found = await ClusterFile(disk.after_power_loss(names_kept=False, bytes_kept=False)).load()
            assert found is None


async def test_a_save_after_one_that_failed_starts_afresh() -> None:
    """A file whose sync failed once is never trusted (the system forgets what it could not write)."""
    for steps in range(5):
        disk = FaultDisk(steps_left=steps, error=OSError(5, "Input/output error"))
        store = ClusterFile(disk)
        with pytest.raises(OSError, match="Input/output"):
            await store.save(with_topics("a", "b", "c"))
        disk.steps_left = 1_000_000
        await store.save(with_topics("a"))
        found = await ClusterFile(disk.after_power_loss(names_kept=False, bytes_kept=False)).load()
        assert found is not None
        assert list(found.topics) == ["a"]


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    disk = PrivateDisk()
    store = ClusterFile(disk, tmp_path)
    await store.save(with_topics("a"))
    await store.save(with_topics("a", "b"))
    disk.close()
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json"]


@pytest.mark.parametrize("kept", [0, 1, 100, -2])
def test_a_file_cut_short_is_damaged(kept: int) -> None:
    with pytest.raises(CorruptDataError, match="the file is damaged"):
        decode(encode(document_of(with_topics("a")))[:kept].rstrip(), "the file")


@given(data=st.data())
def test_no_changed_bit_passes_unseen(data: st.DataObject) -> None:
    state = with_topics("a", "b")
    content = bytearray(encode(document_of(state)))
    position = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    try:
        found = state_of(decode(bytes(content), "the file"), "the file")
    except (CorruptDataError, UnknownFormatError):
        return
    assert (found.version, contents(found)) == (state.version, contents(state))  # a blank became another blank


def test_an_unknown_version_is_refused_and_says_so() -> None:
    document = json.loads(encode(document_of(with_topics("a"))))
    document["format"] = 3
    with pytest.raises(UnknownFormatError, match="the file is of format 3, this release knows 1 and 2"):
        decode(json.dumps(document).encode(), "the file")


@pytest.mark.parametrize("content", [b"{}", b"[]", b'"x"', b'{"magic": "other"}'])
def test_a_file_of_another_kind_is_refused(content: bytes) -> None:
    with pytest.raises(UnknownFormatError, match="not a controller's state file"):
        decode(content, "the file")


OLD_FILE = (
    b'{"magic": "popwheel-controller-state", "format": 1, "crc32c": "%s",\n"state": {"groups":[{"backoff_ms":[1000],'
    b'"fifo":false,"id":2,"max_attempts":17,"name":"g"}],"name":"test","receipt_key":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYX'
    b'GBkaGxwdHh8=","topics":[{"id":1,"name":"a","queues":8,"type":"MIXED"}],"version":2}}\n'
)
"""As a release without replicas wrote it."""


def test_a_file_of_a_release_without_replicas_is_read() -> None:
    state = json.loads(OLD_FILE.replace(b"%s", b""))["state"]
    crc = google_crc32c.value(json.dumps(state, sort_keys=True, separators=(",", ":")).encode())
    found = state_of(decode(OLD_FILE % f"{crc:08x}".encode(), "the file"), "the file")
    assert (found.version, list(found.topics), list(found.groups), found.receipt_key) == (2, ["a"], ["g"], KEY)


def group(version: int, epoch: int = 1) -> GroupState:
    return GroupState("b", version, epoch, 0, frozenset((0,)), {0: ReplicaRecord(0, "host:1", b"id")})


def shared_stores(disk: Disk, *writers: str) -> list[FileStateStore]:
    return [FileStateStore(FOLDER, disk, nullcontext, writer) for writer in writers]


async def test_a_file_that_somebody_deleted_can_be_made_anew() -> None:
    disk = FaultDisk()
    store, name = FileStateStore(FOLDER, disk), group_document_name("b")
    document = group_document(GroupState("b", 1, 1, 0, frozenset((0,)), {0: ReplicaRecord(0, "host:1", b"id")}))
    await store.write(name, document, None)
    del disk.names[FOLDER / "broker-groups" / "b.json"]
    assert await store.read(name) is None
    await store.write(name, document, None)
    assert await store.read(name) is not None


@pytest.mark.parametrize("syncs_before", [0, 1])
async def test_a_write_that_was_given_up_is_done_to_its_end(syncs_before: int) -> None:
    """Or a thread would sync a file that is closed, the next write fill the same one, and this one's own document be
    taken for a change by somebody else.
    """
    disk = MemoryDisk(random.Random(1))
    store, name = FileStateStore(FOLDER, disk), group_document_name("b")
    first = await store.write(name, group_document(group(1)), None)
    disk.hold_syncs()
    task = asyncio.create_task(store.write(name, group_document(group(2)), first))
    for _ in range(syncs_before):  # of the file; then comes that of the folder
        await disk.until_stored()
        disk.release_syncs()
        disk.hold_syncs()
    await disk.until_stored()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    disk.release_syncs()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    disk.crash("power")
    found = await store.read(name)
    assert found is not None and group_of(found.document, "the file") == group(2)
    with pytest.raises(ConflictError):
        await store.write(name, group_document(group(3)), first)
    await store.write(name, group_document(group(3)), found.version)


async def test_an_error_of_a_write_that_was_given_up_leaves_what_was_there() -> None:
    disk = MemoryDisk(random.Random(1))
    store, name = FileStateStore(FOLDER, disk), group_document_name("b")
    first = await store.write(name, group_document(group(1)), None)
    disk.hold_syncs()
    disk.fail_syncs(1)
    task = asyncio.create_task(store.write(name, group_document(group(2)), first))
    await disk.until_stored()
    task.cancel()
    await asyncio.sleep(0)
    disk.release_syncs()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError)
    await store.write(name, group_document(group(3)), first)


async def test_of_two_who_change_the_same_version_one_is_refused() -> None:
    disk = FaultDisk()
    one, two = shared_stores(disk, "one", "two")
    name = group_document_name("b")
    first = await one.write(name, group_document(group(1)), None)
    with pytest.raises(ConflictError):
        await two.write(name, group_document(group(1)), None)
    second = await two.write(name, group_document(group(2)), first)
    with pytest.raises(ConflictError):
        await one.write(name, group_document(group(2, 2)), first)
    found = await one.read(name)
    assert found is not None
    assert (found.version, group_of(found.document, "the file")) == (second, group(2))
    assert await one.versions() == {name: second}
    assert [path for path in disk.names if path.suffix == ".new"] == []


async def test_changes_at_the_same_time_do_not_lose_one_another() -> None:
    """Two controllers count in one document: each count that was stored is still counted at the end."""
    one, two = shared_stores(FaultDisk(), "one", "two")
    counted = 0

    async def count(store: FileStateStore) -> None:
        nonlocal counted
        for _ in range(20):
            stored = await store.read("lease")
            now = 0 if stored is None else stored.document["turn"]
            await asyncio.sleep(0)
            try:
                await store.write("lease", {"turn": now + 1}, None if stored is None else stored.version)
                counted += 1
            except ConflictError:
                pass

    await asyncio.gather(count(one), count(two))
    stored = await one.read("lease")
    assert stored is not None
    assert stored.document["turn"] == counted


async def test_processes_that_share_a_folder_keep_out_of_one_anothers_way(tmp_path: Path) -> None:
    """The lock is of the folder: another process that tries to have it waits."""
    lock = folder_lock(tmp_path / "store.lock")
    code = (
        "import fcntl, sys\ntry: fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: sys.exit(7)"
    )
    with lock():
        held = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path / "store.lock"))
        assert await held.wait() == 7
        with pytest.raises(BlockingIOError), lock():
            pass
        disk = PrivateDisk()
        store = FileStateStore(tmp_path, disk, lock, "me")
        waits = asyncio.ensure_future(store.write("lease", {"turn": 1}, None))
        await asyncio.sleep(0.05)
        assert not waits.done()
    assert await waits
    disk.close()
    free = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path / "store.lock"))
    assert await free.wait() == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"master": 3},
        {"sync_state_set": []},
        {"epoch": 0},
        {"replicas": [{"number": 0, "address": "host:1", "identity": "x"}]},
        {"version": None},
    ],
)
def test_a_group_that_must_never_be_is_damage(broken: dict[str, object]) -> None:
    with pytest.raises(CorruptDataError, match="the file is damaged"):
        group_of({**group_document(group(1)), **broken}, "the file")
