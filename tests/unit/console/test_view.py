"""Links, words, drawings and the life of a message (pure)."""

import pytest

from popwheel_common.contract.message_id import message_id
from popwheel_console.view import drawings, life, links, words

NOW_MS = 1_800_000_000_000


def test_links_quote_all_parts() -> None:
    assert links.link() == "/"
    assert links.link("topics", "%RETRY%a+b/../c") == "/topics/%25RETRY%25a%2Bb%2F..%2Fc"
    assert links.link("held", group="a&b=c", client="", after=None, page=0) == "/held?group=a%26b%3Dc&page=0"


def test_a_link_to_a_message_says_since_when_it_may_be_stored_unless_its_id_does() -> None:
    assert links.message_link("t", "x", NOW_MS) == f"/messages/t/x?since_ms={NOW_MS - 600_000}"
    assert links.message_link("t", "x", 1) == "/messages/t/x?since_ms=0"
    assert links.message_link("t", "x") == "/messages/t/x"
    official = message_id(NOW_MS, "0" * 16, 1)
    assert links.message_link("t", official, NOW_MS) == f"/messages/t/{official}"


@pytest.mark.parametrize("address", ["", "x", "//x", "/\\x", "/a\nb", "javascript:x", "/" + "x" * 2_000])
def test_what_leads_elsewhere_leads_to_the_overview(address: str) -> None:
    assert links.within(address) == "/"


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "–"),
        (0, "0 s"),
        (7, "7 ms"),
        (1_000, "1.0 s"),
        (9_949, "9.9 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (-5_000, "-5.0 s"),
        (86_400_000_000, "1,000 d"),
    ],
)
def test_durations(ms: int | None, said: str) -> None:
    assert words.duration(ms) == said


def test_numbers_are_exact_however_large() -> None:
    assert words.count(2**80) == "1,208,925,819,614,629,174,706,176"
    assert words.count(None) == "–"
    assert (words.size(1023), words.size(2048), words.size(2**80)) == ("1023 B", "2.0 KiB", "1073741824.0 PiB")
    assert (words.rate(0.25), words.rate(12_345.6), words.rate(None)) == ("0.2", "12,346", "–")


def test_times() -> None:
    assert words.iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert words.utc(1_700_000_000_123) == "2023-11-14 22:13:20.123 UTC"
    assert words.clock_time(1_700_000_000_123, 1_700_000_001_000) == "22:13:20"
    assert words.clock_time(1_700_000_000_123, NOW_MS) == "2023-11-14 22:13:20"
    assert words.clock_time(2**62, NOW_MS) == "4,611,686,018,427,387,904 ms"
    assert (words.iso(None), words.utc(-1), words.clock_time(None, 0)) == ("", "–", "–")


def test_a_spark_has_gaps_where_nothing_is_known() -> None:
    drawing = drawings.spark([None, 0, 10, None, 5])
    assert drawing.lines == "M25 96 L50 4 M100 50 L100.5 50"
    assert (drawing.known, drawing.last, drawing.greatest) == (3, 5, 10)
    assert drawings.spark([None, None]).lines == ""
    assert drawings.spark([0, 0]).greatest == 0


def test_shares_stay_within_the_whole() -> None:
    assert (drawings.share(1, 4), drawings.share(9, 4), drawings.share(-1, 4)) == (25, 100, 0)
    assert (drawings.share(None, 4), drawings.share(1, 0), drawings.share(1, None)) == (0, 0, 0)


@pytest.mark.parametrize("length_ms", [1, 999, 60_000, 86_400_000 * 40, 86_400_000 * 400])
def test_an_axis_has_few_ticks_within(length_ms: int) -> None:
    axis = drawings.scale([0, length_ms])
    assert 1 <= len(axis.ticks) <= 6
    assert all(0 <= x <= 100 for x, _ in axis.ticks)
    assert (axis.x(-5), axis.x(10 * length_ms + 10)) == (0, 100)


def event(after_ms: int, kind: str, group: str = "", until_ms: int | None = None) -> life.Event:
    until = None if until_ms is None else NOW_MS + until_ms
    return life.Event(NOW_MS + after_ms, kind, group, "", until_ms=until)


def test_a_life_has_a_row_for_each_group() -> None:
    events = life.in_order(
        [
            event(-9_000, "stored"),
            event(-8_000, "delivered", "a", -3_000),
            event(-3_000, "expired", "a"),
            event(-1_000, "delivered", "a", 4_000),
            event(-7_000, "delivered", "b", 9_000),
            event(-6_500, "acked", "b"),
        ]
    )
    assert [each.after_ms for each in events] == [None, 1_000, 1_000, 500, 3_500, 2_000]
    drawing = life.time_line(events, NOW_MS)
    assert drawing is not None
    assert [row.name for row in drawing.rows] == ["", "a", "b"]
    assert [(span.state, span.is_open) for span in drawing.rows[1].spans] == [("warn", False), ("held", True)]
    assert [(span.state, span.is_open) for span in drawing.rows[2].spans] == [("good", False)]
    assert drawing.now_x is not None and 0 < drawing.now_x < 100


def test_a_life_that_is_over_has_no_now() -> None:
    drawing = life.time_line([event(-90_000, "stored"), event(-80_000, "delivered", "a", -50_000)], NOW_MS)
    assert drawing is not None and drawing.now_x is None
    assert life.time_line([], NOW_MS) is None


def test_what_waits_for_its_time_is_drawn_until_then() -> None:
    drawing = life.time_line([event(-1_000, "delayed", "", 9_000)], NOW_MS)
    assert drawing is not None
    (span,) = drawing.rows[0].spans
    assert (span.state, span.is_open) == ("delayed", True)
