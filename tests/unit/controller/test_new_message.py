"""Messages that callers of the admin API send become requests as clients make them; or it is said why not."""

import os
from base64 import b64encode
from typing import Any

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message, MessageType
from popwheel_controller.http.new_message import NewMessage, decoded, send_request

NOW_MS = 1_700_000_000_123


def message(**fields: Any) -> Message:
    request = send_request(NewMessage(body="x", **fields), b"x", "orders", "id-1", NOW_MS, "10.0.0.7")
    (only,) = request.messages
    return only


def body(text: str, encoding: Any = "base64") -> bytes:
    return b"".join(decoded(NewMessage(body=text, body_encoding=encoding)))


def test_all_fields_are_those_of_a_client() -> None:
    made = message(tag="red", keys=["a", "b"], properties={"p": "v"})
    system = made.system_properties
    assert (made.topic.name, made.body, dict(made.user_properties)) == ("orders", b"x", {"p": "v"})
    assert (system.message_id, system.tag, [*system.keys], system.born_host) == ("id-1", "red", ["a", "b"], "10.0.0.7")
    assert (system.message_type, system.born_timestamp.ToMilliseconds()) == (MessageType.NORMAL, NOW_MS)


@pytest.mark.parametrize(
    ("fields", "kind", "name", "value"),
    [
        ({"message_group": "g"}, MessageType.FIFO, "message_group", "g"),
        ({"priority": 0}, MessageType.PRIORITY, "priority", 0),
        ({"lite_topic": "l"}, MessageType.LITE, "lite_topic", "l"),
    ],
)
def test_types(fields: dict[str, Any], kind: int, name: Any, value: object) -> None:
    system = message(**fields).system_properties
    assert (system.message_type, system.HasField(name), getattr(system, name)) == (kind, True, value)


@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [({"deliver_at_ms": 5}, 5), ({"delay_ms": 0}, NOW_MS), ({"delay_ms": 60_000}, NOW_MS + 60_000)],
)
def test_delivery_times(fields: dict[str, Any], due_ms: int) -> None:
    system = message(**fields).system_properties
    assert (system.message_type, system.delivery_timestamp.ToMilliseconds()) == (MessageType.DELAY, due_ms)


def test_a_message_is_of_one_type() -> None:
    with pytest.raises(StatusError, match="choose one of message_group and priority") as caught:
        message(message_group="g", priority=0)
    assert caught.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize("size", [0, 1, 2, 3, 98_303, 98_304, 98_305, 98_306, 300_000])
def test_bodies_in_base64_of_any_length(size: int) -> None:
    data = os.urandom(size)
    assert body(b64encode(data).decode()) == data


def test_text_is_utf_8() -> None:
    assert body("grüße\n", "text") == "grüße\n".encode()


@pytest.mark.parametrize(
    ("text", "encoding", "sentence"),
    [
        ("a", "base64", "no base64"),
        ("Zm9v!", "base64", "no base64"),
        ("A" * 131_070 + "==" + "AAAA", "base64", "goes on behind its end"),
        ("\ud800", "text", "send base64"),
    ],
)
def test_what_is_no_body(text: str, encoding: str, sentence: str) -> None:
    with pytest.raises(StatusError, match=sentence):
        body(text, encoding)
