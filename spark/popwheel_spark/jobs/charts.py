"""Charts for pages, as SVG, drawn by matplotlib (pure). Import late: it takes a second to load."""

import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Points = Sequence[tuple[datetime, float]]

_WIDTH_IN, _HEIGHT_IN = 10.0, 3.2
LABELS_MAX = 12
"""Limit of groups of bars: the names of more do not fit."""
_SERIES_MAX = 12
"""Limit of lines: more cannot be distinguished."""
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "popwheel", "font.family": "sans-serif", "font.size": 9}


def lines(series: Mapping[str, Points], unit: str, *, logarithmic: bool = False) -> str:
    """Return a line chart of values over time, a line for each name.

    Args:
        series: name -> times and values, in order. Of more than twelve the first are drawn.
        unit: of the values.
        logarithmic: for values over several orders of magnitude. Zero is drawn at the lower end.
    """
    figure, axes = _canvas(unit)
    for name, points in list(series.items())[:_SERIES_MAX]:
        times, values = [time for time, _ in points], [value for _, value in points]
        axes.plot(times, values, label=name, linewidth=1.4, marker="o", markersize=2.5)
    _dates(axes)
    if logarithmic:
        axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    return _svg(figure, axes, of=len(series))


def bars(series: Mapping[str, Sequence[float]], labels: Sequence[str], unit: str, *, logarithmic: bool = False) -> str:
    """Return a bar chart, for each label a bar of each name.

    Args:
        series: name -> a value for each label.
        labels: below the bars.
        unit: of the values.
        logarithmic: as of `lines`.
    """
    figure, axes = _canvas(unit)
    shown = list(series.items())[:_SERIES_MAX]
    width = 0.8 / max(1, len(shown))
    for number, (name, values) in enumerate(shown):
        places = [at - 0.4 + width * (number + 0.5) for at in range(len(labels))]
        axes.bar(places, values, width, label=name)
    axes.set_xticks(range(len(labels)), labels)
    if logarithmic:
        axes.set_yscale("symlog", linthresh=1)
    return _svg(figure, axes, of=len(series))


def columns(counts: Points, peaks: Points, step_s: int, unit: str) -> str:
    """Return a column chart of counts over time as HTML, with peaks in another colour.

    Args:
        counts: times and counts.
        peaks: those of them that are peaks.
        step_s: seconds from a time to the next.
        unit: of the counts.
    """
    figure, axes = _canvas(unit)
    days = step_s / 86_400
    for points, name, colour in ((counts, "due", "#4c78a8"), (peaks, "peak", "#e45756")):
        if points:
            axes.bar(
                [time for time, _ in points],
                [count for _, count in points],
                days,
                align="edge",
                label=name,
                color=colour,
            )
    _dates(axes)
    return _svg(figure, axes)


def _canvas(unit: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    axes.set_ylabel(unit)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.margins(y=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _dates(axes: Any) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=4, maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _svg(figure: Any, axes: Any, of: int = 1) -> str:
    from matplotlib import rc_context

    if axes.get_legend_handles_labels()[0]:
        title = f"{_SERIES_MAX} of {of}" if of > _SERIES_MAX else None
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, title=title)
    drawn = io.StringIO()
    with rc_context(_STYLE):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = drawn.getvalue()
    return text[text.index("<svg") :]
