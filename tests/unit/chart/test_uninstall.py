"""What `helm uninstall` leaves: data, and the state that belongs to it, all of which one label selects."""

import pytest

from popwheel_controller.kubernetes.state_store import OF_CLUSTER, KubernetesStateStore, cluster_label
from popwheel_controller.store.state_store import LEASE
from tests.harness.chart import RenderedChart, Values
from tests.unit.chart.test_definitions import OURS, definition
from tests.unit.controller.memory_api import MemoryApi

AFTER = {"helm.sh/hook": "post-delete", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded"}
MADE_BY_CHART: Values = {"tls": {"internal": {"enabled": True}}}
NAMED: Values = {"config": {"controller": {"cluster_name": "orders"}}}


def taken_away(values: Values) -> set[tuple[str, str]]:
    """Kinds and names of what goes although Helm did not make it."""
    found = [
        each for each in RenderedChart(values).objects if "post-delete" in str(each["metadata"].get("annotations"))
    ]
    assert all(each["metadata"]["annotations"] == AFTER for each in found)
    return {(each["kind"], each["metadata"]["name"]) for each in found}


@pytest.mark.parametrize(("values", "cluster"), [({}, "popwheel"), (NAMED, "orders")])
def test_the_lease_goes_with_the_release(values: Values, cluster: str) -> None:
    kind, _, name = KubernetesStateStore(MemoryApi(), cluster).where(LEASE).rpartition("/")
    assert kind == "leases"
    assert taken_away(values) == {("Lease", name)}


def test_certificates_that_the_chart_made_go_and_no_others() -> None:
    assert ("Secret", "popwheel-internal-tls") in taken_away(MADE_BY_CHART)
    by_secret: Values = {"tls": {"internal": {"enabled": True, "existingSecret": "mine"}}}
    assert {kind for kind, _ in taken_away(by_secret)} == {"Lease"}


@pytest.mark.parametrize(("values", "cluster"), [({}, "popwheel"), (NAMED, "orders")])
def test_one_label_selects_what_is_left(values: Values, cluster: str) -> None:
    """The controllers put it on all that they make; volumes have it from the chart."""
    chart = RenderedChart(values)
    for made in chart.of_kind("StatefulSet"):
        for claim in made["spec"].get("volumeClaimTemplates", []):
            assert claim["metadata"]["labels"][OF_CLUSTER] == cluster_label(cluster)
    assert f"delete popwheel,secrets,configmaps,pvc -l {OF_CLUSTER}={cluster}\n" in chart.notes
    assert all("popwheel" in definition(kind)["spec"]["names"]["categories"] for kind in OURS)


@pytest.mark.parametrize("persistence", [{"enabled": False}, {"retention": {"whenDeleted": "Delete"}}])
def test_who_keeps_no_volumes_is_notified_what_is_left_of_them(persistence: Values) -> None:
    assert "takes all messages along" in RenderedChart({"broker": {"persistence": persistence}}).notes
    assert "takes all messages along" not in RenderedChart().notes
