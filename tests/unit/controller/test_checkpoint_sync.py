"""Which master is asked when, and who is given what."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint
from popwheel_controller.broker_groups.checkpoint_sync import Action, CheckpointSync, Fetch, Give
from popwheel_controller.broker_groups.roles import GroupRoles, ReplicaPlace


def place(number: int, life: int = 0) -> ReplicaPlace:
    return ReplicaPlace(number, f"r{number}:{life}")


def roles_of(group: str = "b", epoch: int = 1, master: int | None = 0, slaves: tuple[int, ...] = (1,)) -> GroupRoles:
    return GroupRoles(
        group, epoch, None if master is None else place(master), tuple(place(number) for number in slaves)
    )


def answer(fetch: Fetch, version: int, *, rest_from: int = 0, base: int | None = None) -> ReplicaCheckpoint:
    return ReplicaCheckpoint(
        group=fetch.group,
        epoch=fetch.epoch,
        version=version,
        base_version=fetch.known_version if base is None else base,
        rest_from=rest_from,
    )


def only_fetch(actions: list[Action]) -> Fetch:
    [action] = actions
    assert isinstance(action, Fetch)
    return action


def only_give(actions: list[Action]) -> Give:
    [action] = actions
    assert isinstance(action, Give)
    return action


def synced(version: int = 5, **roles: int) -> CheckpointSync:
    """A group whose only slave holds a version since 0 s."""
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(**roles), 0.0)  # type: ignore[arg-type]
    fetch = only_fetch(sync.time_passed(0.0))
    assert sync.stored(only_give(sync.fetched(fetch, answer(fetch, version))), 0.5) == []
    return sync


def test_a_round_asks_the_master_and_gives_to_every_slave() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=(1, 2)), 10.0)
    fetch = only_fetch(sync.time_passed(10.0))
    assert (fetch.master, fetch.epoch, fetch.known_version, fetch.slaves) == (place(0), 1, 0, (1, 2))
    gives = sync.fetched(fetch, answer(fetch, 7))
    assert [give.slave for give in gives if isinstance(give, Give)] == [place(1), place(2)]
    for give in gives:
        assert isinstance(give, Give)
        assert sync.stored(give, 10.2) == []
    assert sync.time_passed(12.9) == []
    assert only_fetch(sync.time_passed(13.0)).known_version == 7


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
    assert isinstance(quick, Give)
    sync.stored(quick, 0.1)
    later = only_fetch(sync.time_passed(3.0))
    assert (later.known_version, later.slaves) == (4, (2,))
    sync.stored(only_give(sync.fetched(later, answer(later, 9))), 3.1)
    assert isinstance(slow, Give)
    sync.stored(slow, 5.0)
    both = sync.time_passed(6.0)
    assert {(each.known_version, each.slaves) for each in both if isinstance(each, Fetch)} == {(4, (1,)), (9, (2,))}


def test_what_does_not_go_into_one_message_follows_at_once() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(), 0.0)
    first = only_fetch(sync.time_passed(0.0))
    give = only_give(sync.fetched(first, answer(first, 80, rest_from=50)))
    rest = only_fetch(sync.stored(give, 0.2))
    assert (rest.known_version, rest.slaves) == (50, (1,))
    [age] = sync.ages("b", 0.3)
    assert age.took_s is None  # not all of it is there
    sync.stored(only_give(sync.fetched(rest, answer(rest, 81))), 0.4)
    [age] = sync.ages("b", 1.0)
    assert (age.version, age.age_s, age.took_s) == (81, 1.0, 0.4)


def test_a_new_epoch_begins_anew_at_once() -> None:
    sync = synced(5)
    sync.roles(roles_of(epoch=2, master=2, slaves=(1,)), 1.0)
    fetch = only_fetch(sync.time_passed(1.0))
    assert (fetch.epoch, fetch.known_version, fetch.master) == (2, 0, place(2))


def test_what_comes_of_an_epoch_that_is_over_goes_to_nobody() -> None:
    sync = synced(5)
    late = only_fetch(sync.time_passed(3.0))
    sync.roles(roles_of(epoch=2, master=2, slaves=(1,)), 3.1)
    assert sync.fetched(late, answer(late, 9)) == []
    sync.roles(roles_of(epoch=1), 3.2)  # what was said late of the old epoch is passed over
    assert only_fetch(sync.time_passed(3.3)).epoch == 2


def test_answers_that_cannot_be_go_to_nobody() -> None:
    sync = synced(5)
    for now_s, bad in enumerate(
        (
            {"version": 5},  # not later than what is known
            {"version": 4},
            {"version": 9, "base": 3},  # a difference from something else
        ),
        1,
    ):
        fetch = only_fetch(sync.time_passed(3.0 * now_s))
        assert sync.fetched(fetch, answer(fetch, **bad)) == []
    fetch = only_fetch(sync.time_passed(30.0))
    other = answer(fetch, 9)
    other.epoch = 3
    assert sync.fetched(fetch, other) == []


def test_a_refused_difference_is_followed_by_all_of_it() -> None:
    sync = synced(5)
    fetch = only_fetch(sync.time_passed(3.0))
    sync.not_stored(only_give(sync.fetched(fetch, answer(fetch, 6))), refused=True)
    assert only_fetch(sync.time_passed(6.0)).known_version == 0


def test_a_slave_that_did_not_answer_is_given_a_difference_from_what_it_had() -> None:
    sync = synced(5)
    fetch = only_fetch(sync.time_passed(3.0))
    sync.not_stored(only_give(sync.fetched(fetch, answer(fetch, 6))), refused=False)
    assert only_fetch(sync.time_passed(6.0)).known_version == 5


def test_a_master_that_does_not_answer_is_asked_again_in_the_next_round() -> None:
    sync = synced(5)
    sync.not_fetched(only_fetch(sync.time_passed(3.0)))
    assert sync.time_passed(5.9) == []
    assert only_fetch(sync.time_passed(6.0)).known_version == 5


def test_the_age_counts_from_when_the_master_was_asked_and_for_living_slaves_alone() -> None:
    sync = CheckpointSync(3.0, 32)
    sync.roles(roles_of(slaves=(1, 2)), 0.0)
    fetch = only_fetch(sync.time_passed(2.0))
    one, _ = sync.fetched(fetch, answer(fetch, 4))
    assert isinstance(one, Give)
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
    assert isinstance(first, Fetch)
    assert isinstance(second, Fetch)
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
        self.under_way: list[Action] = []
        self.versions: dict[tuple[str, int], int] = {}
        self.held: dict[tuple[str, int], tuple[int, int, int]] = {}
        """What each slave really holds; it never goes back."""
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

    @rule(pick=PICK, fails=st.integers(0, 3), more=st.booleans())
    def end(self, pick: int, fails: int, more: bool) -> None:
        """Something that is under way comes to its end."""
        if not self.under_way:
            return
        action = self.under_way.pop(pick % len(self.under_way))
        if isinstance(action, Fetch):
            if not fails:
                self.sync.not_fetched(action)
                return
            version = self.versions.get((action.group, action.epoch), 0)
            version = self.versions[action.group, action.epoch] = max(version, action.known_version) + 1
            self.under_way += self.sync.fetched(action, answer(action, version, rest_from=version - 1 if more else 0))
            return
        key = (action.group, action.slave.number)
        checkpoint = action.checkpoint
        epoch, version, known = self.held.get(key, (0, 0, 0))
        refused = (checkpoint.epoch, checkpoint.version) < (epoch, version) or (
            checkpoint.base_version > 0 and (checkpoint.epoch != epoch or checkpoint.base_version > known)
        )
        if refused:
            self.sync.not_stored(action, refused=True)
            return
        self.held[key] = (checkpoint.epoch, checkpoint.version, checkpoint.rest_from or checkpoint.version)
        if not fails:
            self.sync.not_stored(action, refused=False)  # its answer was lost
            return
        self.under_way += self.sync.stored(action, self.now_s)

    @rule(group=st.sampled_from(["a", "b"]))
    def wipe(self, group: str) -> None:
        """A slave loses what it held."""
        self.held.pop((group, 1), None)

    @invariant()
    def bounded(self) -> None:
        fetches = [action for action in self.under_way if isinstance(action, Fetch)]
        assert len(fetches) <= 4 + 3  # further parts are asked for at once
        for name in self.sync.names():
            for age in self.sync.ages(name, self.now_s):
                assert 0 <= age.age_s <= self.now_s

    def teardown(self) -> None:
        """When all goes well again each living slave soon has what its master says."""
        for _ in range(12):
            self.now_s += 3.0
            self.under_way += self.sync.time_passed(self.now_s)
            while self.under_way:
                self.end(0, 1, more=False)
        for group, numbers in self.present.items():
            for number in numbers:
                assert self.held[group, number][0] == self.epochs[group]
            assert all(age.age_s <= 6.0 for age in self.sync.ages(group, self.now_s))


TestSyncMachine = SyncMachine.TestCase
TestSyncMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
