"""values.schema.json says of the values what the options models say, and what the chart's own model does."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from popwheel_cli.options import ClusterOptions
from popwheel_common.settings.option_fields import option_fields
from tools.chart_values import ChartValues
from tools.generate_values_schema import CHART, SCHEMA, SET_BY_CHART, values_schema

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SET = yaml.safe_load(SET_BY_CHART.read_text(encoding="utf-8"))

Values = dict[str, Any]


def nested(key: str, value: Any) -> Values:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def test_the_committed_schema_is_what_the_models_say() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == values_schema(), "run `make docs`"


def test_it_is_a_schema_that_the_charts_own_values_meet() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    Draft7Validator(schema).validate(DEFAULTS)
    ChartValues.model_validate({name: value for name, value in DEFAULTS.items() if name != "config"})


def test_every_option_can_be_said_under_config_or_is_the_charts_to_set() -> None:
    """With its own default as the value, so that a kind or limit that JSON's schema has otherwise shows itself."""
    config = json.loads(SCHEMA.read_text(encoding="utf-8"))["properties"]["config"]
    for field in option_fields(ClusterOptions):
        if not any(field.key == key or field.key.startswith(f"{key}.") for key in SET):
            Draft7Validator(config).validate(nested(field.key, yaml.safe_load(field.default)))


def merged(under: Values, over: Values) -> Values:
    """As Helm lays values over others."""
    both = dict(under)
    for name, value in over.items():
        below = both.get(name)
        both[name] = merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return both


@pytest.mark.parametrize("path", sorted((CHART / "ci").iterdir()), ids=lambda path: path.name)
def test_the_files_of_values_meet_it(path: Path) -> None:
    values = merged(DEFAULTS, yaml.safe_load(path.read_text(encoding="utf-8")))
    Draft7Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(values)


def repeated(node: yaml.Node, place: str = "") -> list[str]:
    """Keys that a mapping of a YAML file has twice: all readers take the last one, and say nothing."""
    if isinstance(node, yaml.SequenceNode):
        return [key for each in node.value for key in repeated(each, place)]
    if not isinstance(node, yaml.MappingNode):
        return []
    keys = [key.value for key, _ in node.value]
    own = [f"{place}{key}" for key in set(keys) if keys.count(key) > 1]
    return own + [key for name, value in node.value for key in repeated(value, f"{place}{name.value}.")]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(CHART.rglob("*.yaml")) if "templates" not in path.parts],
    ids=lambda path: str(path.relative_to(CHART)),
)
def test_no_key_is_there_twice(path: Path) -> None:
    documents = yaml.compose_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert [key for document in documents for key in repeated(document)] == []
