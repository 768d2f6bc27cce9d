"""A schema registry on the loopback address, as far as readers ask it."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = Mapping[str, tuple[int, Any]]


def registry_pages(subject: str, schemas: Mapping[int, str], **more: object) -> dict[str, tuple[int, Any]]:
    """The pages of a registry with one subject: path -> status and JSON.

    Args:
        subject: its name.
        schemas: its versions, the oldest first: id -> schema.
        more: of each answer with a schema.
    """
    pages: dict[str, tuple[int, Any]] = {}
    for number, (schema_id, text) in enumerate(schemas.items(), 1):
        pages[f"/schemas/ids/{schema_id}"] = 200, {"schema": text, **more}
        pages[f"/subjects/{subject}/versions/{number}"] = (
            200,
            {"subject": subject, "version": number, "id": schema_id, "schema": text, **more},
        )
    pages[f"/subjects/{subject}/versions"] = 200, list(range(1, len(schemas) + 1))
    return pages


@contextmanager
def running_registry(pages: Answers) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
    """Serve pages; the URL, and what was asked so far: path and the header `authorization`."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("authorization", "")))
            status, answer = pages.get(self.path, (404, {"error_code": 40403, "message": "not found"}))
            body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
