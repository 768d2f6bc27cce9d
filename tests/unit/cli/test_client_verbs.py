"""What `popwheel admin client` says: a contract with those who script against it."""

import json
from typing import Any
from urllib.parse import urlencode

from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

NOW_MS = 1_700_000_000_000


def client(client_id: str, **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": client_id,
        "proxy": "p1",
        "kind": "push",
        "language": "JAVA",
        "version": "5.0.7",
        "platform": "Linux",
        "hostname": "pod-1",
        "address": "10.0.0.1:4711",
        "user": "alice",
        "group": "workers",
        "since_ms": NOW_MS,
        "seen_ms": NOW_MS,
        "subscriptions": [
            {"group": "workers", "topic": f"t{number}", "filter": "*", "polled_ms": NOW_MS} for number in range(5)
        ],
        "subscriptions_total": 6,
        "publishes": [],
        "publishes_total": 0,
        "polls": 1,
        "held": 3,
        "held_since_ms": NOW_MS,
        "lite_topics": 0,
    }
    return {**facts, **more}


def listed_at(after: str = "", limit: int = 100, group: str = "") -> str:
    asked = {"group": group, "topic": "", "prefix": "", "after": after, "limit": limit}
    return f"GET /clients?{urlencode(asked)}"


SILENT = [{"proxy": "p2", "reason": "p2 did not answer within 3 s; ask again"}]


def test_clients_of_several_pages() -> None:
    simple = client("c2", kind="simple", held=None, held_since_ms=None, version="", subscriptions=[], language="")
    answers = {
        listed_at(): (200, {"clients": [client("c1")], "unanswered": [], "next": "p1/c1"}),
        listed_at("p1/c1"): (200, {"clients": [simple], "unanswered": SILENT, "next": None}),
    }
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "client", "list")
        as_json = call("admin", "--server", api.url, "client", "list", "-o", "json")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()[1:]
    assert first.split()[:9] == ["c1", "push", "JAVA", "5.0.7", "p1", "10.0.0.1:4711", "alice", "workers", "t0"]
    assert "t0 t1 t2 and 3 more" in first
    assert "3 since 2023-11-14T22:13:20.000Z" in first
    assert second.split()[:3] == ["c2", "simple", "?"]
    assert result.stderr == "without the proxy p2: p2 did not answer within 3 s; ask again\n"
    reported = json.loads(as_json.stdout)
    assert ([each["id"] for each in reported["clients"]], reported["more"]) == (["c1", "c2"], False)
    assert reported["unanswered"] == SILENT


def test_there_are_more() -> None:
    answers = {listed_at(limit=1, group="g"): (200, {"clients": [client("c1")], "unanswered": [], "next": "p1/c1"})}
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "client", "list", "--group", "g", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("there are more: raise --limit")


def test_one_client() -> None:
    held = {"group": "workers", "topic": "t0", "broker": "b1", "queue_id": 2, "queue_offset": 7, "is_retry": True}
    found = {
        "id": "h@1",
        "at": [client("h@1", publishes=["out"])],
        "messages": [{**held, "since_ms": NOW_MS}],
        "unanswered": SILENT,
    }
    with FakeAdminApi({"GET /clients/h%401": (200, found)}) as api:
        result = call("admin", "--server", api.url, "client", "describe", "h@1")
        as_json = call("admin", "--server", api.url, "client", "describe", "h@1", "-o", "json")
        nobody = call("admin", "--server", api.url, "client", "describe", "nobody")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["hostname", "pod-1"] in rows
    assert ["workers", "t0", "*", "2023-11-14T22:13:20.000Z"] in rows
    assert ["out"] in rows
    assert ["workers", "t0", "yes", "b1", "2", "7", "2023-11-14T22:13:20.000Z"] in rows
    assert json.loads(as_json.stdout) == found
    assert sentence_of(nobody).startswith("NOT_FOUND")
