"""Tables of the admin API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.sql.datasource import InputPartition

from popwheel_spark.errors import OptionError, RefusedError, UnreachableError
from popwheel_spark.source.admin_reader import AdminReader, admin_read_options

PAGES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("cluster", "", ""): {"brokers": [{"name": "b-0"}, {"name": "b-1"}]},
    ("timers", "b-0", ""): {"timers": [], "unanswered": [], "next": "x"},
    ("timers", "b-0", "x"): {
        "timers": [
            {
                "due_ms": 1_000,
                "topic": "t",
                "message_id": "m",
                "tag": "a",
                "keys": ["k"],
                "broker": "b-0",
                "recall_handle": "r",
            }
        ],
        "unanswered": [],
        "next": None,
    },
    ("timers", "b-1", ""): {"timers": [], "unanswered": [{"broker": "b-1", "reason": "away"}], "next": None},
}
"""What the controller answers: by path, broker and place."""


class Controller(BaseHTTPRequestHandler):
    """Answers from `PAGES`."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        path = url.path.removeprefix("/api/v1/")
        page = PAGES.get((path, query.get("broker", ""), query.get("after", "")))
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"message": "there is none"} if page is None else page).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def admin() -> Iterator[str]:
    """Base URL of a controller."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Controller) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def reader(admin: str, **options: str) -> AdminReader:
    return AdminReader(admin_read_options({"endpoints": "h:1", "admin": admin} | options))


def test_a_part_is_a_topic_at_a_broker_and_goes_through_all_pages(admin: str) -> None:
    timers = reader(admin, table="timers", columns="topic,deliveryTimestamp,keys")
    parts = timers.partitions()
    assert [part.value for part in parts] == [("", "b-0"), ("", "b-1")]
    (batch,) = timers.read(parts[0])
    (row,) = batch.to_pylist()
    assert (row["topic"], row["keys"], row["deliveryTimestamp"].timestamp()) == ("t", ["k"], 1.0)


def test_a_list_that_is_not_whole_is_an_error(admin: str) -> None:
    with pytest.raises(UnreachableError, match="would not be whole, these did not answer: b-1: away"):
        list(reader(admin, table="timers").read(InputPartition(("", "b-1"))))


def test_a_refusal_is_reported(admin: str) -> None:
    with pytest.raises(RefusedError, match="answered 404"):
        list(reader(admin, table="inflight", topic="t").read(InputPartition(("t", "b-7"))))


def test_nobody_there() -> None:
    with pytest.raises(UnreachableError, match="option admin"):
        reader("http://127.0.0.1:1", table="timers").partitions()


def test_where_no_broker_is_there_is_nothing_to_read(admin: str) -> None:
    assert list(reader(admin, table="timers").read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"table": "timers", "admin": ""}, "admin"),
        ({"table": "inflight"}, "topic"),
        ({"table": "timers", "columns": "body"}, "columns"),
    ],
)
def test_what_can_not_be_is_refused_by_name(options: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as caught:
        admin_read_options({"endpoints": "h:1", "admin": "http://h:1"} | options)
    assert caught.value.name == name
