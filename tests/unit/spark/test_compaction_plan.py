"""Which files of an archive are compacted, and which count afterwards."""

from popwheel_spark.jobs.compaction import Merger, plan
from popwheel_spark.jobs.manifest import Manifest

A, B = "date=2026-01-31/topic=a", "date=2026-01-31/topic=b"


def test_small_files_of_one_date_and_topic_become_one() -> None:
    sizes = [(f"incoming/{A}/1", 10), (f"incoming/{A}/2", 10), (f"incoming/{B}/3", 10), (f"compacted/1-x/{A}/4", 49)]
    files = (f"compacted/1-x/{A}/4", f"incoming/{A}/1", f"incoming/{A}/2")
    assert plan(sizes, 100) == [Merger(A, files, 1)]


def test_files_are_left_alone_that_are_large_or_would_not_become_fewer() -> None:
    assert plan([(f"incoming/{A}/1", 50), (f"incoming/{A}/2", 49)], 100) == []
    assert plan([(f"incoming/{A}/{number}", 49) for number in range(3)], 100) == [
        Merger(A, tuple(f"incoming/{A}/{number}" for number in range(3)), 2)
    ]


def test_each_message_is_in_one_file_that_counts() -> None:
    first = Manifest().next(["compacted/1/x"], ["incoming/1", "incoming/2"])
    assert first.current(["incoming/1", "incoming/2", "incoming/3"]) == ["incoming/3", "compacted/1/x"]
    assert first.leaving == ("incoming/1", "incoming/2")
    second = first.next(["compacted/2/y"], ["incoming/3", "compacted/1/x"])
    assert second.current(["incoming/1", "incoming/2", "incoming/3"]) == ["compacted/2/y"]
    assert second.leaving == ("compacted/1/x", "incoming/3")
    assert second.number == 2


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest().next(["compacted/1/x"], ["incoming/1"])
    assert Manifest.of(manifest.text()) == manifest
