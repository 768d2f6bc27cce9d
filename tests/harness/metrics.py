"""What a server process says of itself at /metrics."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.standalone import StandaloneProcess

_LASTING = (
    *("rocketmq_messages_in_total", "rocketmq_messages_out_total", "rocketmq_storage_size"),
    *("rocketmq_consumer_inflight_messages", "rocketmq_consumer_ready_messages", "rocketmq_send_to_dlq_messages_total"),
    *("popwheel_controller_topics", "popwheel_controller_groups", "popwheel_controller_state_version"),
    *("popwheel_storage_queues", "popwheel_pop_open_messages"),
)

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics(server: StandaloneProcess, *, pairs: bool = False) -> Values:
    """All values, by name and labels; with each pair of a topic and a group, or without."""
    with urllib.request.urlopen(f"{server.http_url}/metrics?pairs={pairs}", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric(server: StandaloneProcess, name: str, **labels: str) -> float:
    """One value; 0 if it is not there."""
    return metrics(server).get((name, tuple(sorted(labels.items()))), 0.0)


def lasting(server: StandaloneProcess) -> Values:
    """What only a request that was done may change: topics, groups, messages, the log's size, what is delivered."""
    return {key: value for key, value in metrics(server).items() if key[0] in _LASTING}
