"""values.schema.json says of the values what the options models say, and what the chart's own model does."""

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from services.cli.options import ClusterOptions
from services.common.option_fields import option_fields
from tests.harness.chart import RefusedError, RenderedChart, Values
from tools.chart_values import ChartValues
from tools.generate_values_schema import CHART, SCHEMA, SET_BY_CHART, values_schema

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SET = yaml.safe_load(SET_BY_CHART.read_text(encoding="utf-8"))


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


@pytest.mark.parametrize("key", SET)
def test_what_the_chart_sets_is_refused_with_a_sentence(key: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart({"config": nested(key, "x")})
    assert f"- config.{key} is the chart's to set: {SET[key]}\n" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"config": {"broker": {"flsuh": "async"}}}, "'flsuh' not allowed"),
        ({"config": {"broker": {"flush": "never"}}}, "value must be one of 'sync', 'async'"),
        ({"config": {"broker": {"replication": {"min_in_sync_replicas": 0}}}}, "minimum: got 0, want 1"),
        ({"replicas": 3}, "'replicas' not allowed"),
        ({"broker": {"replicas": "3"}}, "got string, want integer"),
        ({"broker": {"persistence": None}}, "missing property 'persistence'"),
        ({"broker": {"persistence": {"size": "20 GB"}}}, "does not match pattern"),
        ({"broker": {"groups": ["Broker_A"]}}, "does not match pattern"),
    ],
)
def test_values_that_nobody_knows_are_refused(values: Values, words: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart(values)
    assert words in str(refused.value)
