"""Readiness and metrics of several children, requested over HTTP at once."""

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from popwheel_cli.cluster.children import Child
from popwheel_cli.cluster.health import fetch, why_not_ready

_ASK_S = 1.4
"""A caller that asks while others are asked waits for twice as long: less than the three seconds of a probe."""
_READ_S = 8.0  # a page of very many series takes a while, as others are served between its steps


class ChildPages:
    """Client of children's HTTP pages.

    Sums of their metrics over the label `worker` are those of the whole proxy, so that one port per proxy is all that
    Prometheus has to know.

    Args:
        children: each with the label `worker`.
        registry: of the parent, where it is shown how many gave no page.
    """

    def __init__(self, children: Iterable[Child], registry: CollectorRegistry) -> None:
        self._reasons: dict[str, str] = {}
        self._children = {child.label: child for child in children}
        self._without_page = Gauge(
            "popwheel_processes_without_page",
            "Child processes whose metrics did not arrive in time, and are missing in the sums",
            registry=registry,
        )

    async def ask(self) -> None:
        """Request the readiness of all children."""
        answers = await asyncio.gather(
            *(why_not_ready(each.host, each.port, _ASK_S) for each in self._children.values())
        )
        self._reasons = dict(zip(self._children, answers, strict=True))

    def trouble(self, child: Child) -> str | None:
        """Return why a child is not ready, as `ask` found it; None: it is."""
        return self._reasons.get(child.label) or None

    async def read(self, pairs: bool) -> Mapping[str, str]:
        """Read their pages of metrics, by the same; of one that is just being started again there is none.

        Args:
            pairs: with each pair of a topic and a group.
        """
        pages = await asyncio.gather(*(_metrics_of(each, pairs) for each in self._children.values()))
        self._without_page.set(pages.count(""))
        return {label: page for label, page in zip(self._children, pages, strict=True) if page}


async def _metrics_of(child: Child, pairs: bool) -> str:
    try:
        path = "/metrics?pairs=true" if pairs else "/metrics"
        status, page = await fetch(child.host, child.port, path, _READ_S)
    except OSError:
        return ""
    return page.decode() if status == 200 else ""
