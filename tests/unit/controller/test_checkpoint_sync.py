"""Which master is asked when, and who is given what."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync, Fetch, Give
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace


def place(number: int, life: int = 0) -> ReplicaPlace:
    return ReplicaPlace(number, f"r{number}:{life}")


def roles_of(group: str = "b", epoch: int = 1, master: int | None = 0, slaves: tuple[int, ...] = (1,)) -> GroupRoles:
    return GroupRoles(
        group, epoch, None if master is None else place(master), tuple(place(number) for number in slaves)
    )


def answer(fetch: Fetch, version: int) -> ReplicaCheckpoint:
    return ReplicaCheckpoint(group=fetch.group, epoch=fetch.epoch, version=version)


def only_fetch(actions: list[Fetch]) -> Fetch:
    [action] = actions
    return action


def only_give(actions: list[Give]) -> Give:
    [action] = actions
    return action


def synced(version: int = 5, **roles: int) -> CheckpointSync:
    """A group whose only slave has a version since 0 s."""
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(**roles), 0.0)  # type: ignore[arg-type]
    fetch = only_fetch(sync.time_passed(0.0))
    sync.stored(only_give(sync.fetched(fetch, answer(fetch, version))), 0.5)
    return sync


def test_a_round_asks_the_master_and_gives_to_every_slave() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=(1, 2)), 10.0)
    fetch = only_fetch(sync.time_passed(10.0))
    assert (fetch.master, fetch.epoch) == (place(0), 1)
    gives = sync.fetched(fetch, answer(fetch, 7))
    assert [give.slave for give in gives] == [place(1), place(2)]
    for give in gives:
        sync.stored(give, 10.2)
    assert sync.time_passed(12.9) == []
    assert [age.version for age in sync.ages("b", 12.9)] == [7, 7]
    only_fetch(sync.time_passed(13.0))


def test_a_group_without_slaves_or_without_master_is_not_asked() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=()), 0.0)
    sync.roles(roles_of("other", master=None), 0.0)
    assert sync.time_passed(100.0) == []
    assert sync.next_time_s() is None


def test_a_slow_slave_holds_up_nobody() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=(1, 2)), 0.0)
    fetch = only_fetch(sync.time_passed(0.0))
    slow, quick = sync.fetched(fetch, answer(fetch, 4))
    sync.stored(quick, 0.1)
    later = only_fetch(sync.time_passed(3.0))
    give = only_give(sync.fetched(later, answer(later, 9)))
    assert give.slave == place(2)
    sync.stored(give, 3.1)
    sync.stored(slow, 5.0)
    both = only_fetch(sync.time_passed(6.0))
    assert [each.slave for each in sync.fetched(both, answer(both, 11))] == [place(1), place(2)]


def test_a_new_master_is_asked_at_once() -> None:
    sync = synced(5)
    sync.roles(roles_of(epoch=2, master=2, slaves=(1,)), 1.0)
    fetch = only_fetch(sync.time_passed(1.0))
    assert (fetch.epoch, fetch.master) == (2, place(2))


def test_what_comes_of_an_epoch_that_is_over_goes_to_nobody() -> None:
    sync = synced(5)
    late = only_fetch(sync.time_passed(3.0))
    sync.roles(roles_of(epoch=2, master=2, slaves=(1,)), 3.1)
    assert sync.fetched(late, answer(late, 9)) == []
    sync.roles(roles_of(epoch=1), 3.2)  # what was said late of the old epoch is passed over
    assert only_fetch(sync.time_passed(3.3)).epoch == 2


def test_answers_of_another_group_or_epoch_go_to_nobody() -> None:
    sync = synced(5)
    for number, change in enumerate(({"epoch": 3}, {"group": "c"}), 1):
        fetch = only_fetch(sync.time_passed(3.0 * number))
        wrong = answer(fetch, 9)
        wrong.MergeFrom(ReplicaCheckpoint(**change))  # type: ignore[arg-type]
        assert sync.fetched(fetch, wrong) == []
        assert sync.fetched(fetch, answer(fetch, 9)) == []  # it is answered


def test_a_slave_that_did_not_answer_or_refused_is_given_the_next_one() -> None:
    sync = synced(5)
    fetch = only_fetch(sync.time_passed(3.0))
    sync.not_stored(only_give(sync.fetched(fetch, answer(fetch, 6))))
    fetch = only_fetch(sync.time_passed(6.0))
    sync.stored(only_give(sync.fetched(fetch, answer(fetch, 7))), 6.1)
    assert [age.version for age in sync.ages("b", 7.0)] == [7]


def test_a_master_that_does_not_answer_is_asked_again_in_the_next_round() -> None:
    sync = synced(5)
    fetch = only_fetch(sync.time_passed(3.0))
    assert sync.time_passed(6.0) == []  # the call is under way
    sync.not_fetched(fetch)
    only_fetch(sync.time_passed(6.0))


def test_the_age_counts_from_when_the_master_was_asked_and_for_living_slaves_alone() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=(1, 2)), 0.0)
    fetch = only_fetch(sync.time_passed(2.0))
    one, _ = sync.fetched(fetch, answer(fetch, 4))
    sync.stored(one, 4.0)
    assert [(age.replica, age.age_s) for age in sync.ages("b", 5.0)] == [(1, 3.0), (2, 5.0)]
    sync.roles(roles_of(slaves=(1,)), 5.0)
    assert [age.replica for age in sync.ages("b", 5.0)] == [1]
    sync.roles(roles_of(slaves=(1, 2)), 9.0)
    assert [(age.replica, age.age_s) for age in sync.ages("b", 9.0)] == [(1, 7.0), (2, 9.0)]


def test_only_that_many_masters_are_asked_at_a_time() -> None:
    sync = CheckpointSync(3.0, 2)
    for name in ("a", "b", "c"):
        sync.roles(roles_of(name), 0.0)
    first, second = sync.time_passed(0.0)
    assert sync.time_passed(1.0) == []
    sync.not_fetched(first)
    assert only_fetch(sync.time_passed(1.1)).group == "c"
    sync.forget("b")
    sync.roles(roles_of("d"), 1.2)
    assert sync.time_passed(1.2) == []  # what is under way for the one that was forgotten counts still
    assert sync.fetched(second, answer(second, 1)) == []
    assert only_fetch(sync.time_passed(1.3)).group == "d"


PICK = st.integers(0, 1_000_000)


class SyncMachine(RuleBasedStateMachine):
    """Any order of answers, refusals, new epochs, and slaves that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.sync = CheckpointSync(3.0, 4)
        self.now_s = 0.0
        self.epochs = {"a": 1, "b": 1}
        self.masters = {"a": 0, "b": 0}
        self.present = {"a": {1, 2}, "b": {1}}
        self.under_way: list[Fetch | Give] = []
        self.version = 0
        self.held: dict[tuple[str, int], tuple[int, int]] = {}
        """Epoch and version of each slave; they never go back."""
        self.tell("a")
        self.tell("b")

    def tell(self, group: str) -> None:
        self.sync.roles(
            roles_of(group, self.epochs[group], self.masters[group], tuple(sorted(self.present[group]))), self.now_s
        )

    @rule(seconds=st.floats(0, 4))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.under_way += self.sync.time_passed(self.now_s)

    @rule(group=st.sampled_from(["a", "b"]), master=st.integers(0, 2))
    def elect(self, group: str, master: int) -> None:
        self.epochs[group] += 1
        self.masters[group] = master
        self.present[group] = {0, 1, 2} - {master}
        self.tell(group)

    @rule(group=st.sampled_from(["a", "b"]), number=st.integers(0, 2))
    def come_or_go(self, group: str, number: int) -> None:
        if number != self.masters[group]:
            self.present[group] ^= {number}
            self.tell(group)

    @rule(group=st.sampled_from(["a", "b"]))
    def forget(self, group: str) -> None:
        self.sync.forget(group)
        self.tell(group)

    @rule(pick=PICK, fails=st.integers(0, 3))
    def end(self, pick: int, fails: int) -> None:
        """End something that is under way."""
        if not self.under_way:
            return
        action = self.under_way.pop(pick % len(self.under_way))
        if isinstance(action, Fetch):
            if not fails:
                self.sync.not_fetched(action)
                return
            self.version += 1
            self.under_way += self.sync.fetched(action, answer(action, self.version))
            return
        key = (action.group, action.slave.number)
        given = action.checkpoint.epoch, action.checkpoint.version
        if given < self.held.get(key, (0, 0)):
            self.sync.not_stored(action)  # it is refused
            return
        self.held[key] = given
        if not fails:
            self.sync.not_stored(action)  # its answer was lost
            return
        self.sync.stored(action, self.now_s)

    @rule(group=st.sampled_from(["a", "b"]))
    def wipe(self, group: str) -> None:
        """A slave loses what it held."""
        self.held.pop((group, 1), None)

    @invariant()
    def bounded(self) -> None:
        fetches = [action for action in self.under_way if isinstance(action, Fetch)]
        assert len(fetches) <= 4
        for name in self.sync.names():
            for age in self.sync.ages(name, self.now_s):
                assert 0 <= age.age_s <= self.now_s

    def teardown(self) -> None:
        """When all goes well again each living slave soon has what its master says."""
        for _ in range(12):
            self.now_s += 3.0
            self.under_way += self.sync.time_passed(self.now_s)
            while self.under_way:
                self.end(0, 1)
        for group, numbers in self.present.items():
            for number in numbers:
                assert self.held[group, number][0] == self.epochs[group]
            assert all(age.age_s <= 6.0 for age in self.sync.ages(group, self.now_s))


TestSyncMachine = SyncMachine.TestCase
TestSyncMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
