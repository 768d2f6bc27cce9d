"""Names in their order: whatever was added and removed, each page is right, and a million cost no more than a few."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_broker.log import sorted_names
from popwheel_broker.log.sorted_names import SortedNames

NAMES = st.text(alphabet="abc", max_size=4)


@given(
    changes=st.lists(NAMES, max_size=200), asked=st.lists(st.tuples(NAMES, st.integers(0, 10))), block=st.integers(2, 5)
)
@settings(max_examples=60)
def test_each_page_is_right(changes: list[str], asked: list[tuple[str, int]], block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_names, "_BLOCK_MAX", block)
        there: set[str] = set()
        names = SortedNames()
        for name in changes:
            if name in there:
                names.remove(name)
                there.remove(name)
            else:
                names.add(name)
                there.add(name)
        for after, count in asked:
            assert names.behind(after, count) == sorted(each for each in there if each > after)[:count]


def test_pages_go_through_all_of_many() -> None:
    wanted = [f"name-{number}" for number in range(20_000)]
    random.Random(1).shuffle(wanted)
    names = SortedNames()
    for each in wanted:
        names.add(each)
    found: list[str] = []
    while page := names.behind(found[-1] if found else "", 999):
        found += page
    assert found == sorted(wanted)
