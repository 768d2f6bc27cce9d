"""Who holds what over the admin API: summed up over all brokers; one delivery ended; what happened to a message."""

from pathlib import Path

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.controller.fake_audit_broker import NOW_MS, FakeAuditBroker
from tests.unit.controller.test_audit import api

ID = "0156F7E71C361B21BC024CCDBE00000000"
"""Of an official client; made at second 0x024CCDBE since 2021."""
MADE_MS = 1_609_459_200_000 + 0x024CCDBE * 1000


async def test_the_list_names_the_clients(tmp_path: Path) -> None:
    async with api(tmp_path, FakeAuditBroker("b1", 2)) as http:
        page = (await http.get("/inflight")).json()
        assert [one["client_id"] for one in page["messages"]] == ["consumer@7", None]
        assert page["known_since_ms"] == NOW_MS - 1
        page = (await http.get("/inflight", params={"topic": "orders", "client": "c"})).json()
        assert [one["client_id"] for one in page["messages"]] == ["c", "c"]
        assert (await http.get("/inflight", params={"client": "c" * 5_000})).status_code == 400


async def test_what_brokers_say_is_summed_up(tmp_path: Path) -> None:
    brokers = (FakeAuditBroker("b1", 0), FakeAuditBroker("b2", 0), FakeAuditBroker("b3", 0))
    one, two, three = (broker.summary for broker in brokers)
    one.total, two.total = 10, 7
    one.groups.add(group="g", in_flight=8, clients=2, oldest_popped_ms=NOW_MS)
    one.groups.add(group="h", in_flight=2)
    two.groups.add(group="g", in_flight=7, clients=3, oldest_popped_ms=NOW_MS - 5)
    one.clients.add(group="g", client_id="a", in_flight=5, oldest_popped_ms=NOW_MS)
    one.clients.add(group="h", in_flight=2)
    two.clients.add(group="g", client_id="a", in_flight=7, oldest_popped_ms=NOW_MS - 5)
    one.other_clients, one.known_since_ms, two.known_since_ms = 200, NOW_MS - 9, NOW_MS - 8
    async with api(tmp_path, *brokers) as http:
        brokers[2].error = StatusError(Code.HA_NOT_AVAILABLE, "the broker b3 is not there")
        found = (await http.get("/inflight/summary")).json()
    assert found == {
        "total": 17,
        "groups": [
            {"group": "g", "held": 15, "clients": 3, "oldest_popped_ms": NOW_MS - 5},
            {"group": "h", "held": 2, "clients": 0, "oldest_popped_ms": None},
        ],
        "clients": [
            {"group": "g", "client_id": "a", "held": 12, "oldest_popped_ms": NOW_MS - 5},
            {"group": "h", "client_id": None, "held": 2, "oldest_popped_ms": None},
        ],
        "other_groups": 0,
        "other_clients": 102,
        "known_since_ms": NOW_MS - 8,
        "unanswered": [{"broker": "b3", "reason": "the broker b3 is not there"}],
    }
    assert three.total == 0


async def test_a_hundred_are_listed(tmp_path: Path) -> None:
    broker = FakeAuditBroker("b1", 0)
    for number in range(130):
        broker.summary.groups.add(group=f"g{number}", in_flight=number + 1)
    broker.summary.other_groups = 5
    async with api(tmp_path, broker) as http:
        found = (await http.get("/inflight/summary")).json()
    assert [one["held"] for one in found["groups"]] == list(range(130, 30, -1))
    assert found["other_groups"] == 35


async def test_nobody_answers(tmp_path: Path) -> None:
    async with api(tmp_path, broker := FakeAuditBroker("b1", 0)) as http:
        broker.error = RpcError(GrpcStatus.UNIMPLEMENTED, "no such method")
        found = (await http.get("/inflight/summary")).json()
        assert (found["total"], found["known_since_ms"]) == (0, None)
        assert "older release" in found["unanswered"][0]["reason"]


async def test_one_delivery_is_ended(tmp_path: Path) -> None:
    broker = FakeAuditBroker("b1", 0)
    wanted = {"broker": "b1", "group": "workers", "topic": "%RETRY%workers+orders", "queue_id": 0, "queue_offset": 7}
    async with api(tmp_path, broker) as http:
        would = await http.post("/inflight/release", json={**wanted, "dry_run": True})
        assert would.json() == {
            "released": False,
            "message_id": "id",
            "attempt": 2,
            "dead_letter": False,
            "client_id": "c",
        }
        assert (await http.get("/changes")).json()["changes"][0]["verb"] == "group create", "a dry run leaves no line"
        assert (await http.post("/inflight/release", json=wanted)).json()["released"] is True
        asked = pb.InFlightReleaseRequest(group="workers", topic="%RETRY%workers+orders", queue_offset=7)
        assert broker.releases[1] == asked
        line = (await http.get("/changes")).json()["changes"][0]
        assert (line["verb"], line["object"]) == ("inflight release", "b1/%RETRY%workers+orders/0/7")
        broker.error = StatusError(Code.MESSAGE_NOT_FOUND, "workers does not hold it")
        gone = await http.post("/inflight/release", json=wanted)
        assert (gone.status_code, gone.json()["message"]) == (404, "workers does not hold it")
        for wrong in ({"queue_id": -1}, {"queue_offset": 2**63}, {"more": 1}, {"group": "nobody"}, {"broker": "b9"}):
            assert (await http.post("/inflight/release", json={**wanted, **wrong})).status_code >= 400


async def test_events_of_all_brokers_in_their_order(tmp_path: Path) -> None:
    one, two = FakeAuditBroker("b1", 3), FakeAuditBroker("b2", 1)
    one.events = [
        pb.MessageEvent(time_ms=NOW_MS, kind=pb.MESSAGE_STORED, topic="orders", position=1),
        pb.MessageEvent(time_ms=NOW_MS + 9, kind=pb.MESSAGE_REVIVED, group="workers", attempt=2, position=5),
        pb.MessageEvent(
            time_ms=NOW_MS + 9, kind=pb.MESSAGE_EXPIRED, group="workers", client_id="c", attempt=1, position=5
        ),
    ]
    two.events = [pb.MessageEvent(time_ms=NOW_MS + 5, kind=pb.MESSAGE_DELIVERED, until_ms=NOW_MS + 90, position=3)]
    async with api(tmp_path, one, two) as http:
        found = (await http.get(f"/messages/{ID}/events", params={"topic": "orders"})).json()
        assert [(each["broker"], each["kind"]) for each in found["events"]] == [
            *(("b1", "stored"), ("b2", "delivered"), ("b1", "expired"), ("b1", "revived")),
        ]
        assert found["events"][1] == {
            "time_ms": NOW_MS + 5,
            "broker": "b2",
            "kind": "delivered",
            "group": "",
            "client_id": None,
            "attempt": None,
            "until_ms": NOW_MS + 90,
            "topic": "",
            "queue_id": 0,
            "queue_offset": 0,
        }
        assert found["known_since"] == [{"broker": name, "since_ms": NOW_MS, "dropped": 4} for name in ("b1", "b2")]
        assert one.asked_for_events[0].since_ms == MADE_MS - 600_000
        two.error = StatusError(Code.HA_NOT_AVAILABLE, "not there")
        found = (await http.get("/messages/own-id/events", params={"topic": "orders", "since_ms": 5})).json()
        assert found["unanswered"] == [{"broker": "b2", "reason": "not there"}]
        assert one.asked_for_events[-1].since_ms == 5
        assert (await http.get("/messages/own-id/events", params={"topic": "none"})).status_code == 404


async def test_a_search_that_takes_too_long_says_so(tmp_path: Path) -> None:
    async with api(tmp_path, broker := FakeAuditBroker("b1", 1_000)) as http:
        found = (await http.get("/messages/own-id/events", params={"topic": "orders"})).json()
        assert "since_ms" in found["unanswered"][0]["reason"]
        assert len(broker.asked_for_events) == 32
