"""Write helm/popwheel/values.schema.json from the options models and the chart's own (run by `make docs`)."""

import json
from pathlib import Path
from typing import Any

import yaml

from services.cli.options import ClusterOptions
from tools.chart_values import ChartValues

CHART = Path(__file__).resolve().parent.parent / "helm" / "popwheel"
SCHEMA = CHART / "values.schema.json"
SET_BY_CHART = CHART / "files" / "set-by-chart.yaml"

Schema = dict[str, Any]


def values_schema() -> str:
    """The whole file."""
    config = _whole(ClusterOptions.model_json_schema())
    for key, instead in yaml.safe_load(SET_BY_CHART.read_text(encoding="utf-8")).items():
        *sections, name = key.split(".")
        section = config
        for part in sections:
            section = section["properties"][part]
        # Its kind is left open: the chart's templates refuse it, with a sentence.
        section["properties"][name] = {"description": f"Set by the chart: {instead}."}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_whole(ChartValues.model_json_schema())}
    schema["properties"] |= {
        "config": config,
        "global": {"type": "object"},
    }  # Helm gives `global` to charts within charts
    return json.dumps(schema, indent=1) + "\n"


def _whole(schema: Schema) -> Schema:
    """A model's schema with all parts in their places, and without what says nothing."""
    parts = schema.pop("$defs", {})

    def place(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, list):
            return [place(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            node = parts[node["$ref"].rpartition("/")[2]] | {key: node[key] for key in node if key != "$ref"}
        return {
            key: place(value, names=key == "properties" and not names)
            for key, value in node.items()
            if names or (key != "title" and not (key == "default" and isinstance(value, dict)))
        }

    whole: Schema = place(schema)
    return whole


def main() -> None:
    """Write the file."""
    SCHEMA.write_text(values_schema(), encoding="utf-8")
    print(f"wrote helm/popwheel/{SCHEMA.name}")


if __name__ == "__main__":
    main()
