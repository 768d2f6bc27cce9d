"""What the world outside the chart goes by: registries of images, the ways to the admin API, Artifact Hub."""

from typing import Any

import pytest
import yaml

from tests.harness.chart import RefusedError, RenderedChart, Values
from tools.generate_values_schema import CHART

CHART_FILE = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))


def images(values: Values) -> set[str]:
    """All images of a release."""
    pods = RenderedChart(values).pods().values()
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def values_of(name: str) -> Values:
    """Those of a file of the chart."""
    return dict(yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("name", "pulled"),
    [
        ("popwheel", "mirror:5000/popwheel"),
        ("library/popwheel", "mirror:5000/library/popwheel"),
        ("docker.io/popwheel", "mirror:5000/popwheel"),
        ("localhost/a/popwheel", "mirror:5000/a/popwheel"),
        ("other:5000/a/popwheel", "mirror:5000/a/popwheel"),
    ],
)
def test_all_images_come_from_the_registry_of_all(name: str, pulled: str) -> None:
    everything = {"global": {"imageRegistry": "mirror:5000"}, "tls": {"internal": {"enabled": True}}}
    redis = {"own": {"enabled": True, "image": f"{name}:8.1"}}
    assert images({**everything, "image": {"repository": name}, "redis": redis}) == {f"{pulled}:0.1.0", f"{pulled}:8.1"}
    digest = f"sha256:{'0' * 64}"
    assert images({**everything, "image": {"repository": name, "digest": digest}}) == {f"{pulled}@{digest}"}


def test_an_image_keeps_its_name_where_no_registry_is_given() -> None:
    assert images({"image": {"repository": "docker.io/a/popwheel"}}) == {"docker.io/a/popwheel:0.1.0"}


def test_secrets_of_all_charts_are_used_once_each() -> None:
    pods = RenderedChart(values_of("admin-ingress")).pods()
    assert pods
    for pod in pods.values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "mirror"}, {"name": "other"}]


def allowed_hosts(chart: RenderedChart) -> list[str]:
    """The names for which HTTP is answered."""
    config = yaml.safe_load(chart.one("ConfigMap", "popwheel-config")["data"]["popwheel.yaml"])
    return list(config["http"]["allowed_hosts"])


def test_by_default_there_is_no_way_from_outside() -> None:
    chart = RenderedChart()
    assert chart.of_kind("Ingress") == chart.of_kind("HTTPRoute") == []


def test_an_ingress_leads_to_the_controller_that_leads() -> None:
    chart = RenderedChart(values_of("admin-ingress"))
    ingress = chart.one("Ingress", "popwheel-admin")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = chart.one("Service", path["backend"]["service"]["name"])
    assert service["spec"]["selector"]["popwheel.io/role"] == "leader"
    assert path["backend"]["service"]["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert (rule["host"], path["path"], ingress["spec"]["ingressClassName"]) == ("mq.example.com", "/", "nginx")
    assert ingress["spec"]["tls"] == [{"secretName": "mq-tls", "hosts": ["mq.example.com"]}]
    assert ingress["metadata"]["labels"]["team"] == "messages"
    assert ingress["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/proxy-body-size": "1m"}
    assert "mq.example.com" in allowed_hosts(chart), "or every request would get status 421"


def test_a_route_leads_there_too() -> None:
    chart = RenderedChart(values_of("admin-route"))
    route = chart.one("HTTPRoute", "popwheel-admin")["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    assert route["hostnames"] == ["mq.example.com", "mq.example.org"]
    (backend,) = route["rules"][0]["backendRefs"]
    ports = chart.one("Service", backend["name"])["spec"]["ports"]
    assert backend["port"] in [port["port"] for port in ports]
    assert {*route["hostnames"]} <= {*allowed_hosts(chart)}


@pytest.mark.parametrize(
    ("admin", "words"),
    [
        ({"ingress": {"enabled": True}}, "say in admin.ingress.hosts under which names"),
        ({"httpRoute": {"enabled": True, "hostnames": ["a.b"]}}, "say admin.httpRoute.parentRefs and hostnames"),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}}, "admin.httpRoute.parentRefs and hostnames"),
    ],
)
def test_a_way_that_leads_nowhere_is_refused(admin: Values, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        RenderedChart({"admin": admin})


def annotation(name: str) -> Any:
    """What Artifact Hub is told, as it reads it."""
    return yaml.safe_load(CHART_FILE["annotations"][f"artifacthub.io/{name}"])


def test_artifact_hub_is_notified_of_the_image_and_of_all_kinds() -> None:
    assert annotation("license") == "Apache-2.0"
    assert annotation("images") == [{"name": "popwheel", "image": f"popwheel:{CHART_FILE['appVersion']}"}]
    defined = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in (CHART / "crds").iterdir()]
    reported = {(each["name"], each["kind"], each["version"]) for each in annotation("crds")}
    assert reported == {
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"])
        for each in defined
    }
    kinds = {kind for _, kind, _ in reported}
    assert all(each["kind"] in kinds for each in annotation("crdsExamples"))
