"""`popwheel cluster` as a server that is measured, and what its processes say of themselves."""

import asyncio
import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.server import Server, first_send
from tests.harness.cluster import ClusterCommand

_BROKER_PATH = "/popwheel.v1.Broker/"


class ClusterServer:
    """A cluster of processes of its own, started without data.

    Args:
        name: of the server in figures.
        folder: for its data and its logs.
        flush: the value of `broker.flush`.
        groups: broker groups.
        replicas: brokers of each.
        proxies: proxies.
        workers: of each proxy.
        settings: further settings, `key=value`.
        way: what chooses it beside the flush on the bench's own command line.
        forks: as in `Scale`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        flush: str,
        *,
        groups: int,
        replicas: int = 1,
        proxies: int = 1,
        workers: int = 1,
        settings: Sequence[str] = (),
        way: str = "",
        forks: bool = False,
    ) -> None:
        self.name = name
        self.replicas = replicas
        self.words = f"--flush {flush} --way {way}" if way else f"--flush {flush}"
        self._folder = folder / f"cluster-{name}"
        brokers = ("--groups", str(groups), "--replicas", str(replicas))
        shape = (*brokers, "--proxies", str(proxies), "--proxy-workers", str(workers))
        given = [word for setting in (f"broker.flush={flush}", *settings) for word in ("--set", setting)]
        self._shape = (*shape, *given)
        self._forks = forks
        self._command: ClusterCommand | None = None
        self._pids: dict[str, list[int]] = {}
        self._pages: dict[str, str] = {}
        self.addresses: list[str] = []

    @property
    def address(self) -> str:
        """`host:port` of the first proxy."""
        return self.addresses[0]

    @property
    def pids(self) -> Sequence[int]:
        """Return all of its processes, the parent too."""
        return self._pids["all"]

    @property
    def proxy_pids(self) -> Sequence[int]:
        """The proxies, or their workers."""
        return self._pids["proxy"]

    @property
    def broker_pids(self) -> Sequence[int]:
        """The brokers."""
        return self._pids["broker"]

    async def start(self) -> None:
        """Start it; returns when a first send was answered with OK."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        command = self._command = ClusterCommand(self._folder, *self._shape, loads_itself=not self._forks)
        await asyncio.to_thread(command.start)
        rows = command.rows()
        self.addresses = [row[0] for name, row in rows.items() if name.startswith("proxy-")]
        self._pages = {name: row[1] for name, row in rows.items()}
        for address in self.addresses:
            await first_send(address)
        members = (await asyncio.to_thread(command.status)).values()
        self._pids = {kind: [each["pid"] for each in members if each["kind"] == kind] for kind in ("proxy", "broker")}
        self._pids["all"] = command.pids()

    async def stop(self) -> None:
        """End it as Ctrl-C does, and take its data away."""
        if self._command is not None:
            command, self._command = self._command, None
            command.interrupt()
            # The proxies wait for their clients to go, and those go only if this process's loop runs on.
            await asyncio.to_thread(command.wait)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def metric(self, kind: str, name: str) -> float:
        """The sum of a metric over all processes of a kind, and all labels."""
        pages = await asyncio.gather(
            *(asyncio.to_thread(_read, page) for process, page in self._pages.items() if process.startswith(kind))
        )
        return sum(value for page in pages for (found, _), value in page.items() if found == name)

    async def broker_calls(self) -> dict[str, float]:
        """Return the number of calls that the brokers have answered, by method: `Pop`, `Put` ...; streams that are open
        do not count.
        """
        calls: dict[str, float] = {}
        for process, page in self._pages.items():
            if process.startswith("broker-"):
                for (name, path), value in (await asyncio.to_thread(_read, page)).items():
                    if name == "popwheel_rpc_calls_total" and path.startswith(_BROKER_PATH):
                        method = path.removeprefix(_BROKER_PATH)
                        calls[method] = calls.get(method, 0.0) + value
        return calls

    def group(self, name: str) -> dict[str, Any]:
        """A broker group as the controller shows it."""
        return self._api("GET", f"/brokers/{name}")

    def post(self, path: str) -> dict[str, Any]:
        """Ask something of the admin API."""
        return self._api("POST", path)

    def kill_master(self, group: str) -> None:
        """Kill the master of a broker group as kill -9 does."""
        master = self.group(group)["master"]
        (pid,) = (
            one["pid"]
            for one in self._api("GET", "/cluster/status")["processes"]
            if (one["kind"], one["name"], one["replica"]) == ("broker", group, master)
        )
        os.kill(pid, signal.SIGKILL)

    def _api(self, method: str, path: str) -> dict[str, Any]:
        assert self._command is not None
        request = urllib.request.Request(
            f"{self._command.url}/api/v1{path}",
            data=b"{}" if method == "POST" else None,
            headers={"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def own_cluster(server: Server) -> ClusterServer:
    """A server as a cluster that was started here.

    Raises:
        TypeError: it was not.
    """
    if not isinstance(server, ClusterServer):
        raise TypeError(f"{server.name} is no cluster that was started here")
    return server


def _read(page: str) -> dict[tuple[str, str], float]:
    """Return all values of a page of metrics, by name and the label `path`, others added up."""
    with urllib.request.urlopen(f"{page}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, sample.labels.get("path", ""))
            values[key] = values.get(key, 0.0) + sample.value
    return values
