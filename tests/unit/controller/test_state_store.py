"""The state file: what is saved comes back, damage is seen, and no crash leaves half a state."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import CorruptDataError, UnknownFormatError
from services.common.pb.popwheel.v1.controller_pb2 import TopicType
from services.controller.cluster_state import ClusterState
from services.controller.private_disk import PrivateDisk
from services.controller.state_store import StateStore, decode, encode
from tests.unit.controller.changes import CHANGES, OPTIONS, Change, contents, fresh_state, try_change
from tests.unit.controller.fault_disk import CrashError, FaultDisk

FOLDER = Path("/data/controller")


def with_topics(*names: str) -> ClusterState:
    state = fresh_state()
    for name in names:
        state = state.after(state.create_topic(OPTIONS, name, TopicType.MIXED))
    return state


@given(changes=st.lists(CHANGES, max_size=30))
def test_what_is_saved_comes_back_without_its_brokers(changes: list[Change]) -> None:
    state = fresh_state()
    for change in changes:
        state, _ = try_change(state, change)
    found = decode(encode(state), "the file")
    assert found.version == state.version
    assert found.brokers == {}
    assert contents(found)[:2] == contents(state)[:2]
    assert (found.name, found.receipt_key) == (state.name, state.receipt_key)


def test_nothing_saved_is_nothing_found() -> None:
    assert StateStore(FOLDER, FaultDisk()).load() is None


async def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one() -> None:
    old, new = with_topics("a"), with_topics("a", "b")
    outcomes = set()
    for steps in range(12):
        for names_kept in (False, True):
            for bytes_kept in (False, True):
                disk = FaultDisk()
                await StateStore(FOLDER, disk).save(old)
                disk.steps_left = steps
                try:
                    await StateStore(FOLDER, disk).save(new)
                    saved = True
                except CrashError:
                    saved = False
                found = StateStore(FOLDER, disk.after_power_loss(names_kept=names_kept, bytes_kept=bytes_kept)).load()
                assert found is not None
                outcomes.add(found.version)
                assert found.version in ((new.version,) if saved else (old.version, new.version))
    assert outcomes == {old.version, new.version}


async def test_a_crash_of_the_first_save_leaves_nothing_or_the_state() -> None:
    for steps in range(12):
        disk = FaultDisk(steps_left=steps)
        try:
            await StateStore(FOLDER, disk).save(with_topics("a"))
        except CrashError:
            found = StateStore(FOLDER, disk.after_power_loss(names_kept=False, bytes_kept=False)).load()
            assert found is None


async def test_a_save_after_one_that_failed_starts_afresh() -> None:
    """A file whose sync failed once is never trusted (the system forgets what it could not write)."""
    for steps in range(5):
        disk = FaultDisk(steps_left=steps, error=OSError(5, "Input/output error"))
        store = StateStore(FOLDER, disk)
        with pytest.raises(OSError, match="Input/output"):
            await store.save(with_topics("a", "b", "c"))
        disk.steps_left = 1_000_000
        await store.save(with_topics("a"))
        found = StateStore(FOLDER, disk.after_power_loss(names_kept=False, bytes_kept=False)).load()
        assert found is not None
        assert list(found.topics) == ["a"]


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    disk = PrivateDisk()
    store = StateStore(tmp_path, disk)
    await store.save(with_topics("a"))
    await store.save(with_topics("a", "b"))
    disk.close()
    assert store.path.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.json"]


@pytest.mark.parametrize("kept", [0, 1, 100, -2])
def test_a_file_cut_short_is_damaged(kept: int) -> None:
    with pytest.raises(CorruptDataError, match="the file is damaged"):
        decode(encode(with_topics("a"))[:kept].rstrip(), "the file")


@given(data=st.data())
def test_no_changed_bit_passes_unseen(data: st.DataObject) -> None:
    state = with_topics("a", "b")
    content = bytearray(encode(state))
    position = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    try:
        found = decode(bytes(content), "the file")
    except (CorruptDataError, UnknownFormatError):
        return
    assert (found.version, contents(found)) == (state.version, contents(state))  # a blank became another blank


def test_an_unknown_version_is_refused_and_says_so() -> None:
    document = json.loads(encode(with_topics("a")))
    document["format"] = 2
    with pytest.raises(UnknownFormatError, match="the file is of format 2, this release knows 1"):
        decode(json.dumps(document).encode(), "the file")


@pytest.mark.parametrize("content", [b"{}", b"[]", b'"x"', b'{"magic": "other"}'])
def test_a_file_of_another_kind_is_refused(content: bytes) -> None:
    with pytest.raises(UnknownFormatError, match="not a controller's state file"):
        decode(content, "the file")
