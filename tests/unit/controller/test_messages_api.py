"""What a topic holds and the dead letters of a group over the admin API, from broker to broker."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.controller.fake_message_broker import FakeMessageBroker
from tests.unit.controller.test_audit import api, pages

AWAY = RpcError(GrpcStatus.UNAVAILABLE, "connection refused")
LETTERS = "/groups/workers/dead-letters"


def places(found: list[dict[str, Any]], name: str = "messages") -> list[tuple[str, int]]:
    return [(one["broker"], one["queue_offset"]) for page in found for one in page[name]]


def brokers() -> tuple[FakeMessageBroker, FakeMessageBroker, FakeMessageBroker]:
    return FakeMessageBroker("b1", 8), FakeMessageBroker("b2", 0), FakeMessageBroker("b3", 2)


ALL = [*(("b1", number) for number in range(8)), ("b3", 0), ("b3", 1)]


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 100])
async def test_a_topic_is_browsed_from_broker_to_broker(tmp_path: Path, limit: int) -> None:
    async with api(tmp_path, *brokers()) as http:
        found = await pages(http, "/topics/orders/browse", limit=limit)
        assert places(found) == ALL
        assert all(len(page["messages"]) <= limit for page in found)
        assert len(found) <= 10 // limit + 1, "a page is filled from several brokers"
        assert sum(page["looked_through"] for page in found) == 10
        of_one = await pages(http, "/topics/orders/browse", broker="b3", tag="odd", limit=limit)
        assert places(of_one) == [("b3", 1)]


async def test_what_is_asked_for_comes_to_the_brokers(tmp_path: Path) -> None:
    first, second, third = brokers()
    async with api(tmp_path, first, second, third) as http:
        asked: dict[str, Any] = {"queue_id": 0, "time_ms": 5, "key": "k", "tag": "t", "lite_topic": "l", "limit": 100}
        assert (await http.get("/topics/orders/browse", params=asked)).status_code == 200
        request = second.asked[-1]
        assert (request.topic, request.browse, request.HasField("queue_id"), request.queue_id) == (
            "orders",
            True,
            True,
            0,
        )
        assert (request.key, request.tag, request.lite_topic, request.since_ms) == ("k", "t", "l", 5)
        assert (await http.get("/topics/orders/browse", params={"last": 2})).status_code == 200
        assert (second.asked[-1].last, second.asked[-1].HasField("queue_id")) == (2, False)


@pytest.mark.parametrize(
    ("path", "asked", "code"),
    [
        ("/topics/nothing/browse", {}, "TOPIC_NOT_FOUND"),
        ("/topics/%25DLQ%25nobody/browse", {}, "CONSUMER_GROUP_NOT_FOUND"),
        ("/topics/%25RETRY%25nobody%2Borders/browse", {}, "CONSUMER_GROUP_NOT_FOUND"),
        ("/topics/rmq_sys_x/browse", {}, "ILLEGAL_TOPIC"),
        ("/topics/orders/browse", {"lite_topic": "a+b"}, "ILLEGAL_LITE_TOPIC"),
        ("/topics/orders/browse", {"offset": 1, "last": 1}, "BAD_REQUEST"),
        ("/topics/orders/browse", {"limit": 101}, "BAD_REQUEST"),
        ("/topics/orders/browse", {"limit": -(10**30)}, "BAD_REQUEST"),
        ("/topics/orders/browse", {"after": "nowhere"}, "BAD_REQUEST"),
        ("/topics/orders/browse", {"after": "b1/nowhere"}, "BAD_REQUEST"),
        ("/groups/workers/dead-letters", {"after": "b1/x"}, "BAD_REQUEST"),
        ("/groups/workers/dead-letters", {"after": "b1/" + "9" * 300}, "BAD_REQUEST"),
        ("/topics/nothing/tail", {}, "TOPIC_NOT_FOUND"),
        ("/topics/orders/tail", {"rate": 51}, "BAD_REQUEST"),
        ("/groups/nobody/dead-letters", {}, "CONSUMER_GROUP_NOT_FOUND"),
        ("/groups/nobody/dead-letters/export", {}, "CONSUMER_GROUP_NOT_FOUND"),
    ],
)
async def test_what_cannot_be_is_refused(tmp_path: Path, path: str, asked: dict[str, Any], code: str) -> None:
    async with api(tmp_path, *brokers()) as http:
        answer = await http.get(path, params=asked)
        assert (400 <= answer.status_code < 500, answer.json()["code"]) == (True, code)


async def test_what_groups_have_of_their_own_can_be_browsed(tmp_path: Path) -> None:
    async with api(tmp_path, *brokers()) as http:
        for topic in ("%25DLQ%25workers", "%25RETRY%25workers%2Borders"):
            assert places([(await http.get(f"/topics/{topic}/browse")).json()]) == ALL


async def test_a_page_ends_when_it_has_looked_at_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_controller.http.browse_routes._SCANNED_MAX", 4)
    async with api(tmp_path, *brokers()) as http:
        page = (await http.get("/topics/orders/browse")).json()
        assert (page["looked_through"], page["next"]) == (6, "b1/6")
        assert places(await pages(http, "/topics/orders/browse")) == ALL


@pytest.mark.parametrize("path", ["/topics/orders/browse", LETTERS])
async def test_who_does_not_answer_is_named_and_the_others_are_asked(tmp_path: Path, path: str) -> None:
    first, second, third = brokers()
    first.fails(AWAY)
    async with api(tmp_path, first, second, third) as http:
        (page,) = await pages(http, path)
        assert page["unanswered"] == [{"broker": "b1", "reason": "the broker b1 cannot be reached now; try again"}]
        assert places([page], "letters" if path == LETTERS else "messages") == [("b3", 0), ("b3", 1)]


async def test_a_list_has_beginnings_of_long_bodies(tmp_path: Path) -> None:
    first, *others = brokers()
    first.body = b"x" * 100_000
    async with api(tmp_path, first, *others) as http:
        for path, name in (("/topics/orders/browse", "messages"), (LETTERS, "letters")):
            one = (await http.get(path)).json()[name][0]
            assert (len(one["body"]), one["body_bytes"]) == (1024, 100_000)


@pytest.mark.parametrize("limit", [1, 4, 1000])
async def test_dead_letters_of_all_brokers(tmp_path: Path, limit: int) -> None:
    async with api(tmp_path, *brokers()) as http:
        found = await pages(http, LETTERS, limit=limit)
        assert places(found, "letters") == ALL
        assert {page["total"] for page in found} == {10}
        (of_one,) = await pages(http, LETTERS, broker="b3")
        assert (len(of_one["letters"]), of_one["total"]) == (2, 2)


def exported(answer: httpx.Response) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The letters, and the last line."""
    assert answer.headers["content-type"] == "application/x-ndjson"
    *letters, end = (json.loads(line) for line in answer.text.splitlines())
    return letters, end


async def test_an_export_has_whole_bodies_and_says_where_it_goes_on(tmp_path: Path) -> None:
    first, second, third = brokers()
    first.body = b"x" * 100_000
    async with api(tmp_path, first, second, third) as http:
        letters, end = exported(await http.get(f"{LETTERS}/export", params={"limit": 3}))
        assert [len(each["body"]) for each in letters] == [100_000] * 3
        assert letters[0]["properties"] == {"p": "v"}
        assert end == {"next": "b1/3", "unanswered": []}
        rest, end = exported(await http.get(f"{LETTERS}/export", params={"after": end["next"]}))
        assert (len(rest), end["next"]) == (7, None)
        third.fails(AWAY)
        letters, end = exported(await http.get(f"{LETTERS}/export"))
        assert (len(letters), [each["broker"] for each in end["unanswered"]]) == (8, ["b3"])


async def test_an_export_ends_when_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_controller.http.dead_letter_routes._EXPORTED_BYTES_MAX", 10)
    async with api(tmp_path, *brokers()) as http:
        letters, end = exported(await http.get(f"{LETTERS}/export"))
        assert (len(letters), end["next"]) == (3, "b1/3")


async def test_chosen_letters_of_several_brokers(tmp_path: Path) -> None:
    first, second, third = brokers()
    async with api(tmp_path, first, second, third) as http:
        letters = [{"broker": name, "queue_offset": at} for name, at in (("b1", 3), ("b3", 1), ("b3", 9), ("no", 1))]
        answer = (await http.post(f"{LETTERS}/redrive", json={"letters": letters})).json()
        assert (answer["redriven"], answer["moved"]) == (2, 2)
        assert {(each["broker"], each["queue_offset"]) for each in answer["refused"]} == {("b3", 9), ("no", 1)}
        first.fails(AWAY)
        answer = (await http.post(f"{LETTERS}/redrive", json={"letters": letters[:2]})).json()
        assert answer["redriven"] == 1
        assert answer["refused"] == [
            {"broker": "b1", "queue_offset": 3, "reason": "the broker b1 cannot be reached now; try again"}
        ]
        for none_or_many in ([], letters[:1] * 101, [{"broker": "b1", "queue_offset": -1}]):
            assert (await http.post(f"{LETTERS}/redrive", json={"letters": none_or_many})).status_code == 400
