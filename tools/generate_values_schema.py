"""Write helm/popwheel/values.schema.json from the options models and the chart's own (run by `make docs`)."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from popwheel_cli.options import ClusterOptions
from tools.chart_values import KUBERNETES, ChartValues

CHART = Path(__file__).resolve().parent.parent / "helm" / "popwheel"
SCHEMA = CHART / "values.schema.json"
SET_BY_CHART = CHART / "files" / "set-by-chart.yaml"
_PLACE = "#/definitions/"
_KUBERNETES = (
    Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local-strict" / "_definitions.json"
)
"""Definitions of the newest version that the chart is tried with.

A key that an older one lacks is its API server's to refuse.
"""

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
    schema["properties"]["config"] = config
    schema["definitions"] = _definitions(schema)
    return json.dumps(schema, indent=1) + "\n"


def _definitions(schema: Schema) -> Schema:
    """Definitions of Kubernetes that a schema names: they know every key, so that a misspelt one is refused."""
    known = json.loads(_KUBERNETES.read_text(encoding="utf-8"))["$defs"]
    found: Schema = {}

    def look(node: Any) -> None:
        for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            look(each)
        named = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(named, str) and (name := named.removeprefix(_PLACE)) not in found:
            found[name] = _bare(known[name])
            look(found[name])

    look(schema)
    return dict(sorted(found.items()))


def _bare(node: Any, *, names: bool = False) -> Any:
    """A definition of Kubernetes without its explanations; a null stands for what is taken away."""
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return f"{_PLACE}{node.rpartition('/')[2]}" if isinstance(node, str) and "/$defs/" in node else node
    return {
        # Each of several kinds may be null there, so that exactly one of them is not to be asked for.
        ("anyOf" if key == "oneOf" and not names else key): _bare(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or not key.startswith(("description", "x-kubernetes"))
    }


def _whole(schema: Schema) -> Schema:
    """A model's schema with all parts in their places, and without what says nothing."""
    parts = schema.pop("$defs", {})

    def place(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, list):
            return [place(item) for item in node]
        if not isinstance(node, dict):
            return node
        if not names and KUBERNETES in node:
            return {"$ref": f"{_PLACE}{node[KUBERNETES]}"}
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
