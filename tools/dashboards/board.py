"""Parts of a dashboard, and its JSON as Grafana's own SDK builds it.

All of them look alike: rows of panels, each with a unit and a sentence that explains it, legends as tables that show
the last and the largest value, and the same three choices at the top.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

TAG: Final = "popwheel"
_WIDTH = 24
_GRAPH_HEIGHT = 8
_NUMBER_HEIGHT = 4
_DATASOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ANY_METRIC = "popwheel_rpc_connections"
"""Every process shows it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A query of a panel.

    Args:
        query: in Prometheus' language.
        legend: what its series are called, `{{label}}` stands for a label's value.
    """

    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class Graph:
    """A panel of lines over time.

    Args:
        title: at its top.
        unit: as Grafana calls it: `mps`, `ms`, `s`, `bytes`, `Bps`, `short`, `percentunit`.
        description: what it shows, and what is good.
        lines: what it shows.
        bound: a line at which things begin to go wrong, in the unit.
    """

    title: str
    unit: str
    description: str
    lines: Sequence[Line]
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A panel of one number.

    Args:
        title, unit, description: as of `Graph`.
        query: gives one value.
        bad_from: from here on it is red; None for a number that is neither good nor bad.
        bad_below: below this it is red.
    """

    title: str
    unit: str
    description: str
    query: str
    bad_from: float | None = None
    bad_below: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels beside one another, under a heading.

    Args:
        title: the heading.
        panels: of one kind, as many as there are beside one another.
    """

    title: str
    panels: Sequence[Graph] | Sequence[Number]
    beside: int = 3


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    Args:
        name: of its file, and with `popwheel-` before it its id in Grafana.
        title: its name in Grafana.
        description: what it is for.
        rows: from the top.
    """

    name: str
    title: str
    description: str
    rows: Sequence[Row]

    def as_json(self) -> str:
        """The dashboard as Grafana reads it."""
        return json.dumps(self._build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"

    def _build(self) -> models.Dashboard:
        builder = (
            dashboard.Dashboard(f"Popwheel / {self.title}")
            .uid(f"{TAG}-{self.name}")
            .description(self.description)
            .tags([TAG])
            .refresh("30s")
            .time("now-1h", "now")
            .timezone("browser")
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .variables([_datasource(), _choice("namespace", ""), _choice("instance", '{namespace=~"$namespace"}')])
            .link(
                dashboard.DashboardLink("Popwheel")
                .type(models.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
        )
        numbers = count(1)
        for row in self.rows:
            builder.with_row(dashboard.Row(row.title).id(next(numbers)))
            width = _WIDTH // (len(row.panels) if isinstance(row.panels[0], Number) else row.beside)
            for panel in row.panels:
                built = _number(panel) if isinstance(panel, Number) else _graph(panel)
                builder.with_panel(built.id(next(numbers)).span(width))
        return builder.build()


def _graph(graph: Graph) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .description(graph.description)
        .datasource(_DATASOURCE)
        .unit(graph.unit)
        .height(_GRAPH_HEIGHT)
        .axis_soft_min(0)
        .line_width(1)
        .fill_opacity(8)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
    )
    if graph.bound is not None:
        panel.thresholds(_thresholds(bad_from=graph.bound)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    for letter, line in zip("ABCDEFGH", graph.lines, strict=False):
        panel.with_target(_query(line).ref_id(letter).range())
    return panel


def _number(number: Number) -> stat.Panel:
    return (
        stat.Panel()
        .title(number.title)
        .description(number.description)
        .datasource(_DATASOURCE)
        .unit(number.unit)
        .height(_NUMBER_HEIGHT)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(number.bad_from, number.bad_below))
        .with_target(_query(Line(number.query, number.title)).ref_id("A").range())
    )


def _query(line: Line) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(_DATASOURCE).expr(line.query).legend_format(line.legend)


def _thresholds(bad_from: float | None = None, bad_below: float | None = None) -> dashboard.ThresholdsConfig:
    good, bad = "green", "red"
    steps = [models.Threshold(color=good if bad_below is None else bad)]
    steps += [
        models.Threshold(value, color) for value, color in ((bad_from, bad), (bad_below, good)) if value is not None
    ]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _choice(label: str, within: str) -> dashboard.QueryVariable:
    """Return a variable with all values of a label, of which one may choose several; also where no series has the
    label.
    """
    return (
        dashboard.QueryVariable(label)
        .label(label.capitalize())
        .datasource(_DATASOURCE)
        .query(f"label_values({_ANY_METRIC}{within}, {label})")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )
