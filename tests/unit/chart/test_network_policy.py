"""The chart's NetworkPolicies, by Kubernetes' rules: what the product connects to is open, and little else is."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.harness.chart import RenderedChart, Values
from tests.harness.network_policy import Pod, may_connect
from tools.generate_values_schema import CHART

COMPONENT = "app.kubernetes.io/component"
BY_REGISTRATION = {
    ("proxy", "broker", "grpc"),  # all that clients ask for
    ("broker", "broker", "grpc"),  # replication
    ("controller", "broker", "grpc"),  # probes, transfers, checkpoints, what the admin API asks
    ("controller", "broker", "http"),  # /readyz, for `popwheel admin cluster status`
    ("controller", "proxy", "http"),
    ("controller", "controller", "http"),  # `kubectl exec` of `popwheel admin`, where another one leads
}
"""Who connects to whom at an address that it has learned from the controllers: no rendered object names these."""

Connection = tuple[str, str, str]
"""From which component to which, and to which port of its container, by name."""

NEAR = Pod({"app": "of somebody else"})
FAR = Pod(
    {"app.kubernetes.io/name": "popwheel", "app.kubernetes.io/instance": "popwheel", COMPONENT: "proxy"}, {}, "other"
)
"""It bears our labels, in a namespace of its own."""
PROMETHEUS = Pod({"app.kubernetes.io/name": "prometheus"}, {}, "monitoring")
SCRAPED = {("proxy", "http"), ("broker", "http"), ("controller", "http")}


def values_of(name: str) -> Values:
    return dict(yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8")) or {})


ALL = {
    **{name: values_of(name) for name in ("defaults", "internal-tls", "redis", "monitoring", "spark", "closed")},
    "closed with spark": {**values_of("spark"), **values_of("closed")},
    "closed with streams of spark": {
        "spark": {"streams": values_of("spark")["spark"]["streams"]},
        **values_of("closed"),
    },
    "other names": {
        "fullnameOverride": "orders",
        "clusterDomain": "example.internal",
        "proxy": {"service": {"port": 443}},
    },
}


class Paper:
    """A release on paper.

    Args:
        values: on top of the chart's own.
    """

    def __init__(self, values: Values) -> None:
        chart = RenderedChart(values)
        self.policies = chart.of_kind("NetworkPolicy")
        self._services = {made["metadata"]["name"]: made["spec"] for made in chart.of_kind("Service")}
        templates = list(chart.pods().values())
        for each in chart.of_kind("SparkApplication"):  # the operator makes pods of these two
            templates += [
                {"metadata": each["spec"][part], "spec": {"containers": [each["spec"][part]]}}
                for part in ("driver", "executor")
            ]
        self._templates = templates
        self.pods: dict[str, Pod] = {}
        for template in templates:
            pod = Pod(template["metadata"].get("labels", {}), _ports(template))
            component = pod.labels.get(COMPONENT, "without a component")
            assert self.pods.setdefault(component, pod).ports == pod.ports
        self.open = {(name, port): number for name, pod in self.pods.items() for port, number in pod.ports.items()}

    def reach_of(self, source: Pod) -> set[tuple[str, str]]:
        """Components and ports that a pod may connect to."""
        return {
            (name, port)
            for (name, port), number in self.open.items()
            if may_connect(self.policies, source, self.pods[name], number)
        }

    def named(self) -> set[Connection]:
        """Connections that the environment or the words of a container name."""
        found = set()
        for template in self._templates:
            source = template["metadata"].get("labels", {}).get(COMPONENT, "without a component")
            for container in template["spec"]["containers"]:
                reported = [each for each in container.get("env", []) if "ADVERTISED" not in each["name"]]
                for host, port in re.findall(r"([\w.-]+):(\d+)", json.dumps([reported, container.get("args", [])])):
                    found |= {(source, *target) for target in self._behind(host, int(port))}
        return found

    def _behind(self, host: str, port: int) -> set[tuple[str, str]]:
        """Which components a name stands for, and at which port of theirs one comes out."""
        names = [part for part in host.split(".")[:2] if part in self._services]
        if not names:
            return set()
        service = self._services[names[0]]
        (name,) = (each["targetPort"] for each in service["ports"] if each["port"] == port)
        selected = {
            component
            for component, pod in self.pods.items()
            if component != "test"
            and service["selector"].items() <= {**pod.labels, "popwheel.io/role": "leader"}.items()
        }
        assert selected, f"nobody is behind {host}"
        if service.get("clusterIP") == "None":  # then the name stands for pods, and nobody maps the port
            assert all(self.pods[component].ports[name] == port for component in selected)
        return {(component, name) for component in selected}


def _ports(template: Mapping[str, Any]) -> dict[str, int]:
    (container, *_) = template["spec"]["containers"]
    return {each["name"]: each["containerPort"] for each in container.get("ports", [])}


@pytest.mark.parametrize("name", ALL)
def test_all_that_the_product_connects_to_is_open_to_it(name: str) -> None:
    paper = Paper(ALL[name])
    needed = paper.named() | BY_REGISTRATION
    assert needed >= {
        ("proxy", "controller", "grpc"),
        ("broker", "controller", "grpc"),
        ("test", "proxy", "grpc"),
        ("test", "controller", "http"),
    }
    assert (("proxy", "redis", "redis") in needed) == ("redis" in ALL[name])
    assert (("spark", "proxy", "grpc") in needed) == ("spark" in ALL[name])
    closed = {each for each in needed if each[1:] not in paper.reach_of(paper.pods[each[0]])}
    assert closed == set()


@pytest.mark.parametrize("name", ALL)
def test_no_port_is_left_without_a_policy(name: str) -> None:
    """Where none names a pod, all of it is open; and a rule's port that no container has lets nobody in."""
    paper = Paper(ALL[name])
    ruled = {
        (component, rule_port["port"])
        for policy in paper.policies
        for component in [policy["spec"]["podSelector"]["matchLabels"][COMPONENT]]
        for rule in policy["spec"]["ingress"]
        for rule_port in rule["ports"]
    }
    assert ruled == paper.open.keys()


def test_by_default_strangers_reach_proxies_and_neighbours_metrics_and_nobody_brokers() -> None:
    paper = Paper({"redis": values_of("redis")["redis"]})
    assert paper.reach_of(FAR) == {("proxy", "grpc")}
    assert paper.reach_of(NEAR) == {("proxy", "grpc")} | SCRAPED
    assert paper.reach_of(PROMETHEUS) == {("proxy", "grpc")}, "metricsFrom has to name another namespace"


def test_a_prometheus_elsewhere_is_let_in_and_neighbours_are_no_more() -> None:
    paper = Paper(values_of("monitoring"))
    assert paper.reach_of(PROMETHEUS) == {("proxy", "grpc")} | SCRAPED
    assert paper.reach_of(NEAR) == {("proxy", "grpc"), ("controller", "http")}, "adminFrom is as it was"


def test_a_closed_release_is_open_to_those_who_are_named_and_each_gets_what_is_his() -> None:
    paper = Paper(values_of("closed"))
    assert paper.reach_of(FAR) == paper.reach_of(NEAR) == set()
    assert paper.reach_of(Pod({"messages": "yes"})) == {("proxy", "grpc")}
    assert paper.reach_of(Pod({"messages": "yes"}, {}, "other")) == set()
    assert paper.reach_of(Pod({"role": "operator"})) == {("controller", "http")}
    assert paper.reach_of(PROMETHEUS) == SCRAPED


def test_components_reach_no_more_than_they_need() -> None:
    paper = Paper(values_of("closed"))
    needed = paper.named() | BY_REGISTRATION
    for name, pod in paper.pods.items():
        assert paper.reach_of(pod) == {each[1:] for each in needed if each[0] == name}, name


def test_pods_that_spark_makes_itself_bear_the_labels_that_let_them_in() -> None:
    application = {"name": "live", "image": "orders:1.2", "file": "local:///opt/app/live.py"}
    with_labels = {**application, "driver": {"labels": {"tier": "live", COMPONENT: "proxy"}}}
    on_kubernetes = {
        **application,
        "name": "daily",
        "schedule": "0 1 * * *",
        "master": "k8s://https://kubernetes.default",
    }
    chart = RenderedChart({"spark": {"applications": [with_labels, on_kubernetes]}})
    spec = chart.one("SparkApplication", "popwheel-live")["spec"]
    assert spec["driver"]["labels"] == {**spec["executor"]["labels"], "tier": "live"}
    (container,) = chart.pods()["popwheel-daily"]["spec"]["containers"]
    for key, value in spec["executor"]["labels"].items():
        assert f"spark.kubernetes.executor.label.{key}={value}" in container["args"]
    for setting in ("container.image=orders:1.2", "driver.pod.name=$(POD_NAME)", "namespace=messages"):
        assert f"spark.kubernetes.{setting}" in container["args"]
    assert "spark.driver.host=$(POD_IP)" in container["args"]
