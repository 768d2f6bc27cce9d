"""Counts by names that clients choose: bounded, and dropped."""

from popwheel_common.contract import names
from popwheel_common.series import OTHER, Series, bounded


def test_rows_are_bounded_and_the_rest_is_counted_together() -> None:
    series: Series[list[int]] = Series(2, list, series_max=3)
    for number in range(10):
        series.row("topic", f"group-{number}").append(number)
    series.row("topic", "group-1").append(100)
    assert dict(series) == {
        ("topic", "group-0"): [0],
        ("topic", "group-1"): [1, 100],
        ("topic", "group-2"): [2],
        (OTHER, OTHER): [3, 4, 5, 6, 7, 8, 9],
    }
    series.retain(lambda topic, group: group == "group-1")
    series.row("topic", "new").append(11)
    assert [labels for labels, _ in series] == [("topic", "group-1"), (OTHER, OTHER), ("topic", "new")]


def test_no_name_is_taken_for_the_others() -> None:
    assert not names.is_topic(OTHER)
    assert not names.is_group(OTHER)


def test_the_largest_values_are_shown_by_name() -> None:
    values: dict[tuple[str, ...], int] = {(f"group-{number}", "topic"): number for number in range(10)}
    assert bounded(values, 2) == {("group-9", "topic"): 9, ("group-8", "topic"): 8, (OTHER, OTHER): 28}
    assert bounded(values, 10) is values
    assert bounded({}, 10) == {}
