"""Values for pods and for the objects round them arrive, for each service."""

from typing import Any

import pytest

from tests.harness.chart import RenderedChart
from tests.unit.chart.test_rendered import KUBERNETES, judge, rendered

SERVICES = {"proxy": "popwheel-proxy", "broker": "broker-b", "controller": "popwheel-controller"}
LEFT_SOON = [
    {
        "key": f"node.kubernetes.io/{what}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 30,
    }
    for what in ("unreachable", "not-ready")
]


def pod_of(chart: RenderedChart, service: str) -> dict[str, Any]:
    return dict(chart.pods()[SERVICES[service]]["spec"])


def container_of(chart: RenderedChart, service: str) -> dict[str, Any]:
    (found,) = (each for each in pod_of(chart, service)["containers"] if each["name"] == service)
    return dict(found)


@pytest.mark.parametrize("name", ["defaults", "redis", "internal-tls", "three-replicas"])
def test_no_pod_stays_bound_to_a_lost_node_for_minutes(name: str) -> None:
    """Kubernetes puts 300 s where nothing is said."""
    chart = rendered(name)
    for made in chart.objects:
        if made["kind"] in ("Deployment", "StatefulSet"):
            assert made["spec"]["template"]["spec"]["tolerations"] == LEFT_SOON, made["metadata"]["name"]


@pytest.mark.parametrize("service", SERVICES)
def test_values_of_pods_arrive(service: str) -> None:
    pod, container = pod_of(rendered("pods"), service), container_of(rendered("pods"), service)
    (constraint,) = pod["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "topology.kubernetes.io/zone"
    assert pod["dnsPolicy"] == "ClusterFirst" and pod["dnsConfig"]["options"] == [{"name": "ndots", "value": "1"}]
    assert pod["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["kafka.example.com"]}]
    assert [each["name"] for each in pod["initContainers"]] == ["shipper"]
    assert container["envFrom"] == [{"secretRef": {"name": "more", "optional": True}}]


@pytest.mark.parametrize("service", SERVICES)
def test_a_security_context_is_laid_over_the_charts_own(service: str) -> None:
    pod, container = pod_of(rendered("pods"), service), container_of(rendered("pods"), service)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsGroup": 10001,  # the user was taken away
        "fsGroup": 20001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
    }


def test_the_proxies_service_is_as_values_say() -> None:
    service = rendered("pods").one("Service", "popwheel-proxy")
    assert service["metadata"]["labels"]["tier"] == "front"
    assert (
        service["spec"].items()
        >= {
            "type": "LoadBalancer",
            "loadBalancerClass": "service.k8s.aws/nlb",
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "ClientIP",
        }.items()
    )
    plain = rendered("defaults").one("Service", "popwheel-proxy")["spec"]
    assert plain.keys() == {"type", "selector", "ports"}
    near = RenderedChart({"proxy": {"service": {"trafficDistribution": "PreferClose"}}}).one(
        "Service", "popwheel-proxy"
    )
    assert near["spec"] == {**plain, "trafficDistribution": "PreferClose"}
    judge(near, KUBERNETES[-1])


def test_volume_claims_have_labels_and_annotations() -> None:
    for group in ("broker-a", "broker-b"):
        (claim,) = rendered("pods").one("StatefulSet", group)["spec"]["volumeClaimTemplates"]
        assert claim["metadata"]["annotations"] == {"example.com/backup": "daily"}
        assert claim["metadata"]["labels"].items() >= {"tier": "store", "popwheel.io/group": group}.items()


def test_budgets_are_as_values_say() -> None:
    budgets = {made["metadata"]["name"]: made for made in rendered("pods").of_kind("PodDisruptionBudget")}
    assert budgets.keys() == {"popwheel-proxy", "broker-a", "broker-b"}
    assert budgets["popwheel-proxy"]["spec"]["maxUnavailable"] == "25%"
    assert budgets["broker-a"]["spec"]["minAvailable"] == 1
    assert "maxUnavailable" not in budgets["broker-a"]["spec"]


def test_what_is_laid_over_an_object_is_merged_by_keys_and_names() -> None:
    chart = rendered("pods")
    deployment = chart.one("Deployment", "popwheel-proxy")
    before = rendered("defaults").one("Deployment", "popwheel-proxy")
    assert deployment["spec"]["minReadySeconds"] == 5
    assert deployment["spec"]["strategy"] == before["spec"]["strategy"]
    container, plain = container_of(chart, "proxy"), container_of(rendered("defaults"), "proxy")
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert [each["name"] for each in container["env"]] == [each["name"] for each in plain["env"]] + ["TZ"]
    assert variables["TZ"] == "UTC" and variables["POPWHEEL_PROXY__GRPC_HOST"] == "::"
    assert container["volumeMounts"] == [
        {"name": "config", "mountPath": "/etc/popwheel", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp", "subPath": "tmp"},
        {"name": "tmp", "mountPath": "/more"},
    ]
    assert "lifecycle" in plain and "lifecycle" not in container
    assert container["image"] == plain["image"] and container["readinessProbe"] == plain["readinessProbe"]
    assert chart.one("PodDisruptionBudget", "popwheel-proxy")["metadata"]["annotations"] == {
        "example.com/why": "drills"
    }


def test_it_is_laid_over_every_object_of_the_kind_and_no_other() -> None:
    chart = rendered("pods")
    for group in ("broker-a", "broker-b"):
        assert chart.one("StatefulSet", group)["spec"]["template"]["spec"]["runtimeClassName"] == "gvisor"
        assert chart.one("Service", f"{group}-master") == rendered("defaults").one("Service", f"{group}-master")
    for name in ("popwheel-controller", "popwheel-admin"):
        assert chart.one("Service", name)["metadata"]["annotations"] == {"example.com/why": "drills"}
    assert "annotations" not in chart.one("Service", "popwheel-broker")["metadata"]


def test_the_order_of_objects_stays() -> None:
    def names(chart: RenderedChart) -> list[tuple[str, str]]:
        return [(made["kind"], made["metadata"]["name"]) for made in chart.objects]

    gone = ("PodDisruptionBudget", "popwheel-controller")
    assert names(rendered("pods")) == [each for each in names(rendered("defaults")) if each != gone]
