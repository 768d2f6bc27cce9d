"""The metrics of several workers as one page, each value with the label `worker`."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class WorkerMetrics(Collector):
    """What the workers said last; `pages` is set before it is asked.

    Sums over `worker` are those of the whole proxy, so that one port per proxy is all that Prometheus has to know.
    """

    def __init__(self) -> None:
        self.pages: Mapping[str, str] = {}
        """By the worker's name: what it answers at `/metrics`."""

    def describe(self) -> Iterable[Metric]:
        """Nothing is known beforehand."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All values of all workers, family by family."""
        families: dict[str, Metric] = {}
        for worker, page in self.pages.items():
            for family in text_string_to_metric_families(page):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        return families.values()
