"""What the chart makes of values: of each file in helm/popwheel/ci, and of the defaults."""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from popwheel_cli.options import ClusterOptions
from popwheel_common.settings.config import load
from popwheel_common.web.hosts import AllowedHosts
from tests.harness.chart import DEFAULTS, NAMESPACE, Object, RenderedChart, complaints
from tools import generate_values_schema
from tools.generate_values_schema import CHART

FILES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
SET_BY_CHART = yaml.safe_load(generate_values_schema.SET_BY_CHART.read_text(encoding="utf-8"))
KUBERNETES = ("1.28", "1.37")
"""The oldest that Chart.yaml allows, and the newest."""

OTHERS = (
    "cert-manager.io/",
    "gateway.networking.k8s.io/",
    "monitoring.coreos.com/",
    "popwheel.io/",
    "sparkoperator.k8s.io/",
)
"""API groups that Kubernetes itself has no schemas of."""

_schema = functools.cache(utils.schema_contents)
_judged: set[tuple[str, str]] = set()


@functools.cache
def rendered(name: str) -> RenderedChart:
    return RenderedChart(yaml.safe_load(FILES[name].read_text(encoding="utf-8")))


@pytest.fixture(autouse=True)
def schemas_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "schema_contents", _schema)


def judge(made: Object, version: str) -> None:
    """See that Kubernetes would take an object; the same one only once."""
    text = json.dumps(made)
    if (version, text) not in _judged and not made["apiVersion"].startswith(OTHERS):
        kubernetes_validate.validate(made, version, strict=True)
        _judged.add((version, text))


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", FILES)
def test_kubernetes_takes_what_is_rendered(name: str, version: str) -> None:
    for made in rendered(name).objects:
        judge(made, version)


def test_there_are_many_value_files() -> None:
    assert len(FILES) >= 12


@pytest.mark.parametrize("name", FILES)
def test_no_object_is_there_twice_and_each_says_whose_it_is(name: str) -> None:
    chart = rendered(name)
    names = Counter((made["apiVersion"], made["kind"], made["metadata"]["name"]) for made in chart.objects)
    assert [key for key, count in names.items() if count > 1] == []
    for made in chart.objects:
        assert made["metadata"].get("namespace", NAMESPACE) == NAMESPACE
        if made["metadata"]["name"] not in ("plain", "popwheel-templated"):
            assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "popwheel"


@pytest.mark.parametrize("name", FILES)
def test_helm_lint_has_nothing_to_say(name: str) -> None:
    assert complaints(yaml.safe_load(FILES[name].read_text(encoding="utf-8"))) == []


def test_the_defaults_are_as_they_were() -> None:
    """A change of what most users get is seen as such in the review of the file."""
    assert RenderedChart().text == DEFAULTS.read_text(encoding="utf-8"), "run `make docs`, and look at the difference"


def containers(chart: RenderedChart) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, pod in chart.pods().items():
        for container in pod["spec"]["containers"]:
            if container["name"] not in ("shipper", "spark"):  # images of users
                yield name, pod["spec"], container


@pytest.mark.parametrize("name", FILES)
def test_pods_are_restricted(name: str) -> None:
    """As the standard `restricted` of Kubernetes has it, and with a root file system that nobody writes."""
    chart = rendered(name)
    for owner, pod, container in containers(chart):
        assert pod["securityContext"]["runAsNonRoot"], owner
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        restricted = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["securityContext"].items() >= restricted.items()
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        assert (pod.get("automountServiceAccountToken") is False) == ("serviceAccountName" not in pod)
        assert ("serviceAccountName" in pod) == (container["name"] in ("controller", "certificates"))
        assert not container["image"].endswith(":latest")


def test_settings_arrive_as_they_were_written() -> None:
    config = yaml.safe_load(rendered("settings").one("ConfigMap", "popwheel-config")["data"]["popwheel.yaml"])
    given = yaml.safe_load(FILES["settings"].read_text(encoding="utf-8"))["config"]
    hosts = config.pop("http")["allowed_hosts"]
    assert set(given.pop("http")["allowed_hosts"]) <= set(hosts)
    assert not [host for host in hosts if host.startswith("broker-")], "another group would roll all pods"
    assert config == {**given, "log": {"format": "json", **given["log"]}}
    allowed = AllowedHosts(hosts)
    for name in (
        *(
            "popwheel-admin:8080",
            "popwheel-admin.messages.svc:8080",
            "popwheel-metrics.messages",
            "broker-a-master.messages:8090",
        ),
        *("popwheel-controller-0.popwheel-controller:8080", "popwheel-proxy.messages.svc.cluster.local:8091"),
        "mq.example.com",
    ):
        assert allowed.allow(name)
    assert not allowed.allow("popwheel-admin.evil.example")
    assert "segment_bytes: 4294967296\n" in rendered("settings").text


@pytest.mark.parametrize("name", ["defaults", "load-balancer", "redis", "internal-tls"])
def test_what_pods_are_notified_besides_is_refused_under_config(name: str) -> None:
    """Else what somebody writes there would have no effect, and nobody would say so."""
    reported = {one["name"] for _, _, container in containers(rendered(name)) for one in container.get("env", [])}
    keys = {one.removeprefix("POPWHEEL_").lower().replace("__", ".") for one in reported if one.startswith("POPWHEEL_")}
    assert [key for key in keys if not any(key == one or key.startswith(f"{one}.") for one in SET_BY_CHART)] == []


def test_a_changed_setting_rolls_the_pods_and_a_changed_chart_version_does_not() -> None:
    def templates(name: str) -> dict[str, Object]:
        return {
            made["metadata"]["name"]: made["spec"]["template"]["metadata"]
            for made in rendered(name).objects
            if made["kind"] in ("Deployment", "StatefulSet")
        }

    before, after = templates("defaults"), templates("settings")
    assert before.keys() == after.keys()
    for name, metadata in before.items():
        assert metadata["annotations"]["checksum/config"] != after[name]["annotations"]["checksum/config"]
        assert "helm.sh/chart" not in metadata["labels"]


def test_in_diagnostic_mode_pods_only_sleep() -> None:
    for _, _, container in containers(rendered("diagnostic")):
        if container["name"] != "check":
            assert container["command"][0] == "sh"
            assert not {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle"} & container.keys()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("defaults", ["port-forward service/popwheel-proxy 8081", "helm test popwheel -n messages\n", "self-signed"]),
        ("defaults", ["tls.internal.enabled=false", "access.usersSecret names no users"]),
        ("internal-tls-by-cert-manager", ["tls.internal.mode=accept"]),
        ("laptop", ["broker.replicas=1", "controller.replicas=1", "proxy.replicas=1"]),
        ("ephemeral", ["broker.persistence.enabled=false"]),
        ("node-port", ["{.spec.ports[0].nodePort}"]),
        ("load-balancer", ["{.status.loadBalancer.ingress[0]}", "svc.cluster.local:443"]),
        ("diagnostic", ["DIAGNOSTIC MODE", "exec -it broker-a-0 -- sh"]),
        ("spark", ["popwheel-spark"]),
        ("open", ["networkPolicy.enabled=false", "The admin API is open", "all of the Kubernetes cluster"]),
        ("defaults", ["The admin API is open: access.tokensSecret names no tokens", "pods of the release's namespace"]),
        ("closed", ["those of networkPolicy.adminFrom"]),
        (
            "admin-ingress",
            ["asked from outside as mq.example.com. Tokens must guard it", "--server https://mq.example"],
        ),
        ("admin-route", ["WITHOUT access.tokensSecret EVERYTHING", "networkPolicy.adminFrom names nobody else"]),
        ("topics", ["5 topic(s) and 3 consumer group(s)"]),
    ],
)
def test_the_notes_say_the_next_command_and_warn(name: str, words: list[str]) -> None:
    notes = rendered(name).notes
    for word in words:
        assert word in notes
    assert ("self-signed" in notes) == (name != "load-balancer")
    assert "admin API is open" not in rendered("access").notes
    assert "EVERYTHING" not in rendered("admin-ingress").notes
    assert "\n\n\n" not in notes


def test_each_port_is_open_to_those_who_need_it() -> None:
    def peers(name: str, port: str) -> list[str]:
        (rule,) = (
            rule
            for rule in rendered("closed").one("NetworkPolicy", f"popwheel-{name}")["spec"]["ingress"]
            if rule["ports"] == [{"port": port}]
        )
        names = []
        for peer in rule["from"]:
            labels = next(iter(peer.values())).get("matchLabels", {})
            names.append(labels.get("app.kubernetes.io/component") or "/".join(labels.values()))
        return names

    assert peers("proxy", "grpc") == ["yes", "test"]
    assert peers("proxy", "http") == ["monitoring", "controller"]
    assert peers("broker", "grpc") == ["proxy", "broker", "controller"]
    assert peers("broker", "http") == ["monitoring", "controller"]
    assert peers("controller", "grpc") == ["proxy", "broker"]
    assert peers("controller", "http") == ["operator", "monitoring", "test", "controller"]


@pytest.mark.parametrize("name", ["defaults", "three-replicas", "laptop"])
def test_a_drain_takes_what_holds_nothing_and_of_brokers_only_those_that_others_can_do_without(name: str) -> None:
    budgets = {made["metadata"]["name"]: made["spec"] for made in rendered(name).of_kind("PodDisruptionBudget")}
    groups = {made["metadata"]["name"] for made in rendered(name).of_kind("StatefulSet")} - {"popwheel-controller"}
    assert budgets.keys() == groups | {"popwheel-controller", "popwheel-proxy"}
    for owner, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        wanted = "IfHealthyBudget" if owner in groups else "AlwaysAllow"
        assert budget.get("unhealthyPodEvictionPolicy") == wanted, owner


def test_the_own_redis_is_where_the_proxies_look_for_it() -> None:
    chart = rendered("redis")
    (proxy,) = chart.pods()["popwheel-proxy"]["spec"]["containers"]
    assert {"name": "POPWHEEL_PROXY__REDIS_URL", "value": "redis://popwheel-redis:6379/0"} in proxy["env"]
    assert chart.one("Service", "popwheel-redis")["spec"]["ports"][0]["port"] == 6379


@pytest.mark.parametrize(
    ("advertised", "address"),
    [
        ({}, None),
        ({"host": "mq.example.com"}, "mq.example.com"),
        ({"host": "fd00::1", "port": 80}, "[fd00::1]:80"),
        ({"port": 80}, ":80"),
    ],
)
def test_the_advertised_address_of_the_proxies(advertised: dict[str, object], address: str | None) -> None:
    chart = RenderedChart({"proxy": {"advertised": advertised}})
    (proxy,) = chart.pods()["popwheel-proxy"]["spec"]["containers"]
    given = {each["name"]: each["value"] for each in proxy["env"] if "ADVERTISED" in each["name"]}
    assert load(ClusterOptions, environment=given).proxy.advertised_address == (address or "")
    assert bool(given) == (address is not None)


def test_spark_applications_are_notified_where_the_proxies_are() -> None:
    endpoint = {"name": "POPWHEEL_ENDPOINT", "value": "popwheel-proxy.messages.svc.cluster.local:8081"}
    spec = rendered("spark").one("SparkApplication", "popwheel-orders-live")["spec"]
    assert endpoint in spec["driver"]["env"]
    assert spec["executor"]["env"] == [endpoint, {"name": "TZ", "value": "UTC"}]
    job = rendered("spark").one("CronJob", "popwheel-orders-daily")["spec"]
    (container,) = job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert endpoint in container["env"]
    assert container["args"] == [
        *("--master", "local[2]", "--conf", "spark.sql.session.timeZone=UTC"),
        *("local:///opt/app/daily.py", "--day", "yesterday"),
    ]


def test_a_stream_of_spark_is_one_pod_that_goes_on_from_its_checkpoint() -> None:
    chart = rendered("spark")
    stream = chart.one("Deployment", "popwheel-spark-orders-archive")["spec"]
    assert (stream["replicas"], stream["strategy"]) == (1, {"type": "Recreate"})
    labels = stream["template"]["metadata"]["labels"]
    assert stream["selector"]["matchLabels"].items() <= labels.items()
    assert labels["popwheel.io/stream"] == "orders-archive"
    pod = stream["template"]["spec"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (185, 185)
    assert pod["securityContext"]["runAsNonRoot"] and "restartPolicy" not in pod  # Always
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["args"] == ["--master", "local[*]", "local:///opt/app/archive.py", "--topic", "Orders"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["POPWHEEL_ENDPOINT"] == "popwheel-proxy.messages.svc.cluster.local:8081"
    assert variables["POPWHEEL_CHECKPOINT"] == container["volumeMounts"][0]["mountPath"] == "/checkpoint"
    (volume,) = pod["volumes"]
    claim = chart.one("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "1Gi"}}


def test_a_stream_of_spark_may_keep_its_checkpoint_elsewhere_and_be_stopped() -> None:
    chart = rendered("spark")
    stream = chart.one("Deployment", "popwheel-spark-orders-wide")["spec"]
    assert stream["replicas"] == 0
    pod = stream["template"]["spec"]
    (container,) = pod["containers"]
    assert "volumes" not in pod and "volumeMounts" not in container
    assert pod["serviceAccountName"] == "spark" and "automountServiceAccountToken" not in pod
    assert {"name": "POPWHEEL_CHECKPOINT", "value": "s3a://lake/checkpoints/orders"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "lake"}}] and pod["nodeSelector"] == {"disk": "ssd"}
    assert "spark.driver.host=$(POD_IP)" in container["args"]
    assert len(chart.of_kind("PersistentVolumeClaim")) == 1
    own = {"name": "a", "image": "i:1", "file": "f", "checkpoint": {"existingClaim": "mine"}}
    alone = RenderedChart({"spark": {"streams": [own]}})
    (volume,) = alone.pods()["popwheel-spark-a"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "mine"}
    assert alone.of_kind("PersistentVolumeClaim") == []


def test_secrets_of_access_come_to_those_who_check() -> None:
    chart = rendered("access")
    found = {
        (container["name"], variable)
        for _, _, container in containers(chart)
        for variable in ("POPWHEEL_ACCESS__FILE", "POPWHEEL_ACCESS__TOKEN_FILE", "POPWHEEL_SECRET")
        if variable in {each["name"] for each in container.get("env", ())}
    }
    assert found == {
        ("proxy", "POPWHEEL_ACCESS__FILE"),
        ("controller", "POPWHEEL_ACCESS__TOKEN_FILE"),
        ("check", "POPWHEEL_SECRET"),
    }
    secrets = {
        volume["secret"]["secretName"]
        for pod in chart.pods().values()
        for volume in pod["spec"].get("volumes", ())
        if "secret" in volume
    }
    assert secrets == {"messages-users", "messages-tokens"}
    assert "subPath" not in chart.text, "a Secret that changes does not reach files that are mounted so"


def test_the_controllers_may_change_no_pods_but_those_of_the_release() -> None:
    for name in FILES:
        for role in rendered(name).of_kind("Role"):
            for rule in role["rules"]:
                narrow = "resourceNames" in rule or set(rule["verbs"]) <= {"get", "list", "watch", "create"}
                own = set(rule["apiGroups"]) <= {"popwheel.io"}
                assert narrow or own, f"{name}: {role['metadata']['name']} may {rule['verbs']} any {rule['resources']}"
                assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
                assert "secrets" not in rule["resources"] or "resourceNames" in rule or rule["verbs"] == ["create"]
    (rule,) = (
        rule
        for rule in rendered("three-replicas").one("Role", "popwheel-controller")["rules"]
        if "pods" in rule["resources"] and "patch" in rule["verbs"]
    )
    assert rule["verbs"] == ["patch"]
    made = rendered("three-replicas").of_kind("StatefulSet")
    pods = {f"{each['metadata']['name']}-{number}" for each in made for number in range(each["spec"]["replicas"])}
    assert pods <= set(rule["resourceNames"])
    owners = {each["metadata"]["name"] for each in made}
    assert {name.rpartition("-")[0] for name in rule["resourceNames"]} == owners


def test_there_are_no_rights_of_a_whole_cluster() -> None:
    for name in FILES:
        assert not [made for made in rendered(name).objects if made["kind"].startswith("ClusterRole")]
