"""The admin API's `POST /api/v1/topics/{name}/messages`: a message is sent through a proxy, as if by a client.

The controller asks the proxy for it on the stream by which the proxy takes questions. So what holds for clients holds:
checks, first use of topics, order of message groups, another broker when one fails.
"""

import asyncio
from typing import Any, Final

from fastapi import Request, status
from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.message_id import message_id
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SendMessageRequest, SendMessageResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectQuestion, SendQuestion
from popwheel_common.web.caller import caller_in
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.inspections import Inspections
from popwheel_controller.http.new_message import NewMessage, decoded, send_request
from popwheel_controller.http.path_parts import TopicName
from popwheel_controller.http.refusal import refusal

_SEND_MS: Final = 5_000
_ANSWER_S: Final = 6.0
"""Time-out for an answer, in seconds; less than that of `popwheel admin`."""


class SentMessage(BaseModel):
    """Stored message."""

    message_id: str = Field(description="Id of the message; retries keep it.")
    topic: str = Field(description="Name of the topic.")
    proxy: str = Field(description="Through which it was sent.")
    queue_offset: int | None = Field(description="Its offset in its queue; null for a delayed one.")
    recall_handle: str | None = Field(description="Of a delayed message: handle to recall it (`/timers/recall`).")


_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("A rule for messages is broken, or the topic takes no messages of this type."),
    404: refusal("No such topic, and none is created on first use."),
    413: refusal("The message is too long."),
    504: refusal("The outcome is unknown: search for the message id."),
}


class Sending:
    """Sender of messages, through one proxy after another.

    Args:
        inspections: to ask the proxies.
        clock: the time.
        machine: prefix of message ids, sixteen hexadecimal digits.
    """

    def __init__(self, inspections: Inspections, clock: Clock, machine: str) -> None:
        self._inspections = inspections
        self._clock = clock
        self._machine = machine
        self._count = 0

    def next_id(self) -> str:
        """Return a new message id."""
        self._count += 1
        return message_id(self._clock.wall_ms(), self._machine, self._count)

    async def send(self, request: SendMessageRequest, sent_id: str, peer: str) -> tuple[str, SendMessageResponse]:
        """Send a message once, through one proxy; return its name.

        Args:
            request: with one message.
            sent_id: its id.
            peer: where the caller is.

        Raises:
            StatusError: as the proxy refuses it; or it did not answer, and the outcome is unknown.
        """
        proxies = [each for each in self._inspections.all if each.is_proxy]
        if not proxies:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no proxy is there now through which it can be sent; try again")
        proxy = proxies[self._count % len(proxies)]
        name = proxy.key.removeprefix("proxy/")
        question = SendQuestion(request=request.SerializeToString(), timeout_ms=_SEND_MS, peer=peer)
        try:
            answer = await self._inspections.ask(proxy, InspectQuestion(send=question), _ANSWER_S)
        except StatusError as error:
            raise StatusError(
                error.code, f"{error.message}. It is not known whether {sent_id} is stored: look for it before you send"
            ) from error
        response = SendMessageResponse.FromString(answer.sent)
        if response.status.code != Code.OK:
            raise StatusError(response.status.code, response.status.message)
        return name, response


def send_router(sending: Sending, clock: Clock) -> Routes:
    """Return the routes.

    Args:
        sending: sends.
        clock: the time.
    """
    router = Routes(tags=["topics"])

    @router.post("/topics/{name}/messages", status_code=status.HTTP_201_CREATED, responses=_REFUSED)
    async def send_message(new: NewMessage, request: Request, name: TopicName) -> SentMessage:
        """Send a message through a proxy, as a client would."""
        names.topic(name, Use.SEND)
        caller = caller_in(request.scope.setdefault("state", {}))
        sent_id = sending.next_id()
        body = bytearray()
        for piece in decoded(new):
            body += piece
            await asyncio.sleep(0)
        asked = send_request(new, bytes(body), name, sent_id, clock.wall_ms(), caller.address)
        proxy, response = await sending.send(asked, sent_id, caller.address)
        entry = response.entries[0]
        return SentMessage(
            message_id=entry.message_id,
            topic=name,
            proxy=proxy,
            queue_offset=None if entry.recall_handle else entry.offset,
            recall_handle=entry.recall_handle or None,
        )

    return router
