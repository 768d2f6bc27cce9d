"""Tables on standard output."""

from unittest import mock

import click
import pytest

from popwheel_cli.table import print_table


def test_a_table_is_written_in_one_piece_so_that_nobody_reads_half_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(click, "echo", wraps=click.echo) as echo:
        print_table(("name", "log"), [("broker-0", "a\nb"), ("proxy-0", "")])
    assert echo.call_count == 1
    assert capsys.readouterr().out == "NAME      LOG\nbroker-0  a\\nb\nproxy-0\n"
