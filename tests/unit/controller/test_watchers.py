"""A watcher is sent everything or the whole state anew, and never holds more than it may."""

from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate
from popwheel_controller.cluster.watchers import Snapshot, Watcher, Watchers
from tests.unit.controller.changes import CHANGES, Change, contents, fresh_state, snapshot_of, try_change


def snapshots(version: int = 0) -> Callable[[], Iterator[ClusterUpdate]]:
    return lambda: iter([ClusterUpdate(version=version, snapshot=True)])


@given(
    changes=st.lists(st.tuples(CHANGES, st.integers(0, 3)), max_size=40),
    updates_max=st.integers(min_value=1, max_value=3),
    names_max=st.integers(min_value=1, max_value=4),
)
def test_a_watcher_ends_with_the_state_however_slow_it_is(
    changes: list[tuple[Change, int]], updates_max: int, names_max: int
) -> None:
    """In between it has each state that it was told whole, and no half of one."""
    state = fresh_state()
    was = {0: contents(state)}
    view = ClusterView()
    watchers = Watchers()
    watcher = Watcher(updates_max, lambda: watchers.parts(state, names_max), lambda: None)
    watchers.add(watcher)
    for change, reads in [*changes, (lambda _: None, 1000)]:
        state, update = try_change(state, change)
        was[state.version] = contents(state)
        if update is not None:
            watchers.publish(update)
        for _ in range(reads):
            taken = watcher.take()
            assert len(taken) <= updates_max
            for each in taken:
                view.apply(each)
                assert len(each.topics) + len(each.groups) <= names_max
                assert not view.ready or contents(view) == was[view.version]
    assert (view.version, contents(view)) == (state.version, contents(state))


@given(changes=st.lists(CHANGES, max_size=30), names_max=st.integers(min_value=1, max_value=4))
def test_a_snapshot_in_parts_says_what_one_says_in_one(changes: list[Change], names_max: int) -> None:
    """Also to who knew more before: what is missing in it was deleted. One that breaks off counts for nothing."""
    state, view = fresh_state(), ClusterView()
    for change in changes:
        view.apply(snapshot_of(state))
        before = contents(view)
        state, _ = try_change(state, change)
        parts = list(Snapshot(state, names_max).parts())
        assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
        for part in parts[:-1]:
            view.apply(part)
            assert contents(view) == before
        for part in parts:
            view.apply(part)
        assert (view.version, view.named, contents(view)) == (state.version, state.named, contents(state))


def test_a_watcher_that_lags_while_it_is_notified_all_is_notified_all_once_more_after_that() -> None:
    reported = iter("ab")
    watcher = Watcher(1, lambda: _parts(next(reported)), lambda: None)
    assert [part.cluster.name for part in watcher.take()] == ["a1"]
    for version in (5, 6):
        watcher.offer(ClusterUpdate(version=version))
    assert [part.cluster.name for _ in range(3) for part in watcher.take()] == ["a2", "b1", "b2"]
    assert (watcher.take(), watcher.lagged) == ([], 1)


def _parts(name: str) -> Iterator[ClusterUpdate]:
    for number in (1, 2):
        yield ClusterUpdate(snapshot=True, cluster=Cluster(name=f"{name}{number}"), more=number == 1)


def test_one_that_lags_too_far_gets_the_whole_state() -> None:
    watcher = Watcher(2, snapshots(9), lambda: None)
    assert [update.snapshot for update in watcher.take()] == [True]
    for version in (1, 2):
        watcher.offer(ClusterUpdate(version=version))
    assert watcher.lagged == 0
    watcher.offer(ClusterUpdate(version=3))
    watcher.offer(ClusterUpdate(version=4))
    assert watcher.lagged == 1
    assert [(update.version, update.snapshot) for update in watcher.take()] == [(9, True)]
    assert watcher.take() == []


def test_everyone_is_woken_and_everyone_is_ended() -> None:
    woken: list[str] = []

    def woken_by(name: str) -> Callable[[], None]:
        return lambda: woken.append(name)

    watchers = Watchers()
    first, second, late = (Watcher(1, snapshots(), woken_by(name)) for name in "abc")
    watchers.add(first)
    watchers.add(second)
    watchers.publish(ClusterUpdate(version=1))
    watchers.remove(second)
    assert (sorted(woken), len(watchers)) == (["a", "b"], 1)
    watchers.close()
    watchers.add(late)
    assert (first.closed, second.closed, late.closed) == (True, False, True)
