"""The chart, rendered by Helm's own engine: the package helm-python-sdk brings it, so no `helm` has to be there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.generate_values_schema import CHART

try:
    import helm_python
except ImportError:
    pytest.skip(
        "Helm's engine (the package helm-python-sdk) has no wheel for this machine: the chart is not rendered here",
        allow_module_level=True,
    )

DEFAULTS = Path(__file__).resolve().parent.parent / "unit" / "chart" / "defaults.yaml"
"""What the chart makes of its defaults."""
NAMESPACE = "messages"

_INFO = 1

Values = dict[str, Any]
Object = dict[str, Any]


class RefusedError(Exception):
    """Helm would not install with these values: its words."""


class RenderedChart:
    """What `helm install popwheel helm/popwheel` would bring about.

    Args:
        values: on top of the chart's own.

    Raises:
        RefusedError: the schema or the templates refuse them.
    """

    def __init__(self, values: Values | None = None) -> None:
        with helm_python.Chart.load(CHART) as chart:
            try:
                chart.validate_schema(values or {})
                files = chart.render(values or {}, name="popwheel", namespace=NAMESPACE)
            except helm_python.HelmError as error:
                raise RefusedError(str(error)) from error
        self.notes = files.pop("popwheel/templates/NOTES.txt")
        self.text = "".join(f"# {name}\n{text.strip()}\n" for name, text in files.items() if text.strip())
        self.objects: list[Object] = [
            made for text in files.values() for made in yaml.load_all(text, yaml.CSafeLoader) if made is not None
        ]

    def of_kind(self, kind: str) -> list[Object]:
        """All objects of a kind."""
        return [made for made in self.objects if made["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        """The object of a kind with this name."""
        (found,) = (made for made in self.of_kind(kind) if made["metadata"]["name"] == name)
        return found

    def pods(self) -> dict[str, Object]:
        """The pods and templates of pods, by the name of what makes them."""
        pods = {}
        for made in self.objects:
            if made["kind"] == "Pod":
                pods[made["metadata"]["name"]] = made
            elif made["kind"] in ("Deployment", "StatefulSet", "Job"):
                pods[made["metadata"]["name"]] = made["spec"]["template"]
            elif made["kind"] == "CronJob":
                pods[made["metadata"]["name"]] = made["spec"]["jobTemplate"]["spec"]["template"]
        return pods


def complaints(values: Values) -> list[str]:
    """What `helm lint --strict` has against the chart with these values."""
    report = helm_python.lint(CHART, values, strict=True)
    return [one["error"] for one in report["messages"] if one["severity"] > _INFO]


if __name__ == "__main__":
    DEFAULTS.write_text(RenderedChart().text, encoding="utf-8")
    print(f"wrote {DEFAULTS.name}")
