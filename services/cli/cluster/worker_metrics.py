"""What several children answer over HTTP, asked at once: whether they are ready, and their metrics as one page."""

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from services.cli.cluster.children import Child
from services.cli.cluster.health import fetch, why_not_ready

_ASK_S = 2.0


class WorkerMetrics(Collector):
    """What the workers said last, each value with the label `worker`; `pages` is set before it is asked.

    Sums over `worker` are those of the whole proxy, so that one port per proxy is all that Prometheus has to know.

    Args:
        own: metrics of the parent that are on the same page, without that label.
    """

    def __init__(self, own: CollectorRegistry | None = None) -> None:
        self.pages: Mapping[str, str] = {}
        """By the worker's name: what it answers at `/metrics`."""
        self._own = own

    def describe(self) -> Iterable[Metric]:
        """Nothing is known beforehand."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All values of all workers, family by family."""
        families: dict[str, Metric] = {}
        if self._own is not None:
            for family in self._own.collect():
                families[family.name] = Metric(family.name, family.documentation, family.type)
                families[family.name].samples += family.samples
        for worker, page in self.pages.items():
            for family in text_string_to_metric_families(page):
                merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        return families.values()


class ChildPages:
    """Asks children over HTTP.

    Args:
        children: by the value of the label `worker`.
        own: metrics of the parent that are on the same page.
    """

    def __init__(self, children: Mapping[str, Child], own: CollectorRegistry | None = None) -> None:
        self.metrics = WorkerMetrics(own)
        self.reasons: dict[str, str] = {}
        """By the same: why one is not ready; empty if it is. As `ask` found it."""
        self._children = children

    async def ask(self) -> None:
        """See who is ready."""
        answers = await asyncio.gather(
            *(why_not_ready(each.host, each.port, _ASK_S) for each in self._children.values())
        )
        self.reasons = dict(zip(self._children, answers, strict=True))

    async def read(self) -> None:
        """Take what they count."""
        pages = await asyncio.gather(*map(_metrics_of, self._children.values()))
        self.metrics.pages = {label: page for label, page in zip(self._children, pages, strict=True) if page}


async def _metrics_of(child: Child) -> str:
    """What a child counts; nothing of one that is just being started again."""
    try:
        status, page = await fetch(child.host, child.port, "/metrics", _ASK_S)
    except OSError:
        return ""
    return page.decode() if status == 200 else ""
