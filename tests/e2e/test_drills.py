"""What docs/operate/failures.md does by hand: kubectl against a release under load. Nothing is lost or comes twice."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.drill import Bill, drill
from tests.harness.release import GROUP, Release

pytestmark = pytest.mark.timeout(900)

HAND_OVER_S_MAX = 5.0
"""A master that is asked to end passes its role on: some ten milliseconds, more on a busy machine."""
FAILOVER_S_MAX = 10.0
"""A master that dies, hangs or is cut off: detection, election, promotion, and the client's next try."""
LOST_PROXY_S_MAX = 25.0
"""A client that asks for signs of life: 10 s and 5 s, and the time to connect to another proxy."""
LOST_PROXY_S_MAX_OF_ONE = 70.0
"""Its new connections may go to the lost proxy again, until Kubernetes has noticed."""
API_AWAY_S = 60.0
CUT_S = 60.0
LOST_S = 120.0
"""A node that is lost: Kubernetes notices after some 50 s, and replaces its proxy after 30 s more."""

KILL = "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))"
"""The kernel protects process 1 of a container from signals from inside; past its limit of CPU it kills it."""

Run = Callable[..., Bill]


@pytest.fixture
def run(release: Release, bills: list[Bill]) -> Run:
    """Does a drill and notes its bill."""

    def noted(name: str, strike: Callable[[], None], **how: Any) -> Bill:
        bills.append(drill(name, release, strike, **how))
        return bills[-1]

    return noted


def hook(name: str) -> str:
    """A command that makes or mends a failure which kubectl can't make."""
    command = os.environ.get(name)
    if not command:
        pytest.skip(f"needs a command of your test bed in {name}")
    return command


def test_deleting_the_pod_of_a_master(release: Release, run: Run) -> None:
    bill = run("delete master pod", lambda: release.kubectl("delete", "pod", release.master_pod()))
    assert bill.epochs == 1
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_killing_a_master(release: Release, run: Run) -> None:
    def strike() -> None:
        pod = release.master_pod()
        restarts = release.restarts_of(pod)
        release.kubectl("exec", pod, "--", "python3", "-c", KILL)
        release.wait_until(lambda: release.restarts_of(pod) > restarts, 60, "the container to be started again")

    bill = run("kill -9 in master pod", strike)
    assert bill.epochs == 1
    assert bill.without_send_s < FAILOVER_S_MAX + bill.usual_s


def test_draining_one_node_after_the_other(release: Release, run: Run) -> None:
    def strike() -> None:
        for node in sorted({pod["spec"]["nodeName"] for pod in release.pods()}):
            try:
                release.kubectl(
                    *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"),
                    f"--pod-selector={release.selector}",
                )
            finally:
                release.kubectl("uncordon", node)

    bill = run("drain every node", strike)
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_rolling_the_brokers(release: Release, run: Run) -> None:
    """The second pod goes when the first is ready, which may be before it is in sync."""

    def strike() -> None:
        release.kubectl("rollout", "restart", f"statefulset/{GROUP}")
        release.kubectl("rollout", "status", f"statefulset/{GROUP}", "--timeout=240s")

    bill = run("roll the brokers", strike)
    assert bill.epochs <= 2
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_scaling_a_group(release: Release, run: Run) -> None:
    """To three, to one at one blow, and back."""

    def strike() -> None:
        for count in (3, 1, 2):
            release.kubectl("scale", f"statefulset/{GROUP}", f"--replicas={count}")
            release.replicas = count
            release.wait_until_whole()
        release.admin("broker", "forget", GROUP, "--replica", "2", "--yes")

    bill = run("scale to 3, 1, 2", strike)
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_deleting_each_controller(release: Release, run: Run) -> None:
    def strike() -> None:
        for number in (0, 1):
            release.kubectl("delete", "pod", f"{release.prefix}-controller-{number}")
            release.wait_until_whole()

    bill = run("delete controllers", strike)
    assert bill.epochs == 0
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_deleting_each_proxy_under_long_polls(release: Release, run: Run) -> None:
    def strike() -> None:
        for pod in release.pods("proxy"):
            release.kubectl("delete", "pod", pod["metadata"]["name"])
            release.wait_until_whole()

    bill = run("delete proxies", strike)
    assert not bill.errors
    assert bill.epochs == 0


def test_rolling_the_proxies_under_long_polls(release: Release, run: Run) -> None:
    def strike() -> None:
        release.kubectl("rollout", "restart", f"deployment/{release.prefix}-proxy")
        release.kubectl("rollout", "status", f"deployment/{release.prefix}-proxy", "--timeout=240s")

    bill = run("roll the proxies", strike)
    assert not bill.errors
    assert bill.epochs == 0


def test_rolling_the_release_to_a_new_version(release: Release, run: Run) -> None:
    """To the image NEXT_IMAGE; without one to the same with other annotations."""
    image = os.environ.get("NEXT_IMAGE")

    def strike() -> None:
        if image:
            release.image = image
            release.install()
        else:
            for service in ("proxy", "broker", "controller"):
                words.extend(("--set-string", f"{service}.podAnnotations.popwheel\\.io/roll={time.time()}"))
            release.install(*words)

    words: list[str] = []
    before = release.images()
    bill = run("roll the release", strike)
    after = release.images()
    assert after.keys() - before.keys(), "the proxies are other pods, or nothing was rolled"
    if image:
        assert {each.named for each in after.values()} == {image}
        assert not {each.digest for each in after.values()} & {each.digest for each in before.values()}, (
            f"what runs is the image of before: {image} must hold something else"
        )
    assert not bill.errors
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_losing_the_api_server_for_a_minute(release: Release, run: Run) -> None:
    freeze, thaw = hook("FREEZE"), hook("THAW")

    def strike() -> None:
        release.hook(freeze)
        try:
            release.pause(API_AWAY_S)
        finally:
            release.hook(thaw)

    bill = run("no API server for 60 s", strike)
    assert bill.epochs == 0
    assert bill.without_send_s < HAND_OVER_S_MAX + bill.usual_s


def test_cutting_the_node_of_a_master_off(release: Release, run: Run) -> None:
    """Its pod runs on and takes itself for the master; nothing that it says counts."""
    cut, join = hook("CUT"), hook("JOIN")
    release.wait_until_whole()
    node = release.node_of(release.master_pod())
    proxies = [pod for pod in release.pods("proxy") if pod["spec"]["nodeName"] != node]
    if not proxies:
        pytest.skip(f"all proxies run on {node}, with the master")

    def strike() -> None:
        release.hook(f"{cut} {node}")
        try:
            release.pause(CUT_S)
        finally:
            release.hook(f"{join} {node}")

    endpoint = f"{proxies[0]['status']['podIP']}:8081"
    bill = run("cut master's node 60 s", strike, endpoint=endpoint, not_on=[node])
    assert bill.epochs >= 1
    assert bill.without_send_s < FAILOVER_S_MAX + bill.usual_s


@pytest.mark.parametrize("client", ["elsewhere", "there"])
def test_losing_the_node_of_a_proxy(release: Release, run: Run, client: str) -> None:
    """Power off: the ends of its connections are never notified. The proxy is made anew on another node meanwhile.

    The client whose proxy it is asks for signs of life. One that does not hangs for as long as its kernel tries.
    """
    kill, start = hook("KILL"), hook("START")
    release.scale_proxies(1)
    (first,) = release.pods("proxy")
    lost: list[str] = []
    replaced_s: list[float] = []

    def connected() -> None:
        """All connections of the client go to the first proxy: there was no other."""
        release.scale_proxies(2)
        (second,) = (pod for pod in release.pods("proxy") if pod["metadata"]["name"] != first["metadata"]["name"])
        lost.append((first if client == "there" else second)["spec"]["nodeName"])
        if first["spec"]["nodeName"] == second["spec"]["nodeName"]:
            pytest.skip("both proxies run on one node")
        if release.get("pod", "popwheel-recorder")["spec"]["nodeName"] == lost[0]:
            pytest.skip("the client runs on the node that is to be lost")
        release.lead_elsewhere(lost[0])

    def strike() -> None:
        began = time.monotonic()
        release.hook(f"{kill} {lost[0]}")
        try:
            while time.monotonic() - began < LOST_S:
                release.pause(1)
                if not replaced_s and release.proxies_ready(lost[0]) >= 2:
                    replaced_s.append(time.monotonic() - began)
        finally:
            release.hook(f"{start} {lost[0]}")

    is_there = client == "there"
    on = [first["spec"]["nodeName"]] if is_there else []
    bill = run(
        f"lose a proxy, client {client}",
        strike,
        ready=connected,
        not_on=on,
        keepalive=is_there,
        client_sends_again=is_there,
    )
    print(f"a proxy in its place after {replaced_s} s")
    assert replaced_s, "the proxy was not made anew on another node"
    if is_there:
        assert bill.without_send_s < LOST_PROXY_S_MAX + bill.usual_s
        assert bill.one_sender_s < LOST_PROXY_S_MAX_OF_ONE + bill.usual_s
    else:
        assert bill.without_send_s < FAILOVER_S_MAX + bill.usual_s
