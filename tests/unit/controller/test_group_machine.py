"""Two controllers that both lead, replicas that die, hang, lose what they had not synced or all they had, answers and
views that are wrong as often as not: whatever happens in whatever order, states change only as they may (C1), one
replica leads an epoch, and who leads has every acknowledged message (S5), and nothing that grows goes back (C4).

Nothing here is told the truth about who lives: safety must not hang on it.
"""

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, group_of
from popwheel_controller.broker_groups.failure_detector import Liveness
from popwheel_controller.broker_groups.group_policy import (
    ObservedReplica,
    find_earlier_epoch,
    may_receive_state,
    next_state,
)
from popwheel_controller.broker_groups.group_writer import Decision, GroupWriter
from popwheel_controller.store.state_store import group_document_name
from tests.unit.controller.memory_store import MemoryStore

GROUP = "b"
NUMBERS = (0, 1, 2)
Entry = tuple[int, int]
"""A record: its epoch, and a number that no other has."""


@dataclass(eq=False)
class Process:
    """One life of one replica."""

    number: int
    identity: bytes
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    learned: GroupState | None = None
    leads: int | None = None
    counted: set[int] = field(default_factory=set)
    has: dict[int, int] = field(default_factory=dict)
    """Of a master: how far each replica said that it is."""
    suspect: bool = False
    complete_at: int | None = None
    """Of a slave: where its master's log ended when it began to follow."""

    def report(self) -> ReplicaReport:
        learned = self.learned
        return ReplicaReport(
            group=GROUP,
            replica=self.number,
            address=f"replica-{self.number}:1",
            identity=self.identity,
            epoch=0 if learned is None else learned.epoch,
            last_epoch=self.log[-1][0] if self.log else 0,
            end_position=len(self.log),
            sync_state_set=[] if learned is None else sorted(learned.sync_state_set),
            version=0 if learned is None else learned.version,
            leading=self.leads is not None,
            suspect=self.suspect,
        )


@dataclass(eq=False)
class Registered:
    """A stream of a replica, as a controller has it; it may be over without the controller knowing."""

    process: Process
    report: ReplicaReport
    earlier_epoch: int | None


@dataclass(eq=False)
class Controller:
    """One that believes that it leads."""

    group_writer: GroupWriter
    streams: dict[int, Registered] = field(default_factory=dict)


CONTROLLERS = st.integers(0, 1)
REPLICAS = st.sampled_from(NUMBERS)


class GroupMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = MemoryStore()
        self.processes = {number: Process(number, b"%d-0" % number) for number in NUMBERS}
        self.controllers = [Controller(GroupWriter(self.store, 10, lambda: None)) for _ in range(2)]
        self.entries = 0
        self.acked: list[Entry] = []
        self.led_by: dict[int, Process] = {}
        self.wipes = 0
        self.rotten: int | None = None
        """Who has lost the end of its log."""

    def teardown(self) -> None:
        self.runner.close()

    @initialize()
    def two_of_three_come(self) -> None:
        """So that most runs begin with a group."""
        for number in (0, 1):
            self.register(0, number)
        self.decide(0, [Liveness.LIVING] * 3)
        for number in (0, 1):
            self.tell(0, number)

    # Replicas and their controllers.

    @rule(controller=CONTROLLERS, number=REPLICAS)
    def register(self, controller: int, number: int) -> None:
        """A replica opens a stream; if it knows more than the controller, that reads what is stored."""
        chosen, process = self.controllers[controller], self.processes[number]
        report = process.report()
        state = chosen.group_writer.states.get(GROUP)
        chosen.streams[number] = Registered(process, report, find_earlier_epoch(state, report))
        if report.version > (0 if state is None else state.version):
            self.try_to(chosen.group_writer.refresh(GROUP))

    @rule(controller=CONTROLLERS, number=REPLICAS)
    def report(self, controller: int, number: int) -> None:
        stream = self.controllers[controller].streams.get(number)
        if stream is not None and stream.process is self.processes[number]:
            stream.report = stream.process.report()

    @rule(controller=CONTROLLERS, livenesses=st.lists(st.sampled_from(Liveness), min_size=3, max_size=3))
    def decide(self, controller: int, livenesses: list[Liveness]) -> None:
        """A controller looks at the group; what it takes for living may be dead, and the other way round."""
        chosen = self.controllers[controller]
        views = {
            number: ObservedReplica(liveness, stream.report, stream.earlier_epoch)
            for number, liveness in zip(NUMBERS, livenesses, strict=True)
            if (stream := chosen.streams.get(number)) is not None
        }

        def decision(state: GroupState | None) -> GroupState | None:
            after = next_state(GROUP, state, views)
            if state is None or after is None or after.epoch == state.epoch or len(state.sync_state_set) == 1:
                return after
            # Who is chosen is asked first, and may not be any more who registered; all are if it is in doubt.
            outcome_unknown = chosen.streams[after.master].report.suspect
            for number in state.sync_state_set if outcome_unknown else {after.master}:
                stream, process = chosen.streams[number], self.processes[number]
                if stream.process is not process or (
                    outcome_unknown and stream.report.end_position != len(process.log)
                ):
                    return None
            return after

        self.change(controller, decision)

    @rule(controller=CONTROLLERS, to=REPLICAS)
    def transfer(self, controller: int, to: int) -> None:
        def decision(state: GroupState | None) -> GroupState | None:
            if state is None or to not in state.sync_state_set or to == state.master or self.processes[to].suspect:
                return None
            return state.elected(to)

        self.change(controller, decision)

    @rule(controller=CONTROLLERS)
    def resign(self, controller: int) -> None:
        self.change(controller, lambda state: None if state is None else state.resigned())

    @rule(controller=CONTROLLERS)
    def look(self, controller: int) -> None:
        group_writer = self.controllers[controller].group_writer

        async def look() -> None:
            await group_writer.poll_store(await group_writer._store.versions())

        self.try_to(look())

    @rule(controller=CONTROLLERS, number=REPLICAS)
    def tell(self, controller: int, number: int) -> None:
        """A replica hears how its group is, if its stream is still its own."""
        chosen, process = self.controllers[controller], self.processes[number]
        stream, state = chosen.streams.get(number), chosen.group_writer.states.get(GROUP)
        if stream is None or stream.process is not process or state is None:
            return
        if may_receive_state(state, number, stream.report, stream.earlier_epoch):
            self.learn(process, state)

    @rule()
    def the_store_is_away_for_a_moment(self) -> None:
        self.store.away = True

    @rule()
    def an_answer_of_the_store_is_lost(self) -> None:
        self.store.lost_answers = 1

    @rule(controller=CONTROLLERS, dead=st.sets(REPLICAS, max_size=2))
    def go_on(self, controller: int, dead: set[int]) -> None:
        """All goes well for a while: everybody registers, those that are not taken for dead, and hears what comes of
        it.
        """
        for number in NUMBERS:
            if number not in dead:
                self.register(controller, number)
        self.decide(controller, [Liveness.DEAD if number in dead else Liveness.LIVING for number in NUMBERS])
        for number in NUMBERS:
            if number not in dead:
                self.tell(controller, number)

    @rule(controller=CONTROLLERS, away=st.sets(REPLICAS, max_size=2))
    def work(self, controller: int, away: set[int]) -> None:
        """Messages come, those slaves that are not away follow and are asked in."""
        for master in [process for process in self.processes.values() if process.leads is not None]:
            self.put(master.number, 1)
            for number in {*NUMBERS} - away:
                self.follow(number, master.number, 100)
                self.sync(number)
                self.sync(master.number)
                self.follow(number, master.number, 100)
                self.ask_in(controller, master.number, number, True)
            self.acknowledge(master)

    # What masters and slaves do.

    @rule(number=REPLICAS, count=st.integers(1, 3))
    def put(self, number: int, count: int) -> None:
        process = self.processes[number]
        if process.leads is not None:
            for _ in range(count):
                self.entries += 1
                process.log.append((process.leads, self.entries))

    @rule(number=REPLICAS)
    def sync(self, number: int) -> None:
        self.processes[number].synced = len(self.processes[number].log)

    @rule(number=REPLICAS, of=REPLICAS, count=st.integers(0, 3))
    def follow(self, number: int, of: int, count: int) -> None:
        """A slave gets some of a master's log, and says how far it has synced."""
        slave, master = self.processes[number], self.processes[of]
        if slave is master or master.leads is None or slave.leads is not None:
            return
        if slave.learned is None or slave.learned.epoch != master.leads or slave.learned.master != of:
            return
        common = 0
        while common < min(len(slave.log), len(master.log)) and slave.log[common] == master.log[common]:
            common += 1
        if common < len(slave.log):
            del slave.log[common:]
            slave.synced = min(slave.synced, common)
        if slave.complete_at is None:
            slave.complete_at = len(master.log)
        slave.log.extend(master.log[common : common + count])
        master.has[number] = slave.synced
        if slave.synced >= slave.complete_at:
            self.clear_suspect(slave)
        self.acknowledge(master)

    @rule(controller=CONTROLLERS, of=REPLICAS, number=REPLICAS, answered=st.booleans())
    def ask_in(self, controller: int, of: int, number: int, answered: bool) -> None:
        """A master wants a slave in its set that has all it ever acknowledged; it counts from now on."""
        master = self.processes[of]
        if master.leads is None or number in master.counted:
            return
        if master.has.get(number, 0) >= self.confirmed(master):
            master.counted.add(number)
            self.ask(controller, master, {*master.counted}, answered)

    @rule(controller=CONTROLLERS, of=REPLICAS, number=REPLICAS, answered=st.booleans())
    def ask_out(self, controller: int, of: int, number: int, answered: bool) -> None:
        """A master wants to go on without a slave: it counts on the smaller set only when it has heard yes."""
        master = self.processes[of]
        if master.leads is not None and number != of and number in master.counted:
            self.ask(controller, master, master.counted - {number}, answered)

    # What goes wrong.

    @rule(number=REPLICAS, power=st.booleans())
    def begin_anew(self, number: int, power: bool) -> None:
        """A process dies and comes back; with the power, what was not synced is gone."""
        old = self.processes[number]
        kept = old.log[: old.synced] if power else list(old.log)
        self.processes[number] = Process(number, old.identity, kept, len(kept), old.learned, suspect=old.suspect)

    @rule(number=REPLICAS, kept=st.integers(0, 5), power=st.booleans())
    def begin_with_unknown_outcome(self, number: int, kept: int, power: bool) -> None:
        """One comes back that had to cut off the end of its log: what was torn, or more, as it has rotted. Only one at
        a time has, and what it should have another member of the set has.
        """
        self.begin_anew(number, power)
        process = self.processes[number]
        process.suspect = True
        stored = self.store.history.get(group_document_name(GROUP))
        members = group_of(json.loads(stored[-1]), "memory").sync_state_set if stored else frozenset()
        others = [self.processes[other] for other in members - {number}]
        if self.rotten in (None, number) and not self.wipes and any(set(self.acked) <= set(o.log) for o in others):
            self.rotten = number
            del process.log[max(0, len(process.log) - kept) :]
            process.synced = len(process.log)

    @rule(controller=CONTROLLERS, number=REPLICAS, kept=st.integers(1, 5), registers=st.booleans(), dead=REPLICAS)
    def choose_with_unknown_outcome(self, controller: int, number: int, kept: int, registers: bool, dead: int) -> None:
        """One comes back so, and somebody is to be chosen as another one dies; perhaps before it has registered."""
        self.work(controller, set())
        self.begin_with_unknown_outcome(number, kept, False)
        if registers:
            self.go_on(controller, {dead})
        else:
            self.decide(controller, [Liveness.DEAD if each == dead else Liveness.LIVING for each in NUMBERS])
            self.go_on(controller, {dead})

    @rule(number=REPLICAS)
    def wipe(self, number: int) -> None:
        """A volume is lost. More than one loss could take all copies of a message: nobody promises anything then."""
        if self.wipes < 1 and self.rotten is None:
            self.wipes += 1
            self.processes[number] = Process(number, b"%d-%d" % (number, self.wipes))

    # What must hold.

    @invariant()
    def stored_states_change_only_as_they_may(self) -> None:
        history = [
            group_of(json.loads(contents), "memory")
            for contents in self.store.history.get(group_document_name(GROUP), [])
        ]
        for old, new in pairwise(history):
            assert new.version == old.version + 1
            assert new.epoch in (old.epoch, old.epoch + 1)
            if new.epoch == old.epoch:
                assert new.master in (old.master, NO_MASTER)
            else:
                assert new.master in old.sync_state_set
                assert new.sync_state_set == {new.master}
            assert new.replicas.keys() >= old.replicas.keys()

    @invariant()
    def controllers_know_what_was_stored(self) -> None:
        """What a controller holds was stored at some time, word for word."""
        stored = [
            group_of(json.loads(contents), "memory")
            for contents in self.store.history.get(group_document_name(GROUP), [])
        ]
        for controller in self.controllers:
            state = controller.group_writer.states.get(GROUP)
            assert state is None or state in stored

    @invariant()
    def records_of_one_place_and_epoch_are_one(self) -> None:
        """Whatever logs may part in, within one epoch they are the same (S4)."""
        logs = [process.log for process in self.processes.values()]
        for one in logs:
            for other in logs:
                for mine, theirs in zip(one, other, strict=False):
                    assert mine[0] != theirs[0] or mine == theirs

    # Helpers.

    def change(self, controller: int, decision: Decision) -> GroupState | None:
        try:
            return self.runner.run(self.controllers[controller].group_writer.change(GROUP, decision))
        except StatusError:
            return None
        finally:
            self.store.away = False

    def try_to(self, work: Coroutine[None, None, None]) -> None:
        with contextlib.suppress(OSError):
            self.runner.run(work)
        self.store.away = False

    def learn(self, process: Process, state: GroupState) -> None:
        if process.learned is not None and state.version <= process.learned.version:
            return
        if process.learned is None or process.learned.epoch != state.epoch:
            process.complete_at = None
        process.learned = state
        if state.master != process.number:
            process.leads = None
        elif process.leads == state.epoch:
            process.counted = set(state.sync_state_set)
        else:
            assert process.leads is None or process.leads < state.epoch
            self.lead(process, state)

    def clear_suspect(self, process: Process) -> None:
        process.suspect = False
        if self.rotten == process.number:
            self.rotten = None

    def lead(self, process: Process, state: GroupState) -> None:
        assert state.epoch not in self.led_by, "one epoch, one master"
        assert set(self.acked) <= set(process.log), "who leads has all that was acknowledged"
        assert process.identity == state.replicas[process.number].identity
        self.led_by[state.epoch] = process
        process.leads = state.epoch
        process.counted = set(state.sync_state_set)
        process.has = {}
        self.clear_suspect(process)

    def ask(self, controller: int, master: Process, members: set[int], answered: bool) -> None:
        assert master.learned is not None and master.leads is not None
        epoch, version = master.leads, master.learned.version

        def decision(state: GroupState | None) -> GroupState | None:
            return None if state is None else state.with_sync_state_set(epoch, master.number, version, members)

        state = self.change(controller, decision)
        if answered and state is not None and state.version > version:
            self.learn(master, state)
            self.acknowledge(master)

    def confirmed(self, master: Process) -> int:
        positions = [master.synced if n == master.number else master.has.get(n, 0) for n in master.counted]
        return min(positions)

    def acknowledge(self, master: Process) -> None:
        newest = max(self.led_by)
        for entry in master.log[: self.confirmed(master)]:
            if entry not in self.acked:
                self.acked.append(entry)
                assert entry in self.led_by[newest].log or self.led_by[newest] is not self.processes.get(
                    self.led_by[newest].number
                ), "an older master acknowledged what a newer one does not have"


GroupMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGroupMachine = GroupMachine.TestCase
