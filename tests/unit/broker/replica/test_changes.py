"""Who knows a version and takes what has changed since has the same as who takes everything."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.replication.changes import Changes

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "set", "remove", "ask"]), KEYS, st.integers(0, 60)),
    max_size=60,
)


class Table:
    """A map, and how it has changed."""

    def __init__(self, chunk_max: int, gone_max: int = 100) -> None:
        self.values: dict[int, int] = {}
        self.changes: Changes[int] = Changes(chunk_max, gone_max)
        self.chunk_max = chunk_max

    def set(self, key: int, version: int) -> None:
        self.values[key] = version
        self.changes.record(key, version)

    def remove(self, key: int, version: int) -> None:
        if self.values.pop(key, None) is not None:
            self.changes.record(key, version, is_deleted=True)

    def tell(self, known: dict[int, int], version: int, upto: int | None = None) -> None:
        """Give one who knows a version all that has changed since."""
        last: int | None = version
        while last is not None:
            assert self.changes.knows(last)
            found, following = self.changes.since(last, upto)
            assert len(found) <= self.chunk_max
            for key in found:
                if key in self.values:
                    known[key] = self.values[key]
                else:
                    known.pop(key, None)
            assert following is None or following > last
            last, upto = following, None


@given(STEPS, st.integers(1, 7))
def test_a_base_and_what_has_changed_since_are_everything(steps: list[tuple[str, int, int]], count: int) -> None:
    table = Table(count)
    asked: list[tuple[int, dict[int, int]]] = []
    for version, (what, key, _) in enumerate(steps, 1):
        if what == "set":
            table.set(key, version)
        elif what == "remove":
            table.remove(key, version)
        else:
            known: dict[int, int] = {}
            table.tell(known, 0)
            assert known == table.values
            asked.append((version, known))
    for version, known in asked:
        table.tell(known, version)
        assert known == table.values


@given(STEPS, st.integers(1, 7))
def test_what_is_left_for_later_comes_later(steps: list[tuple[str, int, int]], count: int) -> None:
    table = Table(count)
    for version, (what, key, upto) in enumerate(steps, 1):
        if what != "ask":
            table.set(key, version)
        elif 0 < upto < version:
            known: dict[int, int] = {}
            table.tell(known, 0, upto)
            assert known == table.values


@given(STEPS)
def test_who_knows_a_version_from_before_what_was_forgotten_takes_everything(steps: list[tuple[str, int, int]]) -> None:
    table = Table(3, gone_max=1)
    asked: list[tuple[int, dict[int, int]]] = []
    for version, (what, key, _) in enumerate(steps, 1):
        if what == "set":
            table.set(key, version)
        elif what == "remove":
            table.remove(key, version)
        else:
            known: dict[int, int] = {}
            table.tell(known, 0)
            asked.append((version, known))
    for version, known in asked:
        if table.changes.knows(version):
            table.tell(known, version)
            assert known == table.values


def test_it_stays_as_small_as_what_it_holds() -> None:
    table = Table(100, gone_max=10)
    for key in range(1000):
        table.set(key, key + 1)
    for version in range(1001, 20_000):
        table.set(version % 7, version)
        table.changes.since(version, None)  # whoever asks parts what has changed before from what will
    assert len(table.changes) == 1000
    assert len(table.changes._chunks) < 150
    assert sum(len(chunk.keys) for chunk in table.changes._chunks) == 1000
    for version in range(20_000, 22_000):
        table.set(version, version * 2)
        table.remove(version, version * 2 + 1)
    assert len(table.changes._chunk_of) <= 1000 + 10
    assert not table.changes.knows(5)
    assert table.changes.knows(0)
