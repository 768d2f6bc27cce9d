"""One line per event, in the form that was asked for, also of libraries."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from popwheel_common import logs
from popwheel_common.logs import LogOptions


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**configuration)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_where_nobody_looks() -> None:
    stream = io.StringIO()
    logs.set_up(LogOptions(), stream)
    structlog.get_logger().info("broker registered", broker="b-0", name="Zoë")
    (line,) = lines(stream)
    assert line.pop("timestamp")
    assert line == {"event": "broker registered", "level": "info", "broker": "b-0", "name": "Zoë"}


def test_words_on_a_terminal() -> None:
    stream = Terminal()
    logs.set_up(LogOptions(), stream)
    structlog.get_logger().warning("controller is away")
    assert "controller is away" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_form_can_be_chosen() -> None:
    stream = Terminal()
    logs.set_up(LogOptions(format="json"), stream)
    structlog.get_logger().info("x")
    assert lines(stream)
    stream = Terminal()
    logs.set_up(LogOptions(format="console"), stream)
    structlog.get_logger().info("x")
    assert not stream.getvalue().startswith("{")


def test_what_is_below_the_level_is_left_out() -> None:
    stream = io.StringIO()
    logs.set_up(LogOptions(level="warning"), stream)
    structlog.get_logger().info("small")
    structlog.get_logger().error("big")
    assert [line["event"] for line in lines(stream)] == ["big"]


def test_libraries_come_out_in_the_same_lines_from_warnings_on() -> None:
    stream = io.StringIO()
    logs.set_up(LogOptions(), stream)
    logging.getLogger("uvicorn").info("Started server process [%d]", 1)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("asyncio").exception("Task %s failed", "x")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("Task x failed", "error", "asyncio")
    assert "ValueError: why" in str(line["exception"])


@pytest.mark.parametrize("form", ["console", "json"])
def test_tracebacks_report_no_values(form: Literal["console", "json"]) -> None:
    stream = io.StringIO()
    logs.set_up(LogOptions(format=form), stream)

    def open_with(key: str) -> None:
        raise ValueError("the key does not fit")

    try:
        open_with("".join(["sec", "ret"]))
    except ValueError:
        structlog.get_logger().exception("handler failed")
    assert "the key does not fit" in stream.getvalue()
    assert "secret" not in stream.getvalue()


def test_the_last_lines_are_kept_and_bounded() -> None:
    stream = io.StringIO()
    logs.set_up(LogOptions(format="json"), stream)
    for number in range(logs.LAST_LINES_MAX + 10):
        structlog.get_logger().info("one", number=number, long="x" * 5_000 * (number == 100))
    kept = logs.last_lines()
    assert len(kept) == logs.LAST_LINES_MAX
    assert json.loads(kept[-1])["number"] == logs.LAST_LINES_MAX + 9
    assert max(map(len, kept)) == 2_000
