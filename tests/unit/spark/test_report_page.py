"""Pages of reports: they hold all they show, and say what is in the figures."""

import re
from typing import Any

from popwheel_spark.jobs.page import Section, Table, page

NETWORK = re.compile(r"""(src|href)\s*=\s*["']?(?!["'#])|@import|url\(\s*['"]?(?!['"#])""")


def test_a_page_fetches_nothing() -> None:
    html = page("Title", "Lead.", [Section("Part", "Note.", "<svg></svg>", Table(["a"], [[1]]))])
    assert NETWORK.search(html) is None
    for fetched in ("<img src='x'>", "<script src=x>", '<link href="x">', "@import", "url('x')", "url(x)"):
        assert NETWORK.search(fetched)


def test_what_comes_from_outside_cannot_be_taken_for_html() -> None:
    html = page("<t>", "<l>", [Section("<s>", "<n>", table=Table(["<h>"], [["<c>"]]))])
    assert not re.search(r"<[tlsnhc]>", html)


def cells(table: Table) -> list[Any]:
    return re.findall(r"<td[^>]*>([^<]*)</td>", table.html())


def test_numbers_are_for_people() -> None:
    assert cells(Table(["a", "b", "c"], [[1234567, 1234.56, None]])) == ["1,234,567", "1,234.6", "–"]


def test_rows_that_should_strike_the_eye_do() -> None:
    html = Table(["a"], [["fine"], ["bad"]], frozenset({1})).html()
    assert re.findall(r"<tr class=flagged><td>(\w+)", html) == ["bad"]
