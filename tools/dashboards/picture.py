"""A dashboard as a picture of what a Prometheus knows, for docs/operate/monitor.md: Grafana is not needed for it.

It draws the same JSON that Grafana reads: places, titles, units, legends and bounds are those of the file.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

Series = list[dict[str, Any]]
"""Series with their `metric` and their `values`, pairs of seconds and text."""

_INCHES_WIDE = 0.58
_INCHES_HIGH = 0.31
_LEGENDS_MAX = 6
_COLORS: Final = ("#3871dc", "#e0752d", "#4c9f4c", "#a352cc", "#d44a3a", "#1f9e9e", "#c9a100", "#7a6f5d")
_STEPS: Final[Mapping[str, tuple[tuple[float, str], ...]]] = {
    "ms": ((86_400_000, " d"), (3_600_000, " h"), (60_000, " min"), (1000, " s"), (1, " ms")),
    "s": ((86_400, " d"), (3600, " h"), (60, " min"), (1, " s"), (0.001, " ms")),
    "d": ((1, " days"),),
    "bytes": ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B")),
    "Bps": ((2**30, " GiB/s"), (2**20, " MiB/s"), (2**10, " KiB/s"), (1, " B/s")),
    "percentunit": ((0.01, " %"),),
    "short": ((1e6, " M"), (1e4, " k"), (1, "")),
}
_PER_SECOND: Final = {"mps": " msg/s", "reqps": " req/s", "ops": " /s"}


def shown(value: float, unit: str) -> str:
    """A value with its unit, as a person would write it."""
    if unit in _PER_SECOND:
        return f"{_digits(value)}{_PER_SECOND[unit]}"
    steps = _STEPS[unit]
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{_digits(value / size)}{name}"


@dataclass(frozen=True, slots=True)
class Past:
    """Content of a picture.

    Args:
        ask: gives what a query of a dashboard finds, from `begin_s` to `end_s`.
        begin_s, end_s: seconds since 1970.
        step_s: between two values.
    """

    ask: Callable[[str], Series]
    begin_s: float
    end_s: float
    step_s: float


def draw(board: Path, path: Path, past: Past) -> None:
    """Draw a dashboard.

    Args:
        board: its file.
        path: of the picture, a PNG.
        past: what is to be seen.
    """
    dashboard = json.loads(board.read_text(encoding="utf-8"))
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    high = max(place["y"] + place["h"] for place in places) + 1
    figure = Figure(figsize=(24 * _INCHES_WIDE, high * _INCHES_HIGH), facecolor="#f4f5f5")
    figure.text(0.006, 1 - 0.55 / high, dashboard["title"], size=11, weight="bold", va="center")
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - (place["y"] + 1) / high
        wide, tall = place["w"] / 24, place["h"] / high
        if panel["type"] == "row":
            figure.text(left + 0.006, top - tall / 2, panel["title"], size=9, weight="bold", va="center", color="#444")
            continue
        card = figure.add_axes((left + 0.003, top - tall + 0.12 / high, wide - 0.006, tall - 0.2 / high))
        card.set(xticks=(), yticks=(), facecolor="white")
        card.spines[:].set_color("#ddd")
        card.text(0.012, 1 - 0.45 / panel["gridPos"]["h"], panel["title"], size=7.5, weight="bold", va="center")
        (_stat if panel["type"] == "stat" else _graph)(card, panel, past)
    figure.savefig(path, dpi=88)


def _stat(card: Axes, panel: Mapping[str, Any], past: Past) -> None:
    values = [value for _, line in _lines(panel, past) for _, value in line]
    defaults = panel["fieldConfig"]["defaults"]
    text = shown(values[-1], defaults["unit"]) if values else "no data"
    steps = defaults["thresholds"]["steps"]
    reached = [step for step in steps if step["value"] is None or (values and values[-1] >= step["value"])]
    color = {"green": "#2f8a3c", "red": "#c4162a"}[reached[-1]["color"]]
    card.text(0.5, 0.4, text, size=15, weight="bold", ha="center", va="center", color=color)


def _graph(card: Axes, panel: Mapping[str, Any], past: Past) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    lines = _lines(panel, past)
    named = min(len(lines), _LEGENDS_MAX)
    low = 0.09 + 0.062 * named
    plot = card.inset_axes((0.125, low, 0.86, 0.87 - low))
    for number, (name, line) in enumerate(lines):
        color = _COLORS[number % len(_COLORS)]
        plot.plot([at for at, _ in line], [value for _, value in line], color=color, linewidth=0.9)
        if number < _LEGENDS_MAX:
            text = (
                f"━ {name}" if number < _LEGENDS_MAX - 1 or len(lines) == named else f"━ and {len(lines) - number} more"
            )
            row = 0.05 + 0.062 * (named - 1 - number)
            last = next((value for _, value in reversed(line) if not math.isnan(value)), None)
            card.text(0.02, row, text, size=6, va="center", color=color)
            if last is not None and not text.startswith("━ and"):
                card.text(0.985, row, shown(last, unit), size=6, va="center", ha="right", color="#333")
    top = max((value for _, line in lines for _, value in line if not math.isnan(value)), default=0)
    bounds = [step["value"] for step in defaults.get("thresholds", {}).get("steps", ()) if step["value"] is not None]
    shown_bounds = [bound for bound in bounds if bound <= 3 * top]
    for bound in shown_bounds:
        plot.axhline(bound, color="#c4162a", linewidth=0.7, linestyle="--")
    plot.set_ylim(0, 1.08 * max((top, *shown_bounds)) or 1)
    if not lines:
        plot.text(0.5, 0.5, "no data", size=8, ha="center", transform=plot.transAxes, color="#999")
    plot.tick_params(labelsize=5.5, length=1.5, color="#bbb", labelcolor="#666")
    plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    plot.set_xlim(past.begin_s, past.end_s)
    plot.xaxis.set_major_formatter(FuncFormatter(lambda at, _: _minutes(at - past.begin_s)))
    plot.locator_params(nbins=5)
    plot.grid(color="#eee", linewidth=0.6)
    plot.spines[:].set_visible(False)


def _lines(panel: Mapping[str, Any], past: Past) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return all series of a panel with their names in the legend, the largest first."""
    lines = []
    for target in panel["targets"]:
        for series in past.ask(target["expr"]):
            lines.append((_named(target["legendFormat"], series["metric"]), _with_gaps(series["values"], past.step_s)))
    return sorted(lines, key=lambda line: -max((value for _, value in line[1] if not math.isnan(value)), default=0))


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def _with_gaps(values: Iterable[tuple[float, str]], step_s: float) -> list[tuple[float, float]]:
    """The values as numbers, and no number where some are missing: no line is drawn there."""
    line: list[tuple[float, float]] = []
    for at, value in values:
        if line and at - line[-1][0] > 1.5 * step_s:
            line.append((at - step_s, math.nan))
        line.append((at, float(value)))
    return line


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.5 or value == round(value) else f"{value:.2g}"
