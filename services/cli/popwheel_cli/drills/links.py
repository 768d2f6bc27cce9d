"""Relays before the brokers and controllers of a one-machine cluster, so that any two of them can be cut apart.

`popwheel cluster --relays` runs them; `popwheel admin drill partition` and tests control them over a socket in the data
folder: one line of JSON each way.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from popwheel_cli.drills.relay import OPEN, Flow, Passage, Relay
from popwheel_cli.drills.socket_owner import owner_of_port
from popwheel_cli.errors import CommandError

SOCKET = "relays.sock"
"""Name of the socket in the data folder."""

_LINE_BYTES_MAX = 64 * 1024
_ANSWER_S_MAX = 5.0

_logger = structlog.get_logger()


class Links:
    """Relays of a cluster.

    Args:
        folder: where the socket is made.
        pids: numbers of the processes that may be cut off, by name.
    """

    def __init__(self, folder: Path, pids: Callable[[], Mapping[str, int]]) -> None:
        self._folder = folder
        self._pids = pids
        self._relays: dict[str, Relay] = {}
        self._server: asyncio.Server | None = None

    def add(self, name: str, host: str, port: int, target_port: int) -> None:
        """Add a relay before a process.

        Args:
            name: of the process.
            host: where both listen.
            port: of the relay.
            target_port: of the process.
        """
        self._relays[name] = Relay(host, port, host, target_port, self._caller)

    async def start(self) -> None:
        """Listen, everywhere.

        Raises:
            OSError: a port or the socket cannot be had.
        """
        for relay in self._relays.values():
            await relay.start()
        (self._folder / SOCKET).unlink(missing_ok=True)
        with short_path(self._folder) as folder:
            self._server = await asyncio.start_unix_server(self._serve, f"{folder}/{SOCKET}", limit=_LINE_BYTES_MAX)
        (self._folder / SOCKET).chmod(0o600)

    async def stop(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
            (self._folder / SOCKET).unlink(missing_ok=True)
        for relay in self._relays.values():
            await relay.stop()

    def between(self, one: str, other: str, passage: Passage) -> None:
        """Set the passage between two processes, whoever of them calls.

        Args:
            one: its name.
            other: its name.
            passage: `to_server` is from `one` to `other`.

        Raises:
            CommandError: there is no relay before either.
        """
        there = [name for name in (one, other) if name in self._relays]
        if not there or not {one, other} <= self._pids().keys() | self._relays.keys():
            raise CommandError(f"there is no relay between {one} and {other}")
        back = Passage(passage.to_client, passage.to_server, passage.delay_s, passage.refused)
        if other in there:
            self._relays[other].set(passage, one)
        if one in there:
            self._relays[one].set(back, other)

    def heal(self) -> None:
        """Open all."""
        for relay in self._relays.values():
            relay.set(OPEN)

    def _caller(self, port: int) -> str:
        pids = {pid: name for name, pid in self._pids().items()}
        pid = owner_of_port(port, list(pids))
        return "" if pid is None else pids[pid]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(self._obey(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    def _obey(self, line: bytes) -> dict[str, Any]:
        try:
            order = json.loads(line)
            if order.get("heal"):
                self.heal()
                _logger.info("all relays are open")
                return {"names": sorted(self._relays)}
            one, other = map(str, order["between"])
            passage = Passage(
                Flow(order.get("to_server", "open")),
                Flow(order.get("to_client", "open")),
                float(order.get("delay_s", 0.0)),
                bool(order.get("refused", False)),
            )
            self.between(one, other, passage)
        except CommandError as error:
            return {"error": error.format_message()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {"error": f"this is no order for relays: {error!r}"}
        _logger.info("a link is changed", one=one, other=other, passage=str(passage))
        return {"names": sorted(self._relays)}


class LinksClient:
    """Client for the relays of a running cluster.

    Args:
        data_dir: of the cluster.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def between(self, one: str, other: str, passage: Passage) -> None:
        """Set the passage as `Links.between` does.

        Raises:
            CommandError: it cannot be.
        """
        self._order(
            {
                "between": [one, other],
                "to_server": passage.to_server.value,
                "to_client": passage.to_client.value,
                "delay_s": passage.delay_s,
                "refused": passage.refused,
            }
        )

    def heal(self) -> list[str]:
        """Open all; the names of the processes that have a relay before them.

        Raises:
            CommandError: there are no relays.
        """
        names: list[str] = self._order({"heal": True})["names"]
        return names

    def _order(self, order: Mapping[str, object]) -> dict[str, Any]:
        try:
            with (
                short_path(self._data_dir) as folder,
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line,
            ):
                line.settimeout(_ANSWER_S_MAX)
                line.connect(f"{folder}/{SOCKET}")
                line.sendall(json.dumps(order).encode() + b"\n")
                with line.makefile("rb") as answers:
                    answer: dict[str, Any] = json.loads(answers.readline(_LINE_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise CommandError(
                f"no relays of a cluster answer in {self._data_dir} ({error}): nothing here can cut processes apart; "
                "start the cluster with `popwheel cluster --relays`, and say where its data is with --data-dir"
            ) from error
        if "error" in answer:
            raise CommandError(str(answer["error"]))
        return answer


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Return a path to a folder that fits in the address of a socket, which may have 107 characters."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
