"""What `popwheel admin inflight summary`, `inflight release` and the time line of `message trace` say."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from popwheel_cli.admin.message_events import time_line
from popwheel_cli.main import main
from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

NOW_MS = 1_700_000_000_000
TIME = "2023-11-14T22:13:20.000Z"
PLACE = ("--broker", "b1", "--group", "workers", "--topic", "orders", "--queue", "2", "--offset", "7")
RELEASE = "POST /inflight/release"
WANTED = {"broker": "b1", "group": "workers", "topic": "orders", "queue_id": 2, "queue_offset": 7}


def released(**more: Any) -> dict[str, Any]:
    answer = {"released": True, "message_id": "id", "attempt": 2, "dead_letter": False, "client_id": "consumer@7"}
    return {**answer, **more}


def test_a_summary() -> None:
    answer = {
        "total": 12,
        "groups": [{"group": "workers", "held": 12, "clients": 1, "oldest_popped_ms": NOW_MS}],
        "clients": [
            {"group": "workers", "client_id": "consumer@7", "held": 9, "oldest_popped_ms": NOW_MS},
            {"group": "workers", "client_id": None, "held": 3, "oldest_popped_ms": None},
        ],
        "other_groups": 0,
        "other_clients": 5,
        "known_since_ms": NOW_MS,
        "unanswered": [{"broker": "b2", "reason": "away"}],
    }
    with FakeAdminApi({"GET /inflight/summary": (200, answer)}) as api:
        result = call("admin", "--server", api.url, "inflight", "summary")
        as_json = call("admin", "--server", api.url, "inflight", "summary", "-o", "json")
    assert [line.split() for line in result.stdout.splitlines() if line] == [
        ["GROUP", "HELD", "CLIENTS", "OLDEST", "POPPED"],
        ["workers", "12", "1", TIME],
        ["GROUP", "CLIENT", "HELD", "OLDEST", "POPPED"],
        ["workers", "consumer@7", "9", TIME],
        ["workers", "-", "3", "-"],
    ]
    assert result.stderr == (
        "12 messages are in flight; 0 other groups and 5 other clients at least are not shown\n"
        "without the broker b2: away\n"
    )
    assert json.loads(as_json.stdout) == answer


def test_a_client_that_is_not_known_is_reported() -> None:
    asked = {"topic": "", "group": "", "broker": "b1", "client": "c", "after": "", "limit": 500}
    message = {
        "group": "g",
        "topic": "t",
        "broker": "b1",
        "queue_id": 0,
        "queue_offset": 0,
        "message_id": "id",
        "attempt": 1,
        "popped_ms": NOW_MS,
        "due_ms": NOW_MS,
        "client_id": None,
    }
    page = {"broker": "b1", "messages": [message], "known_since_ms": NOW_MS, "unanswered": [], "next": None}
    with FakeAdminApi({f"GET /inflight?{urlencode(asked)}": (200, page)}) as api:
        result = call("admin", "--server", api.url, "inflight", "--broker", "b1", "--client", "c")
    assert result.stderr == f"clients are known of what was delivered since {TIME} by b1\n"


def test_a_release_is_done_with_yes() -> None:
    with FakeAdminApi({RELEASE: (200, released())}) as api:
        result = call("admin", "--server", api.url, "inflight", "release", *PLACE, "--yes", "-o", "json")
    assert json.loads(result.stdout) == {**WANTED, **released()}
    assert api.asked == [(RELEASE, WANTED)]


def test_a_release_is_tried_dry() -> None:
    with FakeAdminApi({RELEASE: (200, released(released=False))}) as api:
        result = call("admin", "--server", api.url, "inflight", "release", *PLACE, "--dry-run")
    assert result.exit_code == 0, result.output
    assert api.asked == [(RELEASE, {**WANTED, "dry_run": True})]


@pytest.mark.parametrize(("answer", "count"), [("n\n", 1), ("y\n", 2)])
def test_a_release_asks_first(monkeypatch: pytest.MonkeyPatch, answer: str, count: int) -> None:
    monkeypatch.setattr("popwheel_cli.admin.consent.has_terminal", lambda: True)
    with FakeAdminApi({RELEASE: (200, released(dead_letter=True, client_id=None))}) as api:
        words = ["admin", "--server", api.url, "inflight", "release", *PLACE]
        result = CliRunner().invoke(main, words, input=answer)
    assert "a client that is not known has id (attempt 2); it becomes a dead letter" in result.output
    assert len(api.asked) == count


def test_without_a_terminal_nothing_is_done() -> None:
    with FakeAdminApi({}) as api:
        assert "nothing was done" in call("admin", "--server", api.url, "inflight", "release", *PLACE).stderr
    assert api.asked == []


def test_what_is_not_in_flight() -> None:
    refusal = (404, {"code": "MESSAGE_NOT_FOUND", "message": "workers does not hold it"})
    with FakeAdminApi({RELEASE: refusal}) as api:
        result = call("admin", "--server", api.url, "inflight", "release", *PLACE, "--yes")
    assert sentence_of(result) == "MESSAGE_NOT_FOUND: workers does not hold it"


def place(kind: str = "stored", **more: Any) -> dict[str, Any]:
    holding = {"group": "g", "holding": "delivered", "popped_ms": NOW_MS, "due_ms": NOW_MS, "client_id": "consumer@7"}
    return {
        "broker": "b1",
        "topic": "t",
        "message_id": "id",
        "queue_id": 0,
        "queue_offset": 0,
        "stored_ms": NOW_MS,
        "attempts": 0,
        "tag": "",
        "keys": [],
        "properties": {},
        "body": "",
        "kind": kind,
        "position": 0,
        "groups": [holding],
        **more,
    }


def test_the_time_line_of_a_message() -> None:
    trace = {"places": [place()], "unanswered": [], "next": None}
    event = {
        "time_ms": NOW_MS,
        "broker": "b1",
        "kind": "delivered",
        "group": "g",
        "client_id": "consumer@7",
        "attempt": 1,
        "until_ms": NOW_MS,
        "topic": "t",
        "queue_id": 0,
        "queue_offset": 0,
    }
    stored = {**event, "kind": "stored", "group": "", "client_id": None, "attempt": None, "until_ms": None}
    line = {
        "events": [stored, event],
        "known_since": [{"broker": "b1", "since_ms": NOW_MS, "dropped": 3}],
        "unanswered": [{"broker": "b2", "reason": "away"}],
    }
    asked = {"topic": "t", "group": "", "since_ms": 0, "after": ""}
    asked_for_events = {"topic": "t", "group": "", "since_ms": NOW_MS, "until_ms": NOW_MS}
    answers = {
        f"GET /messages/id?{urlencode(asked)}": (200, trace),
        f"GET /messages/id/events?{urlencode(asked_for_events)}": (200, line),
    }
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "message", "trace", "id", "--topic", "t")
        as_json = call("admin", "--server", api.url, "message", "trace", "id", "--topic", "t", "-o", "json")
    assert [line.split() for line in result.stdout.splitlines()][-3:] == [
        ["TIME", "KIND", "GROUP", "CLIENT", "ATTEMPT", "UNTIL", "BROKER", "TOPIC"],
        [TIME, "stored", "-", "-", "-", "-", "b1", "t"],
        [TIME, "delivered", "g", "consumer@7", "1", TIME, "b1", "t"],
    ]
    assert result.stderr == (
        f"b1 knows deliveries and acks since {TIME}, 3 older entries were dropped\nwithout the broker b2: away\n"
    )
    assert json.loads(as_json.stdout)["events"] == [stored, event]


def test_an_older_controller_has_no_time_line() -> None:
    from popwheel_cli.admin.api import AdminApi

    with FakeAdminApi({}) as api:
        assert time_line(AdminApi(api.url), "id", "t", "", [place()])["events"] == []
