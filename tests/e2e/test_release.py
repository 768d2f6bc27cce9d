"""The chart as `helm install` leaves it on a real cluster."""

import json
from subprocess import SubprocessError

import pytest

from tests.e2e.conftest import VALUES
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


ENDS = """
import sys, time, urllib.request
for line in urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode().splitlines():
    if line.startswith("popwheel_certificate_expires_seconds{") and 'use="services"' in line:
        print(time.time() + float(line.split()[1]))
"""
"""Says when the certificate between the services ends, in seconds since 1970."""

PORTS = {"broker": "8090", "controller": "8080", "proxy": "8091"}


def ends_of_certificates(release: Release) -> dict[str, float]:
    """When the certificate between the services that is in force ends, in seconds since 1970, by pod."""
    found = {}
    for component, port in PORTS.items():
        for pod in release.pods(component):
            name = pod["metadata"]["name"]
            found[name] = float(release.kubectl("exec", name, "--", "python3", "-c", ENDS, port))
    return found


def test_a_new_certificate_is_taken_over_without_a_restart(release: Release) -> None:
    if not any("tls.internal.enabled=true" in word for word in VALUES):
        pytest.skip('needs VALUES="--set tls.internal.enabled=true"')
    before = ends_of_certificates(release)
    restarts = {name: release.restarts_of(name) for name in before}
    release.pause(5)  # so that the next one ends later by more than what clocks and rounding make of it
    removed = '[{"op": "remove", "path": "/data/tls.crt"}]'
    release.kubectl("patch", "secret", f"{release.prefix}-internal-tls", "--type=json", "-p", removed)
    release.kubectl("create", "job", f"--from=cronjob/{release.prefix}-certificates", "renew")
    release.kubectl("wait", "--for=condition=Complete", "job/renew", "--timeout=120s")
    release.kubectl("delete", "job", "renew")

    def taken_over() -> bool:
        now = ends_of_certificates(release)
        return now.keys() == before.keys() and all(now[name] > before[name] + 3 for name in now)

    release.wait_until(taken_over, 300, "the new certificate in force everywhere")
    assert {name: release.restarts_of(name) for name in before} == restarts
    release.test()
    release.kubectl("delete", "pod", release.master_pod())  # its next one has to connect anew to everybody
    release.wait_until_whole()
    release.test()


def test_topics_and_groups_are_resources_both_ways(release: Release) -> None:
    def is_there(name: str) -> bool:
        return f'"{name}"' in release.admin("topic", "list", "-o", "json")

    declared = {
        "apiVersion": "popwheel.io/v1",
        "kind": "Topic",
        "metadata": {"name": "declared"},
        "spec": {"topicName": "Declared_1", "type": "FIFO", "queues": 4, "deletionPolicy": "Delete"},
    }
    group = {"apiVersion": "popwheel.io/v1", "kind": "ConsumerGroup", "metadata": {"name": "declared"}}
    release.kubectl(
        "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": [declared, group]}).encode()
    )
    for kind in ("topics.popwheel.io", "consumergroups.popwheel.io"):
        release.kubectl("wait", "--for=condition=Ready", f"{kind}/declared", "--timeout=60s")
    assert is_there("Declared_1")
    for kind, change, words in (
        ("topics", '{"type": "NORMAL"}', "a topic keeps its type"),
        ("topics", '{"queues": 8}', "a topic keeps its queues"),
        ("topics", '{"topicName": "Other"}', "a topic keeps its name"),
        ("topics", '{"topicName": "rmq_sys_x"}', "the system's own"),
        ("consumergroups", '{"maxAttempts": 3}', "a group keeps what it was made with"),
        ("consumergroups", '{"fifo": true}', "a group keeps what it was made with"),
        ("consumergroups", '{"backoffMs": [1]}', "a group keeps what it was made with"),
        ("consumergroups", '{"groupName": "Other"}', "a group keeps its name"),
    ):
        with pytest.raises(SubprocessError, match=words):
            release.kubectl("patch", f"{kind}.popwheel.io/declared", "--type=merge", "-p", f'{{"spec": {change}}}')
    release.kubectl("delete", "topics.popwheel.io/declared", "--timeout=60s")
    assert not is_there("Declared_1")
    release.make_topic("Made-otherwise", "NORMAL", 4)

    def shown() -> list[str]:
        found = release.get("topics.popwheel.io", "-l", "popwheel.io/shown")["items"]
        return [each["metadata"]["name"] for each in found if each["spec"]["topicName"] == "Made-otherwise"]

    release.wait_until(lambda: len(shown()) == 1, 30, "the topic's resource")
    (name,) = shown()
    release.kubectl("wait", "--for=condition=Ready", f"topics.popwheel.io/{name}", "--timeout=60s")
    release.kubectl("delete", f"topics.popwheel.io/{name}", "--timeout=60s")
    release.wait_until(lambda: shown() == [name], 30, "the same resource again")
    assert is_there("Made-otherwise")
    policy = json.dumps({"spec": {"deletionPolicy": "Delete"}})
    release.kubectl("patch", f"topics.popwheel.io/{name}", "--type=merge", "-p", policy)
    held = "--for=jsonpath={.metadata.finalizers[0]}=popwheel.io/held"
    release.kubectl("wait", held, f"topics.popwheel.io/{name}", "--timeout=60s")
    release.kubectl("delete", f"topics.popwheel.io/{name}", "--timeout=60s")
    assert not is_there("Made-otherwise") and not shown()
    release.kubectl("delete", "consumergroups.popwheel.io/declared", "--timeout=60s")
    assert '"declared"' in release.admin("group", "list", "-o", "json")
    release.admin("group", "delete", "declared")


def test_an_uninstall_leaves_data_that_the_next_install_takes_up_and_one_command_deletes(release: Release) -> None:
    """The last one: it takes the release away, and brings another one."""
    kept = ("persistentvolumeclaim", "secret/popwheel-receipt-key")
    of_data = "popwheel,secrets,pvc", "-l", "popwheel.io/cluster=popwheel"
    release.make_topic("Kept", "NORMAL", 2)
    epoch = release.group().epoch
    release.uninstall()
    left = release.left()
    assert [each for each in left if ".popwheel.io/" not in each and not each.startswith(kept)] == []
    assert sum(each.startswith("persistentvolumeclaim/") for each in left) == release.replicas
    release.install()
    release.wait_until_whole()
    assert '"Kept"' in release.admin("topic", "list", "-o", "json")
    assert release.group().epoch > epoch
    release.test()

    release.uninstall()
    release.kubectl("delete", *of_data, "--timeout=60s")
    assert release.left() == []
    release.install()
    release.wait_until_whole()
    assert '"Kept"' not in release.admin("topic", "list", "-o", "json")
