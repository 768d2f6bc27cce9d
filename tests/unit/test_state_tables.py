"""The READMEs show the tables of states by which the machines go, and each machine has its table shown."""

import re
from enum import Enum, auto

import pytest

from popwheel_common.transitions import IllegalTransitionError, Row, Transitions
from tests.unit.source import ROOT
from tools.generate_state_tables import PAGES, TABLES, shown, with_tables


class Light(Enum):
    RED = auto()
    GREEN = auto()


LIGHT = Transitions(
    "light",
    Row((Light.RED,), ("time", "button"), Light.GREEN, "in turn"),
    Row((Light.RED, Light.GREEN), ("rain",), None, "always"),
)


def test_the_committed_tables_are_those_of_the_code() -> None:
    for page in PAGES:
        committed = page.read_text(encoding="utf-8")
        assert committed == with_tables(committed), f"{page.relative_to(ROOT)}: run `make docs`"


def test_each_table_is_shown_once() -> None:
    places = [name for page in PAGES for name in shown(page.read_text(encoding="utf-8"))]
    assert sorted(places) == sorted(table.name for table in TABLES)


def test_no_table_is_left_out() -> None:
    made = [
        path
        for path in (ROOT / "services").rglob("*.py")
        for _ in re.findall(r"= Transitions\(\n", path.read_text(encoding="utf-8"))
    ]
    assert len(made) == len(TABLES), "add it to tools/generate_state_tables.py"


def test_a_machine_goes_where_its_table_leads_and_nowhere_else() -> None:
    assert LIGHT.step(Light.RED, "button", Light.GREEN) is Light.GREEN
    assert LIGHT.step(Light.GREEN, "rain", Light.GREEN) is Light.GREEN
    for state, event, next_state in (
        (Light.GREEN, "time", Light.RED),
        (Light.RED, "rain", Light.GREEN),
        (Light.RED, "snow", Light.RED),
    ):
        with pytest.raises(IllegalTransitionError, match=f"light: {event} leads from {state.name} to"):
            LIGHT.step(state, event, next_state)


def test_a_table_is_shown_row_by_row() -> None:
    assert list(LIGHT.lines())[2:] == [
        "| RED | `time`, `button` | GREEN | in turn |",
        "| RED, GREEN | `rain` | the same | always |",
    ]
