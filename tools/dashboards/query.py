"""Queries in Prometheus' language, all for the namespace and the instances that are chosen in the dashboard."""

from typing import Final

NAMESPACE = 'namespace=~"$namespace"'
INSTANCE = 'instance=~"$instance"'


def of(metric: str, *matchers: str) -> str:
    """A metric of what is chosen.

    Args:
        metric: its name.
        matchers: what else its labels must be, such as `mode="notify"`.
    """
    return f"{metric}{{{','.join((*matchers, NAMESPACE, INSTANCE))}}}"


TARGETS_DOWN: Final = (
    f"((1 - {of('up')}) and on (namespace, instance) max_over_time({of('popwheel_rpc_connections')}[1d]))"
)
"""1 for each process that Prometheus knew within a day, still asks, and gets no answer from."""


def of_masters(metric: str) -> str:
    """A metric of brokers that lead. Slaves show the same, as they have it from the log: a sum would count it twice."""
    leads = of("popwheel_replica_role", 'role="master"')
    return f"({of(metric)} and on (namespace, instance) {leads} == 1)"


def per_second(counter: str, *matchers: str) -> str:
    """Return the query for the rate of a counter."""
    return f"rate({of(counter, *matchers)}[$__rate_interval])"


def total(expression: str, *labels: str) -> str:
    """The sum, by these labels."""
    return f"sum{_by(labels)}({expression})"


def largest(expression: str, *labels: str) -> str:
    """The largest value, by these labels."""
    return f"max{_by(labels)}({expression})"


def share_within(share: float, histogram: str, *labels: str, matchers: tuple[str, ...] = ()) -> str:
    """Return the query for a quantile of a histogram's recent values, in its unit."""
    buckets = total(per_second(f"{histogram}_bucket", *matchers), "le", *labels)
    return f"histogram_quantile({share:g}, {buckets})"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)}) " if labels else " "
