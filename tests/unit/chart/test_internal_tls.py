"""TLS between the services, as the chart sets it up."""

from fnmatch import fnmatchcase
from typing import Any

import pytest

from popwheel_cli.main import certificates
from tests.harness.chart import NAMESPACE, RenderedChart, Values

SERVICES = ("popwheel-controller", "broker-a", "popwheel-proxy")
JOBS = ("popwheel-certificates-hook", "popwheel-certificates")
MADE: Values = {"enabled": True}
BY_SECRET: Values = {"enabled": True, "existingSecret": "mine"}
BY_CERT_MANAGER: Values = {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "ours"}}}


def rendered(internal: Values, **others: Any) -> RenderedChart:
    return RenderedChart({"tls": {"internal": internal}, **others})


def arguments(chart: RenderedChart, job: str) -> list[str]:
    (container,) = chart.pods()[job]["spec"]["containers"]
    assert container["command"] == ["popwheel", "certificates"]
    return list(container["args"])


@pytest.mark.parametrize(
    ("internal", "secret"),
    [(MADE, "popwheel-internal-tls"), (BY_SECRET, "mine"), (BY_CERT_MANAGER, "popwheel-internal-tls")],
)
def test_each_service_has_the_certificate_and_nobody_the_key_of_the_authority(internal: Values, secret: str) -> None:
    pods = rendered({**internal, "mode": "prefer"}).pods()
    for name in SERVICES:
        spec = pods[name]["spec"]
        (volume,) = (each for each in spec["volumes"] if each["name"] == "internal-tls")
        assert volume["secret"]["secretName"] == secret
        assert [each["path"] for each in volume["secret"]["items"]] == ["tls.crt", "tls.key", "ca.crt"]
        (container,) = spec["containers"]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == "internal-tls")
        assert "subPath" not in mount, "its contents would never change"
        reported = {each["name"]: each.get("value") for each in container["env"]}
        for kind, file in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("AUTHORITY", "ca.crt")):
            assert reported[f"POPWHEEL_TLS__{kind}_FILE"] == f"{mount['mountPath']}/{file}"
        assert reported["POPWHEEL_TLS__MODE"] == "prefer"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == "http", "where no certificate is asked for"
    assert not any("internal-tls" in str(pod["spec"].get("volumes")) for name, pod in pods.items() if "check" in name)


@pytest.mark.parametrize("others", [{}, {"fullnameOverride": "orders", "clusterDomain": "example.internal"}])
def test_the_certificate_is_good_for_all_names_by_which_services_reach_one_another(others: Values) -> None:
    chart = rendered(MADE, **others)
    prefix = others.get("fullnameOverride", "popwheel")
    names = [each.removeprefix("--name=") for each in arguments(chart, f"{prefix}-certificates") if "--name" in each]
    reached = []
    for pod in chart.pods().values():
        for each in pod["spec"]["containers"][0].get("env", []):
            if each["name"].endswith(("ADDRESS", "__CONTROLLER")):
                reached += each["value"].replace("$(POD_NAME)", "pod").split(",")
    assert len(reached) > 4
    for address in reached:
        host = address.partition(":")[0]
        assert any(fnmatchcase(host, name) and host.count(".") == name.count(".") for name in names), address
    issued = rendered(BY_CERT_MANAGER, **others).one("Certificate", f"{prefix}-certificates")["spec"]
    assert issued["dnsNames"] == names
    assert {"server auth", "client auth"} <= set(issued["usages"])


@pytest.mark.parametrize("internal", [{"enabled": False}, BY_SECRET, BY_CERT_MANAGER])
def test_no_job_is_there_if_others_make_the_certificate(internal: Values) -> None:
    chart = rendered(internal)
    assert not chart.of_kind("Job") and not chart.of_kind("CronJob")
    assert len(chart.of_kind("Role")) == 1


def test_certificates_are_made_before_pods_need_them_and_renewed_every_day() -> None:
    chart = rendered(MADE)
    hook, daily = (arguments(chart, job) for job in JOBS)
    assert hook == daily
    known = {option for each in certificates.params for option in each.opts}
    assert {each.partition("=")[0] for each in hook} <= known
    weights = {}
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Job"):
        annotations = chart.one(kind, JOBS[0])["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        weights[kind] = int(annotations["helm.sh/hook-weight"])
    assert all(weights[kind] < weights["Job"] for kind in ("ServiceAccount", "Role", "RoleBinding"))
    assert chart.one("CronJob", JOBS[1])["spec"]["concurrencyPolicy"] == "Forbid"


@pytest.mark.parametrize("job", JOBS)
def test_a_job_may_touch_its_secret_and_nothing_else(job: str) -> None:
    chart = rendered(MADE)
    assert chart.pods()[job]["spec"]["serviceAccountName"] == job
    assert chart.one("Role", job)["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["popwheel-internal-tls"],
            "verbs": ["get", "patch"],
        },
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    binding = chart.one("RoleBinding", job)
    assert binding["roleRef"]["name"] == job
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": job, "namespace": NAMESPACE}]
