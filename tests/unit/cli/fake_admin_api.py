"""An admin API that answers what it was given, over a real socket."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

REPLICAS = [
    {
        "number": number,
        "role": "slave" if number else "master",
        "address": f"127.0.0.1:4100{number}",
        "alive": True,
        "in_sync": True,
        "wiped": False,
        "leaving": False,
        "doubtful": False,
        "epoch": 3,
        "last_epoch": 3,
        "end_position": 4096,
        "confirmed_position": 4096,
        "lag_bytes": 12,
        "lag_ms": 3,
        "heard_ms": 210,
        "checkpoint_version": 0,
    }
    for number in range(2)
]

GROUP: dict[str, Any] = {
    "name": "broker-0",
    "version": 12,
    "epoch": 3,
    "master": 0,
    "sync_state_set": [0, 1],
    "trouble": "",
    "checkpoint": {"version": 17, "age_ms": 1200, "duration_ms": 8},
    "replicas": REPLICAS,
}

STATUS: dict[str, Any] = {
    "name": "popwheel",
    "version": 3,
    "processes": [
        {
            "kind": "broker",
            "name": "broker-0",
            "replica": number,
            "role": "slave" if number else "master",
            "address": f"127.0.0.1:4100{number}",
            "pid": 100 + number,
            "since_ms": 1_700_000_000_000,
            "ready": True,
            "reason": "",
        }
        for number in range(2)
    ],
    "broker_groups": [GROUP],
}


class FakeAdminApi:
    """Use as a context manager.

    Args:
        answers: by `METHOD /path`: HTTP status and what is answered as JSON.
        silent: whether it takes what is asked and ends the connection without a word.
    """

    def __init__(self, answers: dict[str, tuple[int, Any]], *, silent: bool = False) -> None:
        self.asked: list[tuple[str, Any]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                words = f"{self.command} {self.path.removeprefix('/api/v1')}"
                size = int(self.headers.get("content-length", 0))
                api.asked.append((words, json.loads(self.rfile.read(size)) if size else None))
                if silent:
                    self.close_connection = True
                    return
                status, body = answers.get(words, (404, {"code": "NOT_FOUND", "message": f"no {words}"}))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - names of http.server's

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - likewise
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # so that closing it waits for them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
