"""The official client at work in a pod beside a release, and what it told."""

import json
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from popwheel_cli.drills.account import Account, Verdict, longest_gap
from tests.harness.client_events import ClientEvents
from tests.harness.release import Release
from tests.harness.standalone import ROOT

CLIENT = "rocketmq-python-client==5.1.2"
TOPICS = (
    ("FailoverOrdered", "NORMAL", 1),
    ("FailoverSpread", "NORMAL", 8),
    ("FailoverLater", "DELAY", 8),
    ("FailoverIdle", "NORMAL", 8),
)
POLL_S = 10
SEND_EVERY_S = 0.2
FOLDER = ROOT / "build" / "drills"
"""Where all that it told is kept, one file a drill."""

_POD = "popwheel-recorder"
_PROGRAM = ROOT / "tests" / "interop" / "failover_client.py"
_FLOW_S_MAX = 90.0
_DRAIN_S_MAX = 60.0
"""Twice the invisible duration of the load, the detection time, and some more, as in `popwheel_cli.drills.drill`."""
_QUIET_S = 1.0

# Its output stays in the pod, so that nothing is missed while the API server is away.
_SCRIPT = f"""
export HOME=/work PYTHONPATH=/work/lib PYTHONDONTWRITEBYTECODE=1
python3 -c 'import rocketmq' 2>/dev/null || python3 -m pip install --quiet --target /work/lib {CLIENT} || exit 1
mkfifo /work/orders
exec 3<>/work/orders
python3 /program/client.py "$0" "$1" {POLL_S} {SEND_EVERY_S} <&3 >/work/events 2>/work/errors
"""


class Recorder:
    """Sends and receives through the proxies' Service; use as a context manager.

    Args:
        release: what is struck.
        name: what its messages begin with: another one each time.
        image: with Python 3; the client is installed there if it is missing.
        endpoint: where it calls; the Service if not given.
        not_on: nodes on which it must not run.
        keepalive: whether it asks its proxy for signs of life, as docs/use/clients.md advises.
    """

    def __init__(
        self,
        release: Release,
        name: str,
        image: str,
        endpoint: str = "",
        not_on: Sequence[str] = (),
        *,
        keepalive: bool = False,
    ) -> None:
        self._release = release
        self._name = name
        self._image = image
        self._endpoint = endpoint or f"{release.prefix}-proxy:8081"
        self._not_on = not_on
        self._keepalive = keepalive
        self._events = ClientEvents(name)

    @property
    def account(self) -> Account:
        """What it told, as far as it was read."""
        return self._events.account

    def read(self) -> None:
        """Take in what it has told since the last time."""
        output = self._release.read(_POD, "/work/events", self._events.read_bytes)
        before = self._events.read_bytes
        self._events.feed(output)
        with (FOLDER / f"{self._name}.events").open("ab") as file:
            file.write(output[: self._events.read_bytes - before])

    def flows(self, more: int = 20) -> None:
        """Wait until `more` messages beyond those that were read of were sent, and as many came and were acked."""
        account = self.account
        sent, acked = account.sent_count + more, account.acked_count + more

        def enough() -> bool:
            try:
                self.read()
            except subprocess.SubprocessError:
                return False  # the pod has not begun
            return account.sent_count >= sent and account.acked_count >= acked

        self._release.wait_until(enough, _FLOW_S_MAX, "traffic", lambda: f"{account.failures[-3:]} {self._errors()}")

    def settle(self) -> Verdict:
        """Send no more, wait until all has come and a little longer; and what the account says."""
        self._release.kubectl("exec", _POD, "--", "sh", "-c", "echo quiet > /work/orders")

        def all_came() -> bool:
            self.read()
            return self._events.quiet and not self.account.owed

        until = time.monotonic() + _DRAIN_S_MAX
        while not all_came() and time.monotonic() < until:  # if not in time, the verdict names what is missing
            time.sleep(_QUIET_S)
        time.sleep(_QUIET_S)
        self.read()
        return self.account.verdict()

    def without_s(self, times: list[float], since: int) -> float:
        """The longest time between two of some events, from an earlier count of them on."""
        after = times[max(0, since - 1) :]
        return longest_gap(after, after[0], after[-1]) if len(after) > 1 else 0.0

    def longest_of_one_sender_s(self) -> float:
        """The longest time that one of its senders was without an answered send."""
        times: dict[str, list[float]] = {}
        for line in (FOLDER / f"{self._name}.events").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "sent":
                times.setdefault(event["body"].rpartition("-")[0], []).append(event["at"])
        return max((longest_gap(each, each[0], each[-1]) for each in times.values()), default=0.0)

    def _errors(self) -> str:
        try:
            return self._release.read(_POD, "/work/errors", 0).decode()[-1000:]
        except subprocess.SubprocessError as error:
            return str(error)

    def _pod(self) -> dict[str, Any]:
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        apart = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(self._not_on)}
        affinity = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [apart]}]}
            }
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _POD},
            "spec": {
                "restartPolicy": "Never",
                # Not 0: then it is gone at once by its name, and the next of this name may be read while it still runs.
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                **({"affinity": affinity} if self._not_on else {}),
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10002,
                    "fsGroup": 10002,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "recorder",
                        "image": self._image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sh", "-c", _SCRIPT, self._endpoint, self._name],
                        "env": [{"name": "KEEPALIVE", "value": "yes"}] if self._keepalive else [],
                        "securityContext": security,
                        # Without a request it would stand still whenever another pod of its node begins.
                        "resources": {"requests": {"cpu": "500m", "memory": "128Mi"}},
                        "volumeMounts": [
                            {"name": "program", "mountPath": "/program"},
                            {"name": "work", "mountPath": "/work"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "program", "configMap": {"name": _POD}},
                    {"name": "work", "emptyDir": {}},
                ],
            },
        }

    def __enter__(self) -> Self:
        release = self._release
        FOLDER.mkdir(parents=True, exist_ok=True)
        release.kubectl("delete", "pod,configmap", _POD, "--ignore-not-found")
        release.kubectl("create", "configmap", _POD, f"--from-file=client.py={_PROGRAM}")
        release.kubectl("create", "-f", "-", given=json.dumps(self._pod()).encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"{self.account.failures[-10:]}\n{self.account.verdict().explain()}\n{self._errors()}")
        self._release.kubectl("delete", "pod,configmap", _POD, "--ignore-not-found")
