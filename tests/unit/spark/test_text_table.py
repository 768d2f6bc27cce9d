"""Tables of jobs on standard output."""

import pytest

from popwheel_spark.text_table import print_table


def test_columns_stand_below_their_headings_and_a_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "messages"), [("Orders", "12"), ("a\nb\x1b[2J", "")])
    assert capsys.readouterr().out == "TOPIC        MESSAGES\nOrders       12\na\\nb\\x1b[2J\n"
