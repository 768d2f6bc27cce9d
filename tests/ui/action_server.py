"""A server on which tests change things, and the official client that sees what has changed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.standalone import ROOT, StandaloneProcess

_ORDERS: Final = "tests.ui.action_client"


@dataclass(frozen=True, slots=True)
class ActionServer:
    """The server, and the client.

    Args:
        server: standalone; a message may come again, and be dead, after a second.
        client: does what it is told.
    """

    server: StandaloneProcess
    client: "ActionClient"

    @property
    def url(self) -> str:
        """Of the console and the API."""
        return self.server.http_url


class ActionClient:
    """Tells the client's program what to do.

    Args:
        program: that runs.
        errors: where it writes what went wrong.
    """

    def __init__(self, program: "subprocess.Popen[str]", errors: Path) -> None:
        self._program = program
        self._errors = errors

    def send(self, topic: str, body: str, **facts: Any) -> str:
        """Send a message; its id."""
        found: str = self._do("send", topic=topic, body=body, **facts)
        return found

    def take(self, group: str, topic: str, count: int = 1, **how: Any) -> list[dict[str, Any]]:
        """Receive a number of messages, or fewer if the time is over. See `Orders.take`."""
        found: list[dict[str, Any]] = self._do("take", group=group, topic=topic, count=count, **how)
        return found

    def ack(self, message_id: str) -> None:
        """Acknowledge a message that was taken."""
        self._do("ack", message_id=message_id)

    def refusal(self, do: str, **order: Any) -> str:
        """Why something is refused; empty if it is not."""
        return str(self._reported(do, order).get("error", ""))

    def _do(self, do: str, **order: Any) -> Any:
        reported = self._reported(do, order)
        assert "error" not in reported, reported["error"]
        return reported["answer"]

    def _reported(self, do: str, order: dict[str, Any]) -> dict[str, Any]:
        assert self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"the client has failed:\n{self._errors.read_text()[-4000:]}"
        reported: dict[str, Any] = json.loads(line)
        return reported


@contextmanager
def action_server(folder: Path) -> Iterator[ActionServer]:
    """Start a server and a client.

    Args:
        folder: for data and logs.
    """
    settings = ("--set", "proxy.receive.invisible_ms_min=1000", "--set", "controller.deleted_name_rest_ms=0")
    errors = folder / "client-errors"
    with StandaloneProcess(folder / "data", settings) as server, errors.open("w") as written:
        program = subprocess.Popen(
            [sys.executable, "-m", _ORDERS, server.grpc_address],
            cwd=ROOT,
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
        try:
            yield ActionServer(server, ActionClient(program, errors))
        finally:
            assert program.stdin is not None and program.stdout is not None
            program.stdin.close()
            try:
                program.wait(15)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
            program.stdout.close()
