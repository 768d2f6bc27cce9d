"""A back-off as an operator writes it."""

import click
import pytest

from popwheel_cli.admin.backoff import BackoffParam

PARAM = BackoffParam()


def test_waits_are_listed_or_grow() -> None:
    assert PARAM.convert("500ms, 5s,1m,2h", None, None) == {"backoff_ms": [500, 5_000, 60_000, 7_200_000]}
    assert PARAM.convert("exponential:1s,5m,2", None, None) == {
        "exponential_backoff": {"initial_ms": 1_000, "max_ms": 300_000, "multiplier": 2.0}
    }


@pytest.mark.parametrize(
    "text", ["", "5", "1s,", "1s;5s", "-1s", "exponential:", "exponential:1s,5m", "exponential:1s,5m,x", "linear:1s"]
)
def test_all_else_is_refused_with_a_word_on_how_to_write_it(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write waits like 1s,5s,1m, or exponential:"):
        PARAM.convert(text, None, None)
