"""What `popwheel admin inflight` and `popwheel admin progress` say: a contract with those who script against it."""

import json
from typing import Any
from urllib.parse import urlencode

from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

NOW_MS = 1_700_000_000_000


def message(offset: int) -> dict[str, Any]:
    return {
        "group": "workers",
        "topic": "orders",
        "broker": "b1",
        "queue_id": 2,
        "queue_offset": offset,
        "message_id": f"id-{offset}",
        "attempt": 1,
        "popped_ms": NOW_MS,
        "due_ms": NOW_MS + 30_000,
        "client_id": "consumer@7",
    }


def queue(topic: str, broker: str, lag: int, committed: int | None = 4) -> dict[str, Any]:
    return {
        "topic": topic,
        "broker": broker,
        "queue_id": 0,
        "min_offset": 0,
        "next_offset": 5,
        "committed_offset": committed,
        "max_offset": 9,
        "in_flight": lag - 4,
        "lag": lag,
    }


def page(next_: str | None, broker: str = "b1", **more: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"broker": broker, "epoch": 3, "unanswered": [], "next": next_, **more}


def in_flight_at(after: str = "", limit: int = 500, group: str = "", broker: str = "") -> str:
    asked = {"topic": "orders", "group": group, "broker": broker, "after": after, "limit": limit}
    return f"GET /inflight?{urlencode(asked)}"


def progress_at(after: str = "", topic: str = "", broker: str = "") -> str:
    return f"GET /groups/workers/progress?{urlencode({'topic': topic, 'broker': broker, 'after': after, 'limit': 500})}"


SILENT = [{"broker": "b2", "reason": "the broker b2 cannot be reached now; try again"}]


def test_messages_in_flight_of_several_pages() -> None:
    answers = {
        in_flight_at(): page("b1/8", messages=[message(0)]),
        in_flight_at("b1/8"): page("b2/", messages=[message(1)]),
        in_flight_at("b2/"): page(None, "b2", messages=[], unanswered=SILENT),
    }
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "inflight", "--topic", "orders")
        as_json = call("admin", "--server", api.url, "inflight", "--topic", "orders", "-o", "json")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        [
            *("GROUP", "TOPIC", "BROKER", "QUEUE_ID", "QUEUE_OFFSET", "MESSAGE_ID", "CLIENT"),
            *("POPPED", "HIDDEN", "UNTIL", "ATTEMPT"),
        ],
        *(
            [
                *("workers", "orders", "b1", "2", str(offset), f"id-{offset}", "consumer@7"),
                *("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:50.000Z", "1"),
            ]
            for offset in range(2)
        ),
    ]
    assert result.stderr == "without the broker b2: the broker b2 cannot be reached now; try again\n"
    assert json.loads(as_json.stdout) == {
        "messages": [message(0), message(1)],
        "known_since_ms": {"b1": None, "b2": None},
        "more": False,
        "unanswered": SILENT,
    }


def test_no_more_are_shown_than_are_wanted() -> None:
    answers = {in_flight_at(limit=1, group="g", broker="b1"): page("b1/8", messages=[message(0)])}
    with FakeAdminApi(answers) as api:
        words = ("inflight", "--topic", "orders", "--group", "g", "--broker", "b1", "--limit", "1")
        result = call("admin", "--server", api.url, *words)
    assert result.stderr == "there may be more: raise --limit\n"


def test_progress_with_its_sums() -> None:
    answers = {
        progress_at(): page(
            "b2/",
            queues=[queue("orders", "b1", 7), queue("%RETRY%workers+orders", "b1", 4, None)],
            dead_letters=2,
            kind="pop",
        ),
        progress_at("b2/"): page(None, "b2", queues=[queue("orders", "b2", 5)], dead_letters=1, kind="pop"),
    }
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "progress", "workers")
        as_json = json.loads(call("admin", "--server", api.url, "progress", "workers", "-o", "json").stdout)
    assert [line.split() for line in result.stdout.splitlines()] == [
        [
            *("TOPIC", "BROKER", "QUEUE_ID", "MIN_OFFSET", "COMMITTED_OFFSET", "NEXT_OFFSET", "MAX_OFFSET"),
            *("IN_FLIGHT", "LAG"),
        ],
        ["%RETRY%workers+orders", "b1", "0", "0", "-", "5", "9", "0", "4"],
        ["orders", "b1", "0", "0", "4", "5", "9", "3", "7"],
        ["orders", "b2", "0", "0", "4", "5", "9", "1", "5"],
    ]
    assert result.stderr == "workers (pop): lag 16, dead letters 3\n"
    assert (as_json["kind"], as_json["dead_letters"], as_json["more"]) == ("pop", {"b1": 2, "b2": 1}, False)
    assert len(as_json["queues"]) == 3


def test_refusals_are_one_sentence() -> None:
    refusal = (404, {"code": "TOPIC_NOT_FOUND", "message": "there is no topic orders"})
    with FakeAdminApi({in_flight_at(): refusal}) as api:
        result = call("admin", "--server", api.url, "inflight", "--topic", "orders")
    assert sentence_of(result) == "TOPIC_NOT_FOUND: there is no topic orders"
    assert result.exit_code == 1


def test_messages_with_a_key_and_what_was_looked_through() -> None:
    def listed(number: int) -> dict[str, Any]:
        return {
            "broker": "b1",
            "topic": "orders",
            "queue_id": 0,
            "queue_offset": number,
            "attempts": 0,
            "message_id": f"id-{number}",
            "stored_ms": NOW_MS - number,
            "tag": "t",
            "keys": ["k", "l"],
            "properties": {},
            "body": "hello",
            "body_encoding": "text",
            "body_bytes": 5,
        }

    def at(after: str, **more: object) -> str:
        asked = {"topic": "orders", "key": "k", "broker": "", "since_ms": NOW_MS - 1000, **more}
        return f"GET /messages?{urlencode({**asked, 'after': after, 'limit': 500})}"

    until = {"until_ms": NOW_MS}
    answers = {
        at("", **until): page("b1/orders/0/7", messages=[listed(1)], looked_through=2048, unreadable=0),
        at("b1/orders/0/7", **until): page(None, messages=[listed(2)], looked_through=52, unreadable=1),
    }
    moments = ("--since", "2023-11-14T22:13:19Z", "--until", "2023-11-14T22:13:20Z")
    with FakeAdminApi(answers) as api:
        words = ("admin", "--server", api.url, "message", "list", "--topic", "orders", "--key", "k", *moments)
        result = call(*words)
        as_json = json.loads(call(*words, "-o", "json").stdout)
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["STORED", "BROKER", "QUEUE_ID", "QUEUE_OFFSET", "MESSAGE_ID", "TAG", "KEYS", "BODY_BYTES", "BODY"],
        ["2023-11-14T22:13:19.998Z", "b1", "0", "2", "id-2", "t", "k", "l", "5", "hello"],
        ["2023-11-14T22:13:19.999Z", "b1", "0", "1", "id-1", "t", "k", "l", "5", "hello"],
    ]
    assert result.stderr == (
        "2 of 2100 messages that were looked through have the key\n1 of them cannot be read, and may have it\n"
    )
    assert (as_json["looked_through"], as_json["unreadable"], as_json["more"]) == (2100, 1, False)
    assert [one["message_id"] for one in as_json["messages"]] == ["id-2", "id-1"]
