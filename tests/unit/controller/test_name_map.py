"""A map that never changes holds what a plain one would, sorted, and shares what was not touched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_controller.cluster import name_map
from popwheel_controller.cluster.name_map import NameMap

NAMES = st.text("abc", max_size=3)
CHANGES = st.lists(st.tuples(st.dictionaries(NAMES, st.integers(0, 9), max_size=6), st.sets(NAMES, max_size=6)))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_map, "_PART_MAX", 4)


@given(begin=st.dictionaries(NAMES, st.integers(0, 9)), changes=CHANGES)
def test_it_holds_what_a_plain_one_would(begin: dict[str, int], changes: list[tuple[dict[str, int], set[str]]]) -> None:
    plain, made = dict(begin), NameMap(begin)
    for come, named in changes:
        before, plain_before = made, dict(plain)
        gone = named & plain.keys()
        for name in gone:
            del plain[name]
        plain.update(come)
        made = made.changed(come, gone)
        assert (dict(made), list(made), len(made)) == (plain, sorted(plain), len(plain))
        assert dict(before) == plain_before
        assert all(len(part) <= 4 for part in made._parts) and all(made._parts)
        changed = {name for name in {*plain, *plain_before} if plain.get(name) != plain_before.get(name)}
        for older in (before, NameMap(plain_before)):  # one with which it shares, one with which it does not
            new, old = made.difference(older)
            assert new == {name: plain[name] for name in changed & plain.keys()}
            assert old == {name: plain_before[name] for name in changed & plain_before.keys()}
            assert (made == older) == (not changed)
        assert made == NameMap(plain) == plain
        for name in ("", "a", "bb", "zz", *plain):
            assert list(made.after(name)) == [each for each in sorted(plain) if each > name or not name]
            assert made.count_before(name) == sum(each < name for each in plain)
            assert made.get(name) == plain.get(name)


def test_a_change_shares_what_it_does_not_touch() -> None:
    before = NameMap({f"{number:02}": number for number in range(40)})
    after = before.changed({"05x": 1}, ["30"])
    copied = [part for part in after._parts if not any(part is each for each in before._parts)]
    assert len(copied) == 2
    assert after.difference(before) == ({"05x": 1}, {"30": 30})


def test_what_is_not_there_cannot_go() -> None:
    with pytest.raises(KeyError):
        NameMap({"a": 1}).changed({}, ["b"])
