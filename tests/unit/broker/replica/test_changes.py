"""Who knows a version and takes what has changed since has the same as who takes everything."""

from hypothesis import given
from hypothesis import strategies as st

from services.broker.replica.changes import Changes

KEYS = st.integers(0, 5)
STEPS = st.lists(st.one_of(st.tuples(st.just("set"), KEYS), st.tuples(st.just("remove"), KEYS)), max_size=60)


def replay(known: dict[int, int], changes: Changes[int, int], version: int, count: int) -> int:
    """Take what has changed, `count` changes at a time; how many times."""
    times = 0
    last: int | None = version
    while last is not None:
        assert changes.knows(last)
        found, following = changes.since(last, count)
        assert len(found) <= count
        for key, value in found:
            if value is None:
                known.pop(key, None)
            else:
                known[key] = value
        assert following is None or following > last
        last = following
        times += 1
    return times


@given(STEPS, st.integers(0, 60), st.integers(1, 7))
def test_a_base_and_what_has_changed_since_are_everything(
    steps: list[tuple[str, int]], base_at: int, count: int
) -> None:
    changes: Changes[int, int] = Changes(100)
    base: dict[int, int] | None = None
    base_version = 0
    for version, (what, key) in enumerate(steps, 1):
        if version - 1 == base_at:
            base, base_version = dict(changes.values), version - 1
        if what == "set":
            changes.set(key, version, version)
        elif key in changes.values:
            changes.remove(key, version)
    anew: dict[int, int] = {}
    replay(anew, changes, 0, count)
    assert anew == dict(changes.values)
    if base is not None:
        replay(base, changes, base_version, count)
        assert base == anew


@given(STEPS)
def test_who_knows_a_version_from_before_what_was_forgotten_takes_everything(steps: list[tuple[str, int]]) -> None:
    changes: Changes[int, int] = Changes(1)
    states: list[dict[int, int]] = [{}]
    for version, (what, key) in enumerate(steps, 1):
        if what == "set":
            changes.set(key, version, version)
        elif key in changes.values:
            changes.remove(key, version)
        states.append(dict(changes.values))
    for version, state in enumerate(states):
        if changes.knows(version):
            known = dict(state) if version else {}
            replay(known, changes, version, 100)
            assert known == states[-1]


def test_it_stays_as_small_as_what_it_holds() -> None:
    changes: Changes[int, int] = Changes(10)
    for version in range(1, 20_000):
        changes.set(version % 7, version, version)
    assert len(changes) == 7
    assert len(changes._keys) < 3000
    for version in range(20_000, 40_000):
        changes.set(version, version, version * 2)
        changes.remove(version, version * 2 + 1)
    assert len(changes._versions_of) < 50
    assert not changes.knows(5)
    assert changes.knows(0)
