"""Messages in flight and progress over the admin API: page by page, from broker to broker."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.http import make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.local import LocalChannel
from popwheel_rpc.membership.registrar import BrokerRegistrar
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.controller.fake_audit_broker import NOW_MS, FakeAuditBroker
from tests.unit.controller.test_app import until


@asynccontextmanager
async def api(folder: Path, *brokers: FakeAuditBroker) -> AsyncIterator[httpx.AsyncClient]:
    """The admin API of a controller at which these brokers are registered, with a topic and two groups."""
    by_name = {broker.name: broker for broker in brokers}
    app = ControllerApp(
        Runtime(SystemClock(), random.Random(7), CollectorRegistry()),
        ControllerOptions(),
        folder,
        lambda info: by_name[info.name].connect(info),
    )
    async with AsyncExitStack() as stack:
        await app.start()
        stack.push_async_callback(app.stop)
        channel = LocalChannel(app.service)
        stack.push_async_callback(channel.close)
        for broker in brokers:
            registrar = BrokerRegistrar(
                channel,
                partial(ReplicaReport, group=broker.name, address=f"{broker.name}:1"),
                lambda group: None,
                random.Random(0),
            )
            await registrar.start()
            stack.push_async_callback(registrar.stop)
        await until(lambda: app.state.brokers.keys() == by_name.keys())
        http = make_http_app("test", "0", CollectorRegistry(), {}, [app.admin])
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=httpx.ASGITransport(http), base_url="http://controller/api/v1")
        )
        await client.post("/topics", json={"name": "orders"})
        for group in ("workers", "spark-archive"):
            await client.post("/groups", json={"name": group})
        yield client


async def pages(http: httpx.AsyncClient, path: str, **asked: Any) -> list[dict[str, Any]]:
    """All pages."""
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = await http.get(path, params={**asked, "after": after})
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        after = found[-1]["next"]
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_messages_in_flight_come_from_broker_to_broker(tmp_path: Path, limit: int) -> None:
    brokers = (FakeAuditBroker("b1", 5), FakeAuditBroker("b2", 0), FakeAuditBroker("b3", 4))
    async with api(tmp_path, *brokers) as http:
        found = await pages(http, "/inflight", topic="orders", limit=limit)
        messages = [one for page in found for one in page["messages"]]
        assert [(one["broker"], one["queue_offset"]) for one in messages] == [
            *(("b1", number) for number in range(5)),
            *(("b3", number) for number in range(4)),
        ]
        assert messages[1] == {
            "group": "workers",
            "topic": "orders",
            "broker": "b1",
            "queue_id": 0,
            "queue_offset": 1,
            "message_id": "id-1",
            "attempt": 2,
            "popped_ms": NOW_MS,
            "due_ms": NOW_MS + 30_000,
            "client_id": None,
            "message_group": "",
            "holds_back": 0,
            "born_ms": None,
        }
        assert {page["epoch"] for page in found} == {3}
        of_one = await pages(http, "/inflight", topic="orders", group="spark-archive", broker="b3", limit=limit)
        messages = [one for page in of_one for one in page["messages"]]
        assert {(one["broker"], one["group"]) for one in messages} == {("b3", "spark-archive")}
        assert len(messages) == 4


async def test_progress_comes_from_broker_to_broker(tmp_path: Path) -> None:
    async with api(tmp_path, FakeAuditBroker("b1", 2), FakeAuditBroker("b2", 1)) as http:
        found = await pages(http, "/groups/workers/progress", limit=1)
        queues = [one for page in found for one in page["queues"]]
        assert [(one["broker"], one["queue_id"], one["committed_offset"]) for one in queues] == [
            ("b1", 0, 4),
            ("b1", 1, None),
            ("b2", 0, 4),
        ]
        assert {(one["lag"], one["in_flight"], one["next_offset"], one["max_offset"]) for one in queues} == {
            (7, 3, 5, 9)
        }
        assert {(page["group"], page["kind"], page["dead_letters"]) for page in found} == {("workers", "pop", 2)}
        of_spark = await pages(http, "/groups/spark-archive/progress", topic="orders")
        assert {page["kind"] for page in of_spark} == {"Spark"}


async def test_without_a_broker_there_is_one_empty_page(tmp_path: Path) -> None:
    async with api(tmp_path) as http:
        (page,) = await pages(http, "/inflight", topic="orders")
        assert page == {
            "messages": [],
            "known_since_ms": None,
            "broker": "",
            "epoch": 0,
            "unanswered": [],
            "next": None,
        }


async def test_a_broker_that_does_not_answer_is_named_and_the_next_one_asked(tmp_path: Path) -> None:
    silent, other = FakeAuditBroker("b1", 3), FakeAuditBroker("b2", 1)
    silent.error = RpcError(GrpcStatus.UNAVAILABLE, "connection refused")
    async with api(tmp_path, silent, other) as http:
        for path, name in (("/inflight", "messages"), ("/groups/workers/progress", "queues")):
            first, second = await pages(http, path, topic="orders")
            assert first["unanswered"] == [{"broker": "b1", "reason": "the broker b1 cannot be reached now; try again"}]
            assert (first[name], first["epoch"], second["unanswered"], len(second[name])) == ([], 0, [], 1)


async def test_a_page_goes_on_behind_a_broker_that_is_gone(tmp_path: Path) -> None:
    async with api(tmp_path, FakeAuditBroker("b3", 1)) as http:
        page = (await http.get("/inflight", params={"topic": "orders", "after": "b2/7"})).json()
        assert [(one["broker"], one["queue_offset"]) for one in page["messages"]] == [("b3", 0)]


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("/inflight", {"topic": "nowhere"}, 404, "there is no topic nowhere"),
        ("/inflight", {"topic": "%RETRY%workers+orders"}, 400, "is a retry topic and cannot be received from"),
        ("/inflight", {"topic": "%DLQ%nobody"}, 404, "nobody"),
        ("/inflight", {"topic": "orders", "group": "nobody"}, 404, "nobody"),
        ("/inflight", {"topic": "orders", "limit": "1001"}, 400, "limit: "),
        ("/inflight", {"topic": "orders", "after": "x"}, 400, "after: this is no place"),
        ("/inflight", {"topic": "orders", "after": "b1/x"}, 400, "this is no place to go on from"),
        ("/groups/nobody/progress", {}, 404, "nobody"),
        ("/groups/workers/progress", {"topic": "nowhere"}, 404, "there is no topic nowhere"),
        ("/groups/workers/progress", {"after": "b1/x"}, 400, "this is no place to go on from"),
    ],
)
async def test_what_cannot_be_listed(tmp_path: Path, path: str, asked: dict[str, str], status: int, words: str) -> None:
    async with api(tmp_path, FakeAuditBroker("b1", 1)) as http:
        answer = await http.get(path, params=asked)
        assert answer.status_code == status
        assert words in answer.json()["message"]


async def test_dead_letters_are_in_flight_with_those_who_read_them(tmp_path: Path) -> None:
    async with api(tmp_path, FakeAuditBroker("b1", 1)) as http:
        (page,) = await pages(http, "/inflight", topic="%DLQ%workers")
        assert page["messages"][0]["topic"] == "%DLQ%workers"


async def test_a_deletion_says_what_goes_with_it_and_who_is_there(tmp_path: Path) -> None:
    """As the brokers counted it right before; one that does not answer holds nothing up."""
    a, b = FakeAuditBroker("a", 5), FakeAuditBroker("b", 7)
    async with api(tmp_path, a, b) as http:
        gone = (await http.delete("/topics/orders")).json()
        assert gone.pop("rests_until_ms") > SystemClock().wall_ms()
        assert gone == {
            "name": "orders",
            "deleted": True,
            "unread": 12,
            "in_flight": 4,
            "delayed": 6,
            "half_messages": 0,
            "dead_letters": 0,
            "used_with": ["with-a", "with-b"],
            "used_with_total": 1,
            "polling_proxies": 2,
            "unanswered": [],
        }
        b.error = RpcError(GrpcStatus.UNIMPLEMENTED, "of an older release")
        gone = (await http.delete("/groups/workers")).json()
        assert (gone["unread"], gone["delayed"], gone["dead_letters"]) == (5, 0, 4)
        assert [one["broker"] for one in gone["unanswered"]] == ["b"]
        assert (await http.get("/groups/workers")).status_code == 404
        missing = await http.delete("/groups/workers")
        assert (missing.status_code, missing.json()["code"]) == (404, "CONSUMER_GROUP_NOT_FOUND")
