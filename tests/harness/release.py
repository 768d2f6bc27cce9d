"""A release of the chart on whatever cluster KUBECONFIG names, seen and changed by kubectl and helm."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.harness.standalone import ROOT

GROUP = "broker-a"
CHART = ROOT / "helm" / "popwheel"

_KINDS = (
    *("all", "configmaps", "secrets", "persistentvolumeclaims", "serviceaccounts", "roles", "rolebindings", "leases"),
    *("networkpolicies", "poddisruptionbudgets", "popwheel"),
)
_OF_KUBERNETES = ("configmap/kube-root-ca.crt", "serviceaccount/default")
_POLL_S = 0.25
_CALL_S_MAX = 300.0
_HELM_WAIT = "7m"
"""Longer than Kubernetes' scheduler leaves a pod alone that a bound claim did not wake: five and a half minutes."""
_ROLL_OUT_S_MAX = 450.0
"""Longer than Helm waits: its own words say what is not ready."""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group, as its resource shows it.

    Args:
        epoch: counts the masters.
        master: number of the replica that leads; None if none does.
        in_sync: the sync-state set.
    """

    epoch: int
    master: int | None
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunningImage:
    """What a container runs.

    Args:
        named: as its pod asks for it.
        digest: of what the node took for that.
    """

    named: str
    digest: str


class Release:
    """One release in one namespace, with one broker group.

    Args:
        namespace: it is made if it is not there.
        name: of the release; the labels of its pods bear it.
        image: repository:tag of what is rolled out.
        replicas: of the broker group.
        proxies: how many.
        words: more of them for Helm, each time.
    """

    def __init__(
        self, namespace: str, name: str, image: str, replicas: int = 2, proxies: int = 2, words: Sequence[str] = ()
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.replicas = replicas
        self.proxies = proxies
        self.prefix = name if "popwheel" in name else f"{name}-popwheel"
        self.selector = f"app.kubernetes.io/instance={name}"
        self.image = image
        """What the next `install` rolls out."""
        self._words = words

    def install(self, *words: str) -> str:
        """Install or upgrade, and wait until all is rolled out; what Helm says then."""
        repository, _, tag = self.image.rpartition(":")
        command = (
            *("helm", "-n", self.namespace, "upgrade", "--install", "--create-namespace", self.name, str(CHART)),
            *("--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}"),
            *("--set", f"broker.groups={{{GROUP}}}", "--set", f"broker.replicas={self.replicas}"),
            *("--set", f"proxy.replicas={self.proxies}", "--wait", "--timeout", _HELM_WAIT, *self._words, *words),
        )
        try:
            return self._run(*command, seconds=_ROLL_OUT_S_MAX).decode()
        except subprocess.SubprocessError as error:
            error.add_note(self.state())
            raise

    def test(self) -> None:
        """See that messages go through, as the chart's own test does."""
        self._run("helm", "-n", self.namespace, "test", self.name, "--timeout", "2m")

    def uninstall(self) -> None:
        """Take it away, and leave what holds data."""
        self._run("helm", "-n", self.namespace, "uninstall", self.name, "--wait")
        self.wait_until(lambda: not self.pods(), 150, "the end of all pods", lambda: str(self.left()))

    def remove_namespace(self) -> None:
        """Take away all that is left. Pods in it would make Kubernetes wait for half of their grace period."""
        self.kubectl("delete", "namespace", self.namespace)

    def left(self) -> list[str]:
        """What there is in the namespace but for what Kubernetes puts into each: `KIND.GROUP/NAME`."""
        found = self.kubectl("get", ",".join(_KINDS), "-o", "name", seconds=60).split()
        return [each for each in found if each not in _OF_KUBERNETES]

    def state(self) -> str:
        """Pods, claims and events, and the logs of pods that are not ready: for whoever asks why a roll-out failed."""
        asked = [
            ("get", "pods,persistentvolumeclaims,brokergroups", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
        ]
        for pod in self.pods():
            if not _is_ready(pod):
                name = pod["metadata"]["name"]
                asked += [("describe", "pod", name), ("logs", name, "--tail=60"), ("logs", name, "--tail=20", "-p")]
        shown = []
        for words in asked:
            try:
                answer = self.kubectl(*words, seconds=30)
            except subprocess.SubprocessError as error:
                answer = str(error)
            shown.append(f"kubectl {' '.join(words)}\n{answer[-6000:]}")
        return "\n".join(shown)

    def kubectl(self, *words: str, given: bytes | None = None, seconds: float = _CALL_S_MAX) -> str:
        """What kubectl says, in the release's namespace."""
        return self._run("kubectl", "-n", self.namespace, *words, given=given, seconds=seconds).decode()

    def get(self, *words: str) -> Object:
        """What `kubectl get` shows."""
        return dict(json.loads(self.kubectl("get", *words, "-o", "json", seconds=30)))

    def read(self, pod: str, path: str, offset: int) -> bytes:
        """A file of a pod, from some byte on; nothing if what came is not all that was sent."""
        script = 'size=$(stat -c %s "$0"); echo $((size - $1)); tail -c +$(($1 + 1)) "$0" | head -c $((size - $1))'
        said = self._run(
            *("kubectl", "-n", self.namespace, "exec", pod, "--", "sh", "-c", script, path, str(offset)), seconds=60
        )
        count, _, contents = said.partition(b"\n")
        return contents if count.isdigit() and len(contents) == int(count) else b""

    def admin(self, *words: str) -> str:
        """What `popwheel admin` says in the first controller's pod."""
        controllers = [f"http://{self.prefix}-controller-{number}.{self.prefix}-controller:8080" for number in (0, 1)]
        command = ("popwheel", "admin", "--server", ",".join(controllers), *words)
        return self.kubectl("exec", f"{self.prefix}-controller-0", "--", *command)

    def make_topic(self, name: str, kind: str, queues: int) -> None:
        """Make a topic, unless it is there."""
        if f'"{name}"' not in self.admin("topic", "list", "-o", "json"):
            self.admin("topic", "create", name, "--type", kind, "--queues", str(queues))

    def may(self, verb: str, what: str) -> bool:
        """Ask the API server for a right of the controllers, such as to `patch` `pods/coredns`."""
        account = f"system:serviceaccount:{self.namespace}:{self.prefix}-controller"
        try:
            return self.kubectl("auth", "can-i", verb, what, f"--as={account}").strip() == "yes"
        except subprocess.SubprocessError:  # kubectl ends with 1 at a no
            return False

    def group_events(self) -> list[tuple[str, str]]:
        """Reasons and messages of the events of the broker groups, in no order."""
        found = self.get("events", "--field-selector", "involvedObject.kind=BrokerGroup")["items"]
        return [(each["reason"], each["message"]) for each in found]

    def group(self) -> Group:
        """The broker group now."""
        for each in self.get("brokergroups")["items"]:
            spec = each["spec"]
            if spec["name"] == GROUP:
                master = spec.get("master", -1)
                return Group(spec["epoch"], None if master < 0 else master, tuple(spec["syncStateSet"]))
        raise AssertionError(f"there is no broker group {GROUP}")

    def pods(self, component: str = "") -> list[Object]:
        """The pods, of one component or of all."""
        selector = self.selector + (f",app.kubernetes.io/component={component}" if component else "")
        return list(self.get("pods", "-l", selector)["items"])

    def scale_proxies(self, count: int) -> None:
        """Scale to that many of them, and wait until the others are gone."""
        self.kubectl("scale", f"deployment/{self.prefix}-proxy", f"--replicas={count}")
        self.proxies = count
        self.wait_until_whole()

    def master_pod(self) -> str:
        """The name of the master's pod."""
        return f"{GROUP}-{self.group().master}"

    def node_of(self, pod: str) -> str:
        """Where a pod runs."""
        return str(self.get("pod", pod)["spec"]["nodeName"])

    def lead_elsewhere(self, node: str) -> None:
        """Move the lead to a master that does not run on some node."""
        if self.node_of(self.master_pod()) != node:
            return
        group = self.group()
        to = next(number for number in group.in_sync if number != group.master)
        self.kubectl("annotate", "brokergroup", GROUP, f"popwheel.io/switchover-to={to}")
        self.wait_until(lambda: self.group().master == to, 30, f"replica {to} leads")
        self.wait_until_whole()

    def proxies_ready(self, but_on: str) -> int:
        """Count the proxies that are ready on other nodes than this."""
        return sum(_is_ready(pod) and pod["spec"]["nodeName"] != but_on for pod in self.pods("proxy"))

    def restarts_of(self, pod: str) -> int:
        """How often its container was started again."""
        return sum(each["restartCount"] for each in self.get("pod", pod)["status"]["containerStatuses"])

    def images(self) -> dict[str, RunningImage]:
        """What the services' containers run, by the pods' names."""
        found = {}
        for component in ("proxy", "broker", "controller"):
            for pod in self.pods(component):
                (container,), (status,) = pod["spec"]["containers"], pod["status"]["containerStatuses"]
                found[pod["metadata"]["name"]] = RunningImage(container["image"], status["imageID"])
        return found

    def why_not_whole(self) -> str:
        """What is missing of all replicas being ready and in sync; empty if nothing is."""
        try:
            group, pods = self.group(), self.pods()
        except (subprocess.SubprocessError, AssertionError) as error:
            return str(error)
        if group.master is None or len(group.in_sync) != self.replicas:
            return str(group)
        wanted = self.replicas + self.proxies + 2
        ready = [pod["metadata"]["name"] for pod in pods if _is_ready(pod)]
        return (
            "" if len(ready) == len(pods) == wanted else f"of {len(pods)} pods, not {wanted}, these are ready: {ready}"
        )

    def wait_until_whole(self, seconds: float = 180) -> None:
        """Wait until nothing is missing."""
        self.wait_until(
            lambda: not self.why_not_whole(),
            seconds,
            "a whole release",
            lambda: f"{self.why_not_whole()}\n{self.state()}",
        )

    def wait_until(
        self, wanted: Callable[[], bool], seconds: float, what: str, why: Callable[[], str] = lambda: ""
    ) -> None:
        """Wait until it is so."""
        until = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < until, f"not in {seconds:.0f} s: {what}; {why()}"
            time.sleep(_POLL_S)

    def hook(self, command: str) -> None:
        """Run a command of whoever asked for the drill."""
        subprocess.run(command, shell=True, check=True, timeout=_CALL_S_MAX)

    def pause(self, seconds: float) -> None:
        """Let a failure last."""
        time.sleep(seconds)

    def _run(self, *command: str, given: bytes | None = None, seconds: float = _CALL_S_MAX) -> bytes:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=seconds)
        if done.returncode:
            raise subprocess.SubprocessError(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")
        return done.stdout


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
