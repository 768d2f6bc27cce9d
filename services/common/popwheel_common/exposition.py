"""Metrics as the text that Prometheus reads, some lines at a time (pure).

A page of many series takes long to make. Its maker may leave the loop to others wherever an iterator here yields None.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LINES_AT_ONCE = 100
_ROWS_AT_ONCE = 500

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

RENAMED: Final[Mapping[str, str]] = {
    "popwheel_pop_open_deliveries": "popwheel_pop_open_check_points",
    "popwheel_pop_blocked_messages": "popwheel_pop_held_messages",
    "popwheel_proxy_parked_bytes": "popwheel_proxy_held_bytes",
    "popwheel_proxy_parked_calls": "popwheel_proxy_held_calls",
    "popwheel_proxy_parked_seconds": "popwheel_proxy_held_seconds",
    "popwheel_proxy_waiting_in_send_queues": "popwheel_proxy_waiting_in_lanes",
    "popwheel_proxy_lite_ends_notified": "popwheel_proxy_lite_ends_told",
    "popwheel_replica_replicated_position": "popwheel_replica_held_position",
    "popwheel_replica_high_watermark": "popwheel_replica_confirmed_position",
    "popwheel_replica_suspect": "popwheel_replica_doubtful",
}
"""Families that were renamed in 0.1.0 -> the old name, which is served beside the new one until 0.2.0."""

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)


class SlicedCollector(Collector):
    """A collector whose families may have many series."""

    @abstractmethod
    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        """Yield all metrics, large families in parts, and None between two steps of other work.

        Args:
            pairs: show each pair of a topic and a group, instead of each group.
        """

    def collect(self) -> Iterable[Metric]:
        """Return all metrics in all detail."""
        families: dict[str, Metric] = {}
        for part in self.families(pairs=True):
            if part is not None and families.setdefault(part.name, part) is not part:
                families[part.name].samples += part.samples
        return families.values()


def filled(family: Family, rows: Iterable[tuple[Sequence[str], float]]) -> Iterator[Family]:
    """Yield a family with these values, in parts: families of the same name with some of them.

    Args:
        family: without values.
        rows: labels and value of each series.
    """
    labels = family._labelnames
    for number, (values, value) in enumerate(rows, 1):
        family.add_metric(values, value)
        if number % _ROWS_AT_ONCE == 0:
            yield family
            family = type(family)(family.name, family.documentation, labels=labels)
    yield family


@dataclass(slots=True)
class FamilyText:
    """Series of a family, all or a part.

    Args:
        name: without what plain text adds to the names of counters.
        kind: counter, gauge, histogram ...
        documentation: its sentence, escaped.
        series: its lines, each with its end, some of them in each text.
    """

    name: str
    kind: str
    documentation: str
    series: list[str] = field(default_factory=list)

    def head(self, content_type: str) -> str:
        """Return the lines before its series."""
        name, kind, documentation = self.name, self.kind, self.documentation
        if content_type == OPEN_METRICS:
            documentation = documentation.replace('"', r"\"")
        elif kind == "counter":
            name = f"{name}_total"
        return f"# HELP {name} {documentation}\n# TYPE {name} {kind}\n"


def aliases(families: Mapping[str, FamilyText]) -> dict[str, FamilyText]:
    """Return the renamed families under their old names.

    Args:
        families: whole ones, by name.
    """
    return {
        old: FamilyText(old, family.kind, f"Old name of {new}.", [each.replace(new, old) for each in family.series])
        for new, old in RENAMED.items()
        if (family := families.get(new)) is not None
    }


def preferred(accept: str) -> str:
    """Return the content type for a client that accepts these."""
    accepted = {each.partition(";")[0].strip() for each in accept.split(",")}
    return OPEN_METRICS if "application/openmetrics-text" in accepted else PLAIN


def registered(registry: CollectorRegistry, *, pairs: bool) -> Iterator[FamilyText | None]:
    """Yield the families of all that is registered, and None between two steps.

    Args:
        registry: has the collectors.
        pairs: as for `SlicedCollector`.
    """
    for collector in list(registry._collector_to_names):
        families = collector.families(pairs=pairs) if isinstance(collector, SlicedCollector) else collector.collect()
        for family in families:
            if family is not None:
                yield from _written(family)
            yield None


def of_worker(page: str, worker: str) -> Iterator[FamilyText | None]:
    """Yield the families of a worker's page, each series with the label `worker`, and None between two steps.

    Args:
        page: as that process has answered, in plain text.
        worker: value of the label.
    """
    label = f'worker="{_escaped(worker)}"'
    documentation = ""
    family: FamilyText | None = None
    series: list[str] = []
    for line in _lines(page):
        if line.startswith("# HELP "):
            documentation = line[7:].partition(" ")[2]
        elif line.startswith("# TYPE "):
            if family is not None:
                family.series.append("".join(series))
                yield family
            name, _, kind = line[7:].partition(" ")
            series, family = [], FamilyText(name.removesuffix("_total"), kind, documentation)
        elif line and not line.startswith("#") and family is not None:
            series.append(_with_label(line, label))
            if len(series) == _LINES_AT_ONCE:
                family.series.append("".join(series))
                series = []
                yield None
    if family is not None:
        family.series.append("".join(series))
        yield family


def _written(family: Metric) -> Iterator[FamilyText | None]:
    documentation = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    text = FamilyText(family.name, family.type, documentation)
    created = f"{family.name}_created"
    series: list[str] = []
    for sample in family.samples:
        if sample.name != created:  # nobody reads these, and they are as many as what they say when it began
            series.append(f"{sample.name}{_label_text(sample.labels)} {_number(sample.value)}\n")
        if len(series) == _LINES_AT_ONCE:
            text.series.append("".join(series))
            series = []
            yield None
    text.series.append("".join(series))
    yield text


def _label_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())) + "}"


def _number(value: float) -> str:
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else f"{number:+}".replace("inf", "Inf")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _with_label(line: str, label: str) -> str:
    """Return a series with one more label, which comes last."""
    if "{" not in line:
        name, _, value = line.partition(" ")
        return f"{name}{{{label}}} {value}\n"
    labels, _, value = line.rpartition("} ")
    return f"{labels},{label}}} {value}\n"


def _lines(page: str) -> Iterator[str]:
    start = 0
    while (end := page.find("\n", start)) >= 0:
        yield page[start:end]
        start = end + 1
