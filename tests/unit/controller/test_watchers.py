"""A watcher is sent everything or the whole state anew, and never holds more than it may."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from services.common.cluster import ClusterView
from services.common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from services.controller.watchers import Watcher, Watchers
from tests.unit.controller.changes import CHANGES, Change, contents, fresh_state, try_change


def snapshots(version: int = 0) -> Callable[[], ClusterUpdate]:
    return lambda: ClusterUpdate(version=version, snapshot=True)


@given(
    changes=st.lists(st.tuples(CHANGES, st.booleans()), max_size=40), updates_max=st.integers(min_value=1, max_value=3)
)
def test_a_watcher_ends_with_the_state_however_slow_it_is(changes: list[tuple[Change, bool]], updates_max: int) -> None:
    state = fresh_state()
    view = ClusterView()
    watcher = Watcher(updates_max, lambda: state.snapshot(), lambda: None)
    for change, reads in [*changes, (lambda _: None, True)]:
        state, update = try_change(state, change)
        if update is not None:
            watcher.offer(update)
        if reads:
            taken = watcher.take()
            assert len(taken) <= updates_max
            for each in taken:
                view.apply(each)
            assert (view.version, contents(view)) == (state.version, contents(state))


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
