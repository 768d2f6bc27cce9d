"""A checker that never fails is broken: each fault that is planted here must be caught within a few seeds."""

from dataclasses import replace
from typing import Any

import pytest

from popwheel_broker.calls.dedup import Dedup
from popwheel_broker.consume.merge_buffer import MergeBuffer
from popwheel_broker.consume.pop_clock import PopClock
from popwheel_broker.consume.progress_record import PassedOffsets
from popwheel_broker.consume.revive_table import ReviveTable
from popwheel_broker.core.cluster_changes import ClusterChanges
from popwheel_broker.core.notification import Interests
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.delay.recovery import done_timer
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.fold import Folds
from popwheel_broker.log.index_file import IndexFile
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.log.timer_record import NONE
from popwheel_broker.replication.log_receiver import LogReceiver
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.replication.replication_master import ReplicationMaster
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_broker.role.checkpoint_server import CheckpointServer
from popwheel_broker.role.upkeep import Upkeep
from popwheel_broker.time_to_live.time_to_live import TimeToLive
from popwheel_broker.topics.topic_registry import TopicRegistry
from popwheel_common.disk import File
from popwheel_common.pb.popwheel.v1.broker_pb2 import LogChunk, ReplicateProgress
from popwheel_controller.broker_groups import broker_group, group_policy
from popwheel_controller.broker_groups.broker_group import GroupState
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointAge, CheckpointSync
from popwheel_controller.broker_groups.election import most_complete
from popwheel_controller.broker_groups.roles import Roles
from tests.sim import transactions
from tests.sim.planted import Plant, assert_caught
from tests.sim.replicas.run import run_seed
from tests.sim.swarm import LIVES

SEEDS_MAX = 25


def sends_are_acknowledged_before_the_slave_has_them(patch: pytest.MonkeyPatch) -> None:
    """A master does not wait for its sync-state set, and does not say so."""
    begin = SyncStateSet.__init__

    def alone(self: SyncStateSet, *arguments: Any) -> None:
        begin(self, *arguments)
        self._master_alone_acknowledges = True

    patch.setattr(SyncStateSet, "__init__", alone)


def a_master_is_elected_from_outside_the_set(patch: pytest.MonkeyPatch) -> None:
    """Whoever is there may become master."""

    def elect(state: GroupState, reports: Any) -> int | None:
        return most_complete(
            {number: report for number, report in reports.items() if number != state.master} or reports
        )

    patch.setattr(group_policy, "elect", elect)
    patch.setattr(broker_group, "_require", lambda holds, rule: None)


def slaves_that_fall_silent_are_left_out_without_asking(patch: pytest.MonkeyPatch) -> None:
    """A master that is cut off goes on by itself, though another one may have been chosen."""
    disconnected = SyncStateSet.disconnected

    def left_out(self: SyncStateSet, replica: int, now_ms: int) -> None:
        disconnected(self, replica, now_ms)
        self.members = self.members - {replica}
        self._recount()

    patch.setattr(SyncStateSet, "disconnected", left_out)


def checkpoints_of_older_epochs_are_taken(patch: pytest.MonkeyPatch) -> None:
    """A slave applies whatever checkpoint comes."""
    patch.setattr(CheckpointServer, "_check", lambda self, request: None)


def nobody_looks_at_epochs(patch: pytest.MonkeyPatch) -> None:
    """A slave takes what any master sends, and a master sends to any slave."""
    check, learned = ReplicationMaster._check, LogReceiver._received

    def check_all_but_epochs(self: ReplicationMaster, first: ReplicateProgress) -> None:
        same = ReplicateProgress()
        same.CopyFrom(first)
        same.epoch = self._epoch
        check(self, same)

    def receive_all_states(self: LogReceiver, chunk: LogChunk) -> None:
        epoch, chunk.epoch = chunk.epoch, self._slave.epoch
        learned(self, chunk)
        chunk.epoch = epoch

    patch.setattr(ReplicationMaster, "_check", check_all_but_epochs)
    patch.setattr(LogReceiver, "_received", receive_all_states)


def logs_are_not_cut_where_they_part(patch: pytest.MonkeyPatch) -> None:
    """A deposed master keeps what no other has."""

    async def keep(self: ReplicaStore, position: int) -> None:
        """Cut nothing."""

    patch.setattr(ReplicaStore, "cut", keep)


def slaves_forget_what_has_fired(patch: pytest.MonkeyPatch) -> None:
    """A slave does not note which delayed messages have fired."""
    apply = MessageTimer.apply

    def forget(self: MessageTimer, found: StoredRecord) -> None:
        if self.state.should_running_dequeue or found.topic.startswith("%") or done_timer(found) == NONE:
            apply(self, found)

    patch.setattr(MessageTimer, "apply", forget)


def pages_of_index_files_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """What an index file says is believed."""

    def read(self: IndexFile, file: File, offset: int, length: int) -> bytes:
        data = file.read(0, file.size())
        return b"".join(data[at + 4 : at + 4096] for at in range(0, len(data), 4096))[offset : offset + length]

    patch.setattr(IndexFile, "_read", read)


def second_tries_are_stored_again(patch: pytest.MonkeyPatch) -> None:
    """A master does not look for what it has of a send that is tried again."""
    patch.setattr(Dedup, "find", lambda self, run: [None] * len(run.payloads))


def polls_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    """Nobody is notified of messages that arrive."""
    patch.setattr(Interests, "arrived", lambda self, queue, tag_hashes: None)


def checkpoints_are_said_to_be_fresh(patch: pytest.MonkeyPatch) -> None:
    """The age of checkpoints does not grow."""
    ages = CheckpointSync.ages

    def fresh(self: CheckpointSync, name: str, now_s: float) -> list[CheckpointAge]:
        return [replace(each, age_s=0.0) for each in ages(self, name, now_s)]

    patch.setattr(CheckpointSync, "ages", fresh)


def ages_of_checkpoints_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told how old checkpoints are."""
    patch.setattr(CheckpointSync, "ages", lambda self, name, now_s: [])


def a_controller_passes_over_slaves(patch: pytest.MonkeyPatch) -> None:
    """A controller does not take slaves for living."""
    set_roles = Roles.set
    patch.setattr(Roles, "set", lambda self, roles: set_roles(self, replace(roles, slaves=())))


def what_is_cut_of_unknown_outcome_is_not_reported(patch: pytest.MonkeyPatch) -> None:
    """A replica that cuts what it could ask nobody for says that it has everything."""

    async def report_nobody(self: ReplicaStore, position: int) -> None:
        """Write nothing down."""

    patch.setattr(ReplicaStore, "_mark_suspect", report_nobody)


def pops_and_acks_are_answered_before_the_slaves_have_them(patch: pytest.MonkeyPatch) -> None:
    """A master answers at once what is to outlive it."""
    patch.setattr(Flusher, "is_replicated", lambda self, position: True)


def slaves_say_synced_when_they_have_received(patch: pytest.MonkeyPatch) -> None:
    """A slave says of all that it has received that it is on its device."""

    async def report(self: LogReceiver) -> None:
        self._spoke_ms = self._slave.clock.steady_ms()
        end = self._log.end_position
        await self._stream.send([ReplicateProgress(end_position=end, synced_position=end)])

    patch.setattr(LogReceiver, "_report", report)


def numbers_of_pops_know_no_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new master goes on with numbers behind those that it knows of."""
    restart_ids = ReviveTable.restart_ids

    def restart(self: ReviveTable, next_number: int, epoch: int) -> None:
        restart_ids(self, next_number, 0)

    patch.setattr(ReviveTable, "restart_ids", restart)


def a_wiped_replica_may_lead(patch: pytest.MonkeyPatch) -> None:
    """Whoever has the number of a member of the set is taken for it."""
    patch.setattr(broker_group, "is_wiped", lambda known, identity: False)


def checkpoints_are_saved_before_the_set_has_what_they_cover(patch: pytest.MonkeyPatch) -> None:
    """A master saves what may be cut off yet."""

    async def save(self: Upkeep) -> None:
        await self._files.save(self._flusher.sync)

    patch.setattr(Upkeep, "save", save)


def messages_are_hidden_by_the_clock_of_a_machine(patch: pytest.MonkeyPatch) -> None:
    """A new master takes its own clock for that of its predecessor."""
    patch.setattr(PopClock, "record", lambda self, time_ms: None)


def topics_go_by_their_names(patch: pytest.MonkeyPatch) -> None:
    """Whatever has a topic's name is taken for the one that a send is for."""
    patch.setattr(ClusterChanges, "apply_topic_id", lambda self, topic, topic_id: None)
    patch.setattr(TopicRegistry, "is_current", lambda self, topic, topic_id: True)


def groups_are_recorded_where_they_are_not(patch: pytest.MonkeyPatch) -> None:
    """A master records that groups have passed more than they have."""
    passed = MergeBuffer.passed_offsets

    def too_far(self: MergeBuffer, pairs_max: int) -> list[PassedOffsets]:
        return [each._replace(committed=each.popped + 2, popped=each.popped + 2) for each in passed(self, pairs_max)]

    patch.setattr(MergeBuffer, "passed_offsets", too_far)


def slaves_take_no_note_of_half_messages(patch: pytest.MonkeyPatch) -> None:
    """Who folds the log does not see that a half message was stored."""
    replay = Folds.replay

    def replay_without(self: Folds, found: StoredRecord) -> None:
        if found.kind != RecordKind.HALF:
            replay(self, found)

    patch.setattr(Folds, "replay", replay_without)


def new_masters_let_nothing_expire(patch: pytest.MonkeyPatch) -> None:
    """Whoever leads in a later epoch than the first delivers messages past their time to live."""
    concerns, restart_ids = TimeToLive.concerns, ReviveTable.restart_ids
    epochs = {1}

    def restart(self: ReviveTable, next_number: int, epoch: int) -> None:
        epochs.add(epoch)
        restart_ids(self, next_number, epoch)

    patch.setattr(ReviveTable, "restart_ids", restart)
    patch.setattr(TimeToLive, "concerns", lambda self, topic: max(epochs) == 1 and concerns(self, topic))


CAUGHT_BY: dict[Plant, int] = {
    checkpoints_are_said_to_be_fresh: 13,
    ages_of_checkpoints_are_not_reported: 5,
    slaves_that_fall_silent_are_left_out_without_asking: 3,
    nobody_looks_at_epochs: 2,
    checkpoints_of_older_epochs_are_taken: 4,
    sends_are_acknowledged_before_the_slave_has_them: 2,
    slaves_forget_what_has_fired: 3,
    a_master_is_elected_from_outside_the_set: 3,
    pages_of_index_files_are_not_checked: 5,
    polls_are_not_woken: 5,
    second_tries_are_stored_again: 7,
    logs_are_not_cut_where_they_part: 2,
    what_is_cut_of_unknown_outcome_is_not_reported: 4,
    a_wiped_replica_may_lead: 3,
    messages_are_hidden_by_the_clock_of_a_machine: 6,
    slaves_take_no_note_of_half_messages: 4,
    topics_go_by_their_names: 8,
    groups_are_recorded_where_they_are_not: 8,
    checkpoints_are_saved_before_the_set_has_what_they_cover: 10,
    numbers_of_pops_know_no_epoch: 8,
}
"""For those that the first seeds do not catch, or not soon: one that did, tried first to save time, and all others
after it.
"""


SETTINGS: dict[Plant, dict[str, int]] = {
    what_is_cut_of_unknown_outcome_is_not_reported: {"checkpoint_interval_ms": 600_000}
}
"""Without which a fault is met too seldom."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "numbers", "only"),
    [
        (sends_are_acknowledged_before_the_slave_has_them, {"S1", "S4"}, ("bridge",)),
        (a_master_is_elected_from_outside_the_set, {"S5", "S1"}, ("kill master", "pause slave", "wiped volume")),
        (
            slaves_that_fall_silent_are_left_out_without_asking,
            {"S1", "S4", "S6", "P3"},
            ("isolate", "master without slaves", "pause slave", "kill master"),
        ),
        (nobody_looks_at_epochs, {"S5", "S4"}, ("kill master", "slaves without controller")),
        (checkpoints_of_older_epochs_are_taken, {"C4"}, ("kill master", "old checkpoint")),
        (logs_are_not_cut_where_they_part, {"S4", "L2", "E1"}, ("pause master",)),
        (slaves_forget_what_has_fired, {"T2", "S6"}, ("kill master",)),
        (pages_of_index_files_are_not_checked, {"S6", "S7", "L2", "E1"}, ("rotten derived file",)),
        (second_tries_are_stored_again, {"S1", "T2"}, ("kill master", "break connections")),
        (polls_are_not_woken, {"L1"}, ("kill slave",)),
        (checkpoints_are_said_to_be_fresh, {"C3"}, ("kill slave",)),
        (ages_of_checkpoints_are_not_reported, {"C3"}, ("kill slave",)),
        (a_controller_passes_over_slaves, {"L2"}, ("kill slave",)),
        (what_is_cut_of_unknown_outcome_is_not_reported, {"S1", "S4"}, ("stale sector", "power of all")),
        (
            pops_and_acks_are_answered_before_the_slaves_have_them,
            {"P2", "P3"},
            ("kill master",),
        ),
        (slaves_say_synced_when_they_have_received, {"S1", "S4", "P3", "S6"}, ("power of slave",)),
        (numbers_of_pops_know_no_epoch, {"P7"}, ("kill master",)),
        (a_wiped_replica_may_lead, {"S1", "S4", "S5"}, ("wiped volume, others away",)),
        (checkpoints_are_saved_before_the_set_has_what_they_cover, {"S6"}, ("kill while slaves are slow",)),
        (messages_are_hidden_by_the_clock_of_a_machine, {"P2", "L2"}, ("clocks apart", "kill master")),
        (slaves_take_no_note_of_half_messages, {"X2"}, (transactions.NAME, "kill master")),
        (topics_go_by_their_names, {"P4", "S1"}, ("topic comes and goes", "cut")),
        (new_masters_let_nothing_expire, {"P9"}, (LIVES, "kill master")),
        (groups_are_recorded_where_they_are_not, {"P1", "P7", "S6", "L2"}, ("kill master",)),
    ],
)
def test_a_planted_fault_is_caught(plant: Plant, numbers: set[str], only: tuple[str, ...]) -> None:
    seeds = dict.fromkeys((CAUGHT_BY.get(plant, 0), *range(SEEDS_MAX)))
    assert_caught(plant, numbers, run_seed, seeds, only, {"flush": "sync", **SETTINGS.get(plant, {})})
