"""The chart as `helm install` leaves it on a real cluster."""

import json
from subprocess import SubprocessError

import pytest

from tests.e2e.conftest import VALUES
from tests.harness.release import GROUP, Release

pytestmark = pytest.mark.timeout(600)


def test_messages_go_through(release: Release) -> None:
    release.test()


def test_nothing_of_a_healthy_install_is_an_error(release: Release) -> None:
    """Before anything is struck: what a fresh release has logged."""
    for pod in release.pods():
        name = pod["metadata"]["name"]
        wrong = [line for line in release.kubectl("logs", name).splitlines() if _is_error(line)]
        assert wrong == [], name


def _is_error(line: str) -> bool:
    """Return whether a line of a log is an error, or none of ours."""
    try:
        return json.loads(line)["level"] in ("error", "critical")
    except (ValueError, KeyError):
        return bool(line.strip())


def test_the_controllers_may_change_their_own_pods_and_no_others(release: Release) -> None:
    assert release.may("patch", f"pods/{GROUP}-0") and release.may("patch", f"pods/{release.prefix}-controller-1")
    for verb, what in (
        ("patch", "pods/somebody-elses-0"),
        ("patch", f"pods/{release.prefix}-proxy-0"),
        ("delete", f"pods/{GROUP}-0"),
        ("get", "secrets/somebody-elses"),
        ("patch", "statefulsets/somebody-elses"),
        ("create", "pods"),
    ):
        assert not release.may(verb, what), f"{verb} {what}"


def test_events_report_switchovers_and_refusals(release: Release) -> None:
    before = release.group()
    to = next(number for number in before.in_sync if number != before.master)
    for asked in ("9", str(to)):
        release.kubectl("annotate", "--overwrite", "brokergroup", GROUP, f"popwheel.io/switchover-to={asked}")
        release.wait_until(
            lambda: "annotations" not in release.get("brokergroup", GROUP)["metadata"], 30, "an answer to the wish"
        )
    epoch = before.epoch + 1
    wanted = {
        ("SwitchoverRefused", f"NOT_FOUND: {GROUP} has no replica 9; it has 0, 1"),
        ("SwitchedOver", f"{GROUP}-{to} leads {GROUP} in epoch {epoch}, as requested by an annotation"),
        ("Elected", f"{GROUP}-{to} leads in epoch {epoch}"),
    }
    release.wait_until(lambda: wanted <= set(release.group_events()), 30, "events", lambda: str(release.group_events()))
    assert ("Elected", f"{GROUP}-{before.master} leads in epoch {before.epoch}") in release.group_events()
    release.wait_until_whole()


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
        ("topics", '{"topicName": "Other"}', "a topic keeps its name"),
        ("topics", '{"topicName": "rmq_sys_x"}', "the system's own"),
        ("consumergroups", '{"groupName": "Other"}', "a group keeps its name"),
    ):
        with pytest.raises(SubprocessError, match=words):
            release.kubectl("patch", f"{kind}.popwheel.io/declared", "--type=merge", "-p", f'{{"spec": {change}}}')
    for kind, change, status in (
        ("consumergroups", '{"maxAttempts": 3}', "{.status.maxAttempts}=3"),
        ("topics", '{"queues": 8}', '{.status.conditions[?(@.type=="Ready")].reason}=Differs'),  # of FIFO they stay
        ("topics", '{"queues": 4}', '{.status.conditions[?(@.type=="Ready")].reason}=Exists'),
        ("topics", '{"queues": 8, "type": "MIXED"}', "{.status.queues}=8"),
    ):
        release.kubectl("patch", f"{kind}.popwheel.io/declared", "--type=merge", "-p", f'{{"spec": {change}}}')
        release.kubectl("wait", f"--for=jsonpath={status}", f"{kind}.popwheel.io/declared", "--timeout=60s")
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
    release.admin("group", "delete", "declared", "--yes")


def test_a_group_that_a_failed_upgrade_left_is_named(release: Release) -> None:
    """Helm forgets it, and it goes on: an upgrade back to the values of before says so."""
    left = "left-over"
    with pytest.raises(SubprocessError, match="UPGRADE FAILED"):
        release.install(
            *("--set", f"broker.groups={{{GROUP},{left}}}", "--set", "proxy.resources.requests.cpu=1000"),
            *("--no-hooks", "--timeout", "12s"),
        )
    notes = release.install()
    assert f"NOT IN broker.groups, and here before this upgrade: {left}." in notes
    of_group = "-l", f"app.kubernetes.io/instance={release.name},popwheel.io/group={left}"
    assert len(release.kubectl("get", "statefulset,service,poddisruptionbudget", *of_group, "-o", "name").split()) == 3
    release.kubectl("delete", "statefulset,service,poddisruptionbudget", *of_group)
    release.wait_until(lambda: not release.get("pods", *of_group)["items"], 60, "the end of its pods")

    def forgotten() -> bool:
        try:
            release.admin("broker", "forget", left, "--word", f"forget-all-of-{left}")
        except SubprocessError as error:
            return "no broker group" in str(error) or "NOT_FOUND" in str(error)
        return True

    release.wait_until(forgotten, 60, "the end of the group")
    release.kubectl("delete", "pvc", "-l", f"popwheel.io/group={left}")
    assert "NOT IN" not in release.install()
    release.wait_until_whole()


def test_an_uninstall_leaves_data_that_the_next_install_takes_up_and_one_command_deletes(release: Release) -> None:
    """The last one: it takes the release away, and brings another one."""
    kept = ("persistentvolumeclaim", "secret/popwheel-receipt-key", "configmap/popwheel-changes")
    of_data = "popwheel,secrets,configmaps,pvc", "-l", "popwheel.io/cluster=popwheel"
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
