"""When all objects are passed over: while nobody waits, and not for nothing."""

import gc
from collections.abc import Iterator

import pytest

from popwheel_cli.process.garbage_collection import GarbageCollection
from tests.harness.manual_clock import ManualClock


class Busy:
    """A process whose time and use of its cores the test sets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.began_s = self.clock.monotonic()
        self.cpu_s = 5.0
        self.has_work = True
        self.garbage = GarbageCollection(self.clock, lambda: self.cpu_s, lambda: self.has_work)

    def looks(self, seconds: int, share: float) -> list[int]:
        """Look every ten seconds while a share of a core is used; the times at which a pass was due."""
        due = []
        for _ in range(seconds // 10):
            self.clock.advance(10_000)
            self.cpu_s += 10 * share
            if self.garbage.is_due():
                due.append(round(self.clock.monotonic() - self.began_s))
        return due


def test_an_idle_process_passes_over_all_every_ten_minutes() -> None:
    assert Busy().looks(1800, share=0.01) == [600, 1200, 1800]


def test_a_busy_one_does_when_it_rests_for_a_moment_and_at_the_latest_after_an_hour() -> None:
    busy = Busy()
    assert busy.looks(1800, share=0.5) == []
    assert busy.looks(10, share=0.01) == [1810]
    assert busy.looks(3600, share=0.9) == [1810 + 3600]


def test_nothing_is_done_for_nothing() -> None:
    busy = Busy()
    busy.has_work = False
    assert busy.looks(8 * 3600, share=0.01) == []
    busy.has_work = True
    assert len(busy.looks(10, share=0.01)) == 1


@pytest.fixture
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_as_before")
def test_by_itself_only_what_is_young_is_collected() -> None:
    GarbageCollection.freeze_loaded()
    before = [each["collections"] for each in gc.get_stats()]
    kept: list[list[int]] = [[] for _ in range(100_000)]
    young, middle, all_of_it = (
        each["collections"] - earlier for each, earlier in zip(gc.get_stats(), before, strict=True)
    )
    assert young > 0
    assert middle > 0
    assert all_of_it == 0
    assert len(kept) == 100_000
    assert gc.get_count()[2] > 0, "so there is work for a pass over all"
