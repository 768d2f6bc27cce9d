"""A message that is sent over the admin API goes through a proxy, once; and what the proxy says comes back."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, Status
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_controller.http import send_routes
from tests.unit.controller.test_client_routes import FakeProxy, api


class SendingProxy(FakeProxy):
    """Takes messages."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)
        self.sent: list[Message] = []
        self.peers: list[str] = []
        self.status = Status(code=Code.OK)
        self.recall_handle = ""

    async def answer(self, question: pb.InspectQuestion) -> pb.InspectAnswer:
        (message,) = service_pb2.SendMessageRequest.FromString(question.send.request).messages
        self.sent.append(message)
        self.peers.append(question.send.peer)
        if self.hangs:
            await asyncio.Event().wait()
        response = service_pb2.SendMessageResponse(status=self.status)
        if self.status.code == Code.OK:
            response.entries.add(
                message_id=message.system_properties.message_id, offset=5, recall_handle=self.recall_handle
            )
        return pb.InspectAnswer(sent=response.SerializeToString())


async def send(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await http.post("/topics/orders/messages", json={"body": "x", **fields})


async def test_proxies_take_turns_and_ids_differ(tmp_path: Path) -> None:
    proxies = SendingProxy("p1"), SendingProxy("p2")
    async with api(tmp_path, *proxies) as http:
        answers = [(await send(http, keys=["k"])).json() for _ in range(4)]
        assert sorted(each["proxy"] for each in answers) == ["p1", "p1", "p2", "p2"]
        assert len({each["message_id"] for each in answers}) == 4
        assert {(each["topic"], each["queue_offset"], each["recall_handle"]) for each in answers} == {
            ("orders", 5, None)
        }
        sent = [each for proxy in proxies for each in proxy.sent]
        assert {each.system_properties.message_id for each in sent} == {each["message_id"] for each in answers}
        assert {(each.body, each.topic.name) for each in sent} == {(b"x", "orders")}
        assert proxies[0].peers == ["127.0.0.1", "127.0.0.1"]
        proxies[0].recall_handle = proxies[1].recall_handle = "handle"
        late = (await send(http, delay_ms=5)).json()
        assert (late["queue_offset"], late["recall_handle"]) == (None, "handle")


async def test_a_refusal_comes_back_as_it_is(tmp_path: Path) -> None:
    proxy = SendingProxy("p1")
    proxy.status = Status(code=Code.MESSAGE_BODY_TOO_LARGE, message="the body is too long")
    async with api(tmp_path, proxy) as http:
        answer = await send(http)
        assert (answer.status_code, answer.json()) == (
            413,
            {"code": "MESSAGE_BODY_TOO_LARGE", "message": "the body is too long"},
        )


async def test_without_a_proxy_nothing_is_sent(tmp_path: Path) -> None:
    async with api(tmp_path) as http:
        answer = await send(http)
        assert (answer.status_code, answer.json()["code"]) == (500, "HA_NOT_AVAILABLE")
        assert "no proxy" in answer.json()["message"]


async def test_a_proxy_that_does_not_answer_leaves_doubt_and_no_other_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_routes, "_ANSWER_S", 0.2)
    proxies = SendingProxy("p1"), SendingProxy("p2")
    for each in proxies:
        each.hangs = True
    async with api(tmp_path, *proxies) as http:
        answer = await send(http)
        assert (answer.status_code, answer.json()["code"]) == (504, "PROXY_TIMEOUT")
        (sent,) = (each for proxy in proxies for each in proxy.sent)
        assert f"not known whether {sent.system_properties.message_id} is stored" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "fields", "code"),
    [
        ("/topics/%25DLQ%25g/messages", {}, "ILLEGAL_TOPIC"),
        ("/topics/rmq_sys_x/messages", {}, "ILLEGAL_TOPIC"),
        ("/topics/orders/messages", {"priority": 1, "lite_topic": "l"}, "BAD_REQUEST"),
        ("/topics/orders/messages", {"body_encoding": "base64", "body": "?"}, "BAD_REQUEST"),
        ("/topics/orders/messages", {"body_encoding": "hex"}, "BAD_REQUEST"),
        ("/topics/orders/messages", {"properties": {"p": 1}}, "BAD_REQUEST"),
        ("/topics/orders/messages", {"what": 1}, "BAD_REQUEST"),
    ],
)
async def test_what_cannot_be_sent_reaches_no_proxy(
    tmp_path: Path, path: str, fields: dict[str, Any], code: str
) -> None:
    proxy = SendingProxy("p1")
    async with api(tmp_path, proxy) as http:
        answer = await http.post(path, json={"body": "secret", **fields})
        assert (answer.status_code, answer.json()["code"]) == (400, code)
        assert proxy.sent == []
        assert "secret" not in (await http.get("/changes")).text


async def test_the_line_of_a_send_has_its_id_and_not_its_body(tmp_path: Path) -> None:
    async with api(tmp_path, SendingProxy("p1")) as http:
        sent = (await send(http, body="secret", properties={"p": "secret"}, keys=["key-of-it"])).json()
        (line,) = (await http.get("/changes")).json()["changes"]
        assert (line["verb"], line["object"], line["outcome"]) == ("message send", "orders", "done")
        assert sent["message_id"] in line["after"]
        assert "secret" not in str(line) and "key-of-it" not in str(line)
