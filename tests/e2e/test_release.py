"""The chart as `helm install` leaves it on a real cluster."""

import pytest

from tests.harness.release import GROUP, Release

pytestmark = pytest.mark.timeout(600)


def test_messages_go_through(release: Release) -> None:
    release.test()


def test_kubectl_shows_who_leads(release: Release) -> None:
    master = release.master_pod()
    pods = release.get("pods", "-l", f"popwheel.io/group={GROUP},popwheel.io/role=master")["items"]
    assert [pod["metadata"]["name"] for pod in pods] == [master]


def test_each_service_has_three_probes(release: Release) -> None:
    for pod in release.pods():
        (container,) = pod["spec"]["containers"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
