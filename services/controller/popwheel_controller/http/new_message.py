"""Messages sent through the admin API, as a client would send them (pure)."""

import binascii
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, MessageType
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Upper limit of a message body; settings may lower it."""
REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 4 // 3 + 64 * 1024
"""Upper limit of a request: such a body in base64, and the other fields."""
_TIME_MS_MAX: Final = 2**47
_NAMES_MAX: Final = 1_000
_PIECE_LENGTH: Final = 128 * 1024
"""Length of base64 decoded at once, in half a millisecond."""


class NewMessage(BaseModel, extra="forbid"):
    """A message to be sent. At the most one of `message_group`, `deliver_at_ms`, `delay_ms`, `priority` and
    `lite_topic` is given: a message is of one type.
    """

    body: str
    body_encoding: Literal["text", "base64"] = Field(default="text", description="What `body` is; text goes as UTF-8.")
    tag: str = Field(default="", description="Consumers may filter by it.")
    keys: list[str] = Field(default=[], max_length=_NAMES_MAX, description="Words to find it by.")
    properties: dict[str, str] = Field(default={}, max_length=_NAMES_MAX, description="The application's own.")
    message_group: str = Field(default="", description="In which order is kept.")
    deliver_at_ms: int | None = Field(
        default=None, ge=0, le=_TIME_MS_MAX, description="When it is delivered, in milliseconds since 1970."
    )
    delay_ms: int | None = Field(default=None, ge=0, le=_TIME_MS_MAX, description="Or in how many milliseconds.")
    priority: int | None = Field(default=None, ge=0, le=2**31 - 1, description="The highest comes first.")
    lite_topic: str = Field(default="", description="Of a topic of lite topics.")


def send_request(
    new: NewMessage, body: bytes, topic: str, message_id: str, now_ms: int, host: str
) -> SendMessageRequest:
    """Return the request that sends a message.

    Args:
        new: the message.
        body: of it, decoded.
        topic: where it goes.
        message_id: names it.
        now_ms: the time.
        host: the caller's.

    Raises:
        StatusError: BAD_REQUEST: it is of several types.
    """
    request = SendMessageRequest()
    message = request.messages.add(body=body, user_properties=new.properties)
    message.topic.name = topic
    system = message.system_properties
    system.message_id = message_id
    system.keys.extend(new.keys)
    system.body_encoding = definition.IDENTITY
    system.born_host = host
    system.born_timestamp.FromMilliseconds(now_ms)
    system.message_type = MessageType.NORMAL
    if new.tag:
        system.tag = new.tag
    kinds: dict[str, Any] = {
        name: value
        for name in ("message_group", "deliver_at_ms", "delay_ms", "priority", "lite_topic")
        if (value := getattr(new, name)) not in ("", None)
    }
    if len(kinds) > 1:
        raise StatusError(Code.BAD_REQUEST, f"choose one of {' and '.join(kinds)}: a message is of one type")
    if "message_group" in kinds:
        system.message_type, system.message_group = MessageType.FIFO, new.message_group
    elif "priority" in kinds:
        system.message_type, system.priority = MessageType.PRIORITY, kinds["priority"]
    elif "lite_topic" in kinds:
        system.message_type, system.lite_topic = MessageType.LITE, new.lite_topic
    elif kinds:
        system.message_type = MessageType.DELAY
        system.delivery_timestamp.FromMilliseconds(kinds.get("deliver_at_ms", now_ms + (new.delay_ms or 0)))
    return request


def decoded(new: NewMessage) -> Iterator[bytes]:
    """Decode the body of a message, piece by piece, as a long one takes a while.

    Raises:
        StatusError: BAD_REQUEST: it is no base64, or no text.
    """
    if new.body_encoding == "text":
        try:
            yield new.body.encode()
        except UnicodeEncodeError:
            raise StatusError(
                Code.BAD_REQUEST, "body: half of a pair of surrogates stands alone in it: send base64"
            ) from None
        return
    for begin in range(0, len(new.body), _PIECE_LENGTH):
        piece = new.body[begin : begin + _PIECE_LENGTH]
        try:
            if piece.endswith("=") and begin + _PIECE_LENGTH < len(new.body):
                raise ValueError("it goes on behind its end")
            yield b64decode(piece, validate=True)
        except (binascii.Error, ValueError) as error:
            raise StatusError(Code.BAD_REQUEST, f"body: this is no base64: {error}") from None
