"""A cluster with replicas that are killed, paused and cut apart, and the official client at work on it meanwhile."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from popwheel_cli.drills.account import Verdict
from popwheel_cli.drills.links import LinksClient
from popwheel_cli.drills.relay import CUT, Passage
from tests.harness.client_events import ClientEvents
from tests.harness.cluster import ClusterCommand
from tests.harness.programs import run_popwheel
from tests.harness.standalone import ROOT

GROUP = "broker-0"
TOPICS = (("FailoverOrdered", "NORMAL", 1), ("FailoverSpread", "NORMAL", 8), ("FailoverLater", "DELAY", 8))
CONTROLLER = "controller"
POLL_MS_MIN = 1000
"""So that the polls of the load, which are short in order that it ends soon, wait for messages."""

_POLL_S = 0.05
_HEALTHY_S_MAX = 40.0
_FLOW_S_MAX = 30.0
_DRAIN_S_MAX = 45.0
"""Twice the invisible duration of the load, the detection time, and some more, as in `popwheel_cli.drills.drill`."""
_QUIET_S = 1.0


class ReplicatedCluster:
    """One broker group of several replicas, with relays. Use as a context manager.

    Args:
        folder: for data and output.
        words: more words for its command line.
        replicas: of the group.
        controllers: how many.
    """

    def __init__(self, folder: Path, *words: str, replicas: int = 2, controllers: int = 1) -> None:
        self.command = ClusterCommand(
            folder,
            *("--groups", "1", "--replicas", str(replicas), "--controllers", str(controllers), "--proxies", "1"),
            "--relays",
            *("--set", f"proxy.grpc_client_consumer_min_long_polling_timeout_ms={POLL_MS_MIN}"),
            *("--set", "children.silence_ms_max=600000"),  # tests stop replicas for longer, on purpose
            *words,
        )
        self.links = LinksClient(self.command.data_dir)
        self._replicas = replicas
        self._controllers = controllers

    @property
    def address(self) -> str:
        """Where clients are served."""
        return self.command.rows()["proxy-0"][0]

    def group(self) -> dict[str, Any] | None:
        """The broker group as the controller that leads shows it; None while none answers."""
        return self._ask_leader()[1]

    @property
    def leading_controller(self) -> str:
        """The name of the controller that leads."""
        return self._ask_leader()[0]

    def _ask_leader(self) -> tuple[str, dict[str, Any] | None]:
        for name, row in self.command.rows().items():
            if name.startswith(CONTROLLER):
                code, text = self.command.page(f"{row[1]}/api/v1/brokers/{GROUP}")
                if code == 200:
                    return name, dict(json.loads(text))
        return "", None

    @property
    def healthy(self) -> bool:
        """Whether there is a master, and all replicas are in sync with it."""
        group = self.group()
        return group is not None and group["master"] is not None and len(group["sync_state_set"]) == self._replicas

    async def wait_until_healthy(self) -> dict[str, Any]:
        """Wait for that; the group then."""
        await self.wait_until(lambda: self.healthy, _HEALTHY_S_MAX, "all replicas in sync")
        group = self.group()
        assert group is not None
        return group

    async def wait_for_epoch_after(self, epoch: int) -> dict[str, Any]:
        """Wait until a later epoch has a master; the group then."""
        found: list[dict[str, Any]] = []

        def later() -> bool:
            group = self.group()
            if group is None or group["epoch"] <= epoch or group["master"] is None:
                return False
            found.append(group)
            return True

        await self.wait_until(later, _HEALTHY_S_MAX, f"a master of an epoch after {epoch}")
        return found[-1]

    async def wait_until(self, wanted: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until it is so, while other tasks go on."""
        until = time.monotonic() + timeout_s
        while not await asyncio.to_thread(wanted):
            assert time.monotonic() < until, f"not in {timeout_s:.0f} s: {what}; {self.group()}"
            await asyncio.sleep(_POLL_S)

    def pid(self, name: str) -> int:
        """Number of a process, as the kernel knows it: the controller may be away, or not know it any more."""
        for pid in self.command.pids()[1:]:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if _name_of([word.decode() for word in words], self._replicas, self._controllers) == name:
                return pid
        raise AssertionError(f"no process {name}")

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a process a signal; its number."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def kill_all(self) -> None:
        """Kill all processes but the parent, which starts them again."""
        for pid in self.command.pids()[1:]:
            os.kill(pid, signal.SIGKILL)

    def cut(self, one: str, other: str, passage: Passage = CUT) -> None:
        """Cut two processes apart."""
        self.links.between(one, other, passage)

    def heal(self) -> None:
        """Undo all cuts."""
        self.links.heal()

    def replica(self, number: int) -> str:
        """The name of a replica's process."""
        return f"{GROUP}-{number}"

    async def admin(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Call `popwheel admin`."""
        return await asyncio.to_thread(run_popwheel, ["admin", "--server", self.command.url, *words], timeout_s=120)

    async def make_topics(self) -> None:
        """Make the topics of `FailoverLoad`, if they are not there."""
        for name, kind, queues in TOPICS:
            await self.admin("topic", "create", name, "--type", kind, "--queues", str(queues))

    def __enter__(self) -> Self:
        self.command.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.command.__exit__(kind, error, traceback)


def _name_of(words: list[str], replicas: int, controllers: int) -> str:
    """What the process of a command line is called."""
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    verb = next((word for word in words if word in ("broker", "controller", "proxy")), "")
    match verb:
        case "broker":
            name = str(json.loads(settings["broker.name"]))
            return name if replicas == 1 else f"{name}-{settings['broker.replica']}"
        case "proxy":
            return str(json.loads(settings["proxy.name"]))
        case "controller" if controllers > 1:
            folder = words[words.index("--data-dir") + 1]
            return f"{CONTROLLER}-{folder.rpartition('-')[2] if folder.rpartition('-')[2].isdigit() else 0}"
        case _:
            return verb


class FailoverLoad:
    """`tests.interop.failover_client` at work; use as a context manager.

    Args:
        folder: for its output and its log.
        address: of the proxy.
        name: what its messages begin with: another one for each load on one cluster.
    """

    def __init__(self, folder: Path, address: str, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events = ClientEvents(name)
        self.account = self._events.account
        self._output, self._errors = folder / f"{name}.events", folder / f"{name}.errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.interop.failover_client", address, name],
                cwd=ROOT,
                env={**os.environ, "HOME": str(folder)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )

    def read(self) -> None:
        """Write down what it has told since the last time."""
        with self._output.open("rb") as output:
            output.seek(self._events.read_bytes)
            self._events.feed(output.read())

    async def flows(self, cluster: ReplicatedCluster, more: int = 20) -> None:
        """Wait until a number of messages more were sent, and as many arrived and were acked."""
        self.read()
        account = self.account
        sent, acked = account.sent_count + more, account.acked_count + more

        def enough() -> bool:
            self.read()
            return account.sent_count >= sent and account.acked_count >= acked

        await cluster.wait_until(enough, _FLOW_S_MAX, f"traffic; {account.failures[-5:]}")

    async def settle(self, cluster: ReplicatedCluster) -> Verdict:
        """Send no more, wait until all has come and a little longer, end; and what the account says."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"quiet\n")
        self._process.stdin.flush()

        def all_came() -> bool:
            self.read()
            return self._events.quiet and not self.account.owed

        with contextlib.suppress(AssertionError):  # the verdict names what is missing
            await cluster.wait_until(all_came, _DRAIN_S_MAX, "all that was sent")
        await asyncio.sleep(_QUIET_S)
        self.read()
        return self.account.verdict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20 if error is None else 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if error is not None:
            self.read()
            error.add_note(
                f"failures of the official client: {self.account.failures[-10:]}\n{self.account.verdict().explain()}\n"
                f"{self._errors.read_text()[-2000:]}"
            )
