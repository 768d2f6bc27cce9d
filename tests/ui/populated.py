"""A cluster of two broker groups with two replicas each, and the official client that has filled it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.cluster import ClusterCommand
from tests.harness.standalone import ROOT
from tests.ui.known import GROUPS, TYPES, Known

SETTINGS: Final = (
    *("--set", "proxy.receive.invisible_ms_min=1000"),
    *("--set", "broker.transaction.first_check_ms=600000"),
)
"""A message may come again, and be dead, after a second; a transaction that is open stays so."""

WORDS: Final = ("--groups", "2", "--replicas", "2", "--proxies", "2", *SETTINGS)
"""Of the cluster's command line."""


@dataclass(frozen=True, slots=True)
class Populated:
    """A server with something on each page.

    Args:
        url: of the console, at the controller that leads.
        cluster: its processes; None: a standalone server.
        known: what the client knows.
    """

    url: str
    cluster: ClusterCommand | None
    known: Known


@contextmanager
def populated_cluster(folder: Path, *words: str) -> Iterator[Populated]:
    """Start a cluster and fill it; the client holds on until the end.

    Args:
        folder: for data and logs.
        words: more of the cluster's command line.
    """
    with ClusterCommand(folder, *WORDS, *words) as cluster:
        leader = next(url for url in consoles(cluster) if cluster.page(f"{url}/api/v1/cluster")[0] == 200)
        endpoint = next(row[0] for name, row in cluster.rows().items() if name.startswith("proxy"))
        with filled(leader, endpoint, folder) as known:
            yield Populated(leader, cluster, known)


def consoles(cluster: ClusterCommand) -> list[str]:
    """Where its controllers serve pages."""
    return [row[1] for name, row in cluster.rows().items() if name.startswith("controller")]


@contextmanager
def filled(url: str, endpoint: str, folder: Path, *, is_plain: bool = False) -> Iterator[Known]:
    """Make topics and groups, and have the client work.

    Args:
        url: of the admin API.
        endpoint: of a proxy.
        folder: the client's home, where it writes its log.
        is_plain: send nothing hostile.
    """
    for name, kind in TYPES.items():
        ask(url, "/topics", {"name": name, "type": kind, **({} if kind == "LITE" else {"queues": 2})})
    for name, facts in GROUPS.items():
        ask(url, "/groups", {"name": name, **facts})
    words = [sys.executable, "-m", "tests.ui.official_client", endpoint, *["plain"] * is_plain]
    with (folder / "client-errors").open("w+") as errors:
        client = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert client.stdin is not None and client.stdout is not None
        try:
            line = client.stdout.readline()
            errors.seek(0)
            assert line, f"the client has failed:\n{errors.read()[-4000:]}"
            yield Known.of(json.loads(line))
        finally:
            client.stdin.close()
            try:
                client.wait(15)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
            client.stdout.close()


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What a route of the admin API answers: a POST if there is a body.

    Raises:
        AssertionError: it refuses; the text says why.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api/v1{path}", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from error
