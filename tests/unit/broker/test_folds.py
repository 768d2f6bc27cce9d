"""State that follows the log: each record is applied once it is written, and by nothing else."""

import ast
import random
import re
from pathlib import Path

import pytest

from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.record import Record, RecordKind, StoredRecord
from popwheel_broker.options import LogOptions
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.manual_clock import ManualClock
from tests.harness.memory_disk import MemoryDisk
from tests.harness.standalone import ROOT

FOLDS = {
    "consume/pop_state.py": "PopState",
    "topics/topic_registry.py": "TopicRegistry",
    "consume/quarantine_table.py": "QuarantineTable",
    "transactions/table.py": "TransactionTable",
}


class Followed:
    """State that takes down what it is given."""

    def __init__(self, fails_at: bytes = b"") -> None:
        self.found: list[StoredRecord] = []
        self._fails_at = fails_at

    @property
    def kinds(self) -> frozenset[RecordKind]:
        return frozenset((RecordKind.MESSAGE, RecordKind.NAMES))

    def concerns(self, kind: int, origin: bytes) -> bool:
        return kind == RecordKind.NAMES or bool(origin)

    def apply(self, found: StoredRecord) -> None:
        if self._fails_at and found.payload == self._fails_at:
            raise KeyError("poison")
        self.found.append(found)


def store_with(fold: Followed) -> MessageStore:
    disk = MemoryDisk(random.Random(1))
    store = MessageStore(disk, Path("/broker"), LogOptions(), ManualClock(), lambda queue, tag_hashes: None)
    store.folds.add(fold)
    return store


RECORDS = [
    Record(RecordKind.MESSAGE, "t", 0, b"plain"),
    Record(RecordKind.MESSAGE, "t", 0, b"copy", origin=b"o"),
    Record(RecordKind.ACK, "t", 1, b"other kind"),
    Record(RecordKind.NAMES, "t", 2, b"names"),
]


def test_what_is_applied_live_is_what_is_read_again() -> None:
    fold = Followed()
    store = store_with(fold)
    appended = store.put(RECORDS)
    assert [each.payload for each in fold.found] == [b"copy", b"names"]
    assert fold.found == [store.records.record_at(appended.positions[number]) for number in (1, 3)]


def test_what_could_not_be_written_is_not_applied() -> None:
    fold = Followed()
    store = store_with(fold)
    store.ended = StatusError(Code.HA_NOT_AVAILABLE, "another leads")
    with pytest.raises(StatusError):
        store.put(RECORDS)
    assert fold.found == []


def test_a_record_that_cannot_be_applied_is_noted_and_the_others_are_applied() -> None:
    fold, noted = Followed(fails_at=b"copy"), list[bytes]()
    store = store_with(fold)
    store.folds.on_fault = lambda found, fault: noted.append(found.payload)
    appended = store.put(RECORDS)
    assert len(appended.positions) == len(RECORDS)
    assert (noted, [each.payload for each in fold.found]) == ([b"copy"], [b"names"])


@pytest.mark.parametrize(("path", "name"), FOLDS.items())
def test_only_apply_and_a_checkpoint_change_a_fold(path: str, name: str) -> None:
    """No other file calls what changes it: that is private."""
    module = ast.parse((ROOT / "services/broker/popwheel_broker" / path).read_text())
    (fold,) = [each for each in module.body if isinstance(each, ast.ClassDef) and each.name == name]
    assert "apply" in {each.name for each in fold.body if isinstance(each, ast.FunctionDef)}
    public = {each.name for each in fold.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")}
    changes = {"open", "close", "finish", "renew", "end", "checked", "record", "forget", "forget_topic", "forget_group"}
    assert not public & changes


def test_only_the_timer_fold_counts_what_waits() -> None:
    """Others read the counts. What has no record is excepted: what is left out, or fails at the stages."""
    changes = re.compile(r"\bpending\.(add|remove)\(")
    excepted = {"fold.py", "recovery.py", "timer_state.py", "timer_faults.py"}
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "services/broker").rglob("*.py")
        if path.name not in excepted and changes.search(path.read_text())
    ]
    assert not found, "append a record that says so: TimerFold.apply counts"


def test_only_the_pop_state_changes_its_tables() -> None:
    """Others read them. What has no record is excepted: what a filter passes over, and what a master said of it."""
    changes = re.compile(r"\b(table\.(open|close|renew)|_?(merge_)?buffer\.(popped|commit|reset|forget_group))\(")
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "services/broker").rglob("*.py")
        if path.name != "pop_state.py" and changes.search(path.read_text())
    ]
    assert not found, "append a record that says so: PopState.apply changes the tables"
