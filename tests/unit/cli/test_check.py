"""A check says which step failed and why; one that goes well leaves nothing behind."""

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from popwheel_cli.drills import check as checks
from popwheel_cli.drills.check import Check
from popwheel_cli.drills.client import Client
from popwheel_cli.errors import CommandError
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.manual_clock import ManualClock
from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

POLL_MS = 500


class FakeClient:
    """A proxy with one queue, each poll of which takes half a second.

    Args:
        clock: the time.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.ignores_delays = False
        self.ack_code = Code.OK
        self.unknown_until_ms = 0.0
        self._waiting: list[int] = []

    async def send(self, topic: str, body: str, due_ms: int | None = None) -> None:
        self.clock.advance(100)
        if self.clock.wall_ms() < self.unknown_until_ms:
            raise StatusError(Code.TOPIC_NOT_FOUND, f"there is no topic {topic}")
        self._waiting.append(0 if due_ms is None or self.ignores_delays else due_ms)

    async def queues(self, topic: str) -> list[definition.MessageQueue]:
        return [definition.MessageQueue()]

    async def receive(self, queue: definition.MessageQueue, wait_s: float) -> AsyncGenerator[definition.Message, None]:
        self.clock.advance(POLL_MS)
        if self._waiting and self._waiting[0] <= self.clock.wall_ms():
            self._waiting.pop()
            yield definition.Message()

    async def ack(self, topic: str, messages: list[definition.Message]) -> list[service.AckMessageResultEntry]:
        self.clock.advance(100)
        return [service.AckMessageResultEntry(status=definition.Status(code=self.ack_code, message="no such handle"))]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(checks, "_PAUSE_S", 0)
    return FakeClient(ManualClock())


def check(client: FakeClient) -> Check:
    return Check(cast(Client, client), "topic", client.clock, step_s=10.0)


async def test_it_goes_all_the_way(client: FakeClient) -> None:
    took = await check(client).run()
    assert list(took) == [
        "send",
        "receive",
        "acknowledge",
        "send with a delay",
        "receive when due",
        "acknowledge that",
    ]
    assert took["receive when due"] == pytest.approx(2.0)


async def test_it_waits_until_the_proxy_has_learned_of_the_topic(client: FakeClient) -> None:
    client.unknown_until_ms = client.clock.wall_ms() + 2000
    assert (await check(client).run())["send"] == pytest.approx(2.0)


async def test_a_step_that_takes_too_long_is_named(client: FakeClient) -> None:
    client.unknown_until_ms = client.clock.wall_ms() + 60_000
    with pytest.raises(CommandError, match=r"^send: not in 10 s: TOPIC_NOT_FOUND: there is no topic topic$"):
        await check(client).run()


async def test_an_ack_that_is_refused_fails_it(client: FakeClient) -> None:
    client.ack_code = Code.INVALID_RECEIPT_HANDLE
    with pytest.raises(CommandError, match=r"^acknowledge: not in 10 s: INVALID_RECEIPT_HANDLE: no such handle$"):
        await check(client).run()


async def test_a_delayed_message_that_comes_too_early_fails_it(client: FakeClient) -> None:
    client.ignores_delays = True
    with pytest.raises(CommandError, match="came 1400 ms before its time"):
        await check(client).run()


def test_what_it_made_is_deleted_when_it_fails_too() -> None:
    answers: dict[str, Any] = {"POST /topics": (200, {}), "POST /groups": (200, {})}
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "check", "--proxy", "nowhere")
    assert sentence_of(result) == "--proxy must be host:port, not 'nowhere'"
    assert [words.partition("popwheel-check-")[0] for words, _ in api.asked] == [
        "POST /topics",
        "POST /groups",
        "DELETE /topics/",
        "DELETE /groups/",
    ]
