"""Stream of events with the new messages of a topic; it polls the brokers.

A poll costs a broker little, however many messages there are (`popwheel_broker.core.message_tail`), and a tail polls
all brokers at once, some times in two seconds. It ends after ten minutes at most; the client may open another.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.refusals import refusal
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.http.audit_shapes import ListedMessage, placed
from popwheel_controller.http.bodies import BEGINNING_BYTES_MAX
from popwheel_controller.http.inquiry import Inquiry, LastingInquiry, Silence
from popwheel_controller.http.tail_pace import TailPace
from popwheel_controller.http.tails import AT_ONCE_MAX, Tails
from popwheel_rpc.methods import MESSAGE_TAIL

LASTS_S: Final = 600.0
_POLL_S: Final = 0.7
_HEARTBEAT_S: Final = 5.0
_GRACE_S: Final = 5.0
_HEADERS: Final = {"x-accel-buffering": "no"}
"""Headers that make HTTP proxies forward events at once."""
_TOO_MANY: Final = f"{AT_ONCE_MAX} tails are open, the most at the same time: close one, or browse instead"


@dataclass(frozen=True, slots=True)
class TailAsked:
    """Parameters of a tail.

    Args:
        topic, lite_topic, key, tag: select the messages.
        rate: limit of messages per second.
        sees_data: whether the caller may see bodies and properties.
        check: raises StatusError when the tail is to end: the topic is gone, or another controller leads.
    """

    topic: str
    lite_topic: str
    key: str
    tag: str
    rate: int
    sees_data: bool
    check: Callable[[ClusterState], None]


class _Skipped(BaseModel):
    count: int


class _Unanswered(BaseModel):
    unanswered: list[Silence]


class _End(BaseModel):
    code: str
    reason: str


class Tail:
    """Tail of one client.

    Args:
        inquiry: asks the brokers.
        clock: the time.
        asked: its parameters.
        tails: registry of open tails.
    """

    def __init__(self, inquiry: LastingInquiry, clock: Clock, asked: TailAsked, tails: Tails) -> None:
        self._inquiry = inquiry
        self._clock = clock
        self._asked = asked
        self._tails = tails
        self._places: dict[str, list[pb.TailPlace]] = {}
        self._silent: list[Silence] = []
        self._said: list[Silence] = []
        """Silent brokers in the last event about them."""

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events, until the tail ends."""
        began_s = said_s = self._clock.monotonic()
        pace = TailPace(self._asked.rate, began_s)
        await self._poll(0)
        yield b"event: begun\ndata: {}\n\n"
        while True:
            for event in self._about_silence():
                yield event
            await asyncio.sleep(_POLL_S)
            now_s = self._clock.monotonic()
            if now_s - began_s > LASTS_S:
                yield _event("end", _End(code="OK", reason=f"it has lasted for {LASTS_S / 60:.0f} minutes: ask again"))
                return
            try:
                self._asked.check(self._inquiry.state)
            except StatusError as error:
                yield _event("end", _End(code=code_name(error.code), reason=error.message))
                return
            shown, skipped = await self._poll(pace.room(now_s))
            pace.polled(len(shown), skipped)
            self._tails.shown.inc(len(shown))
            self._tails.skipped.inc(skipped)
            for message in shown:
                yield _event("message", message)
            if count := pace.take_skipped():
                yield _event("skipped", _Skipped(count=count))
            if shown or count:
                said_s = now_s
            elif now_s - said_s >= _HEARTBEAT_S:
                said_s = now_s
                yield b": nothing came\n\n"

    async def _poll(self, room: int) -> tuple[list[ListedMessage], int]:
        """Return the newest messages since the last poll, within the limit, and the number of the others."""
        asked = self._asked
        requests = {
            name: pb.MessageTailRequest(
                topic=asked.topic,
                lite_topic=asked.lite_topic,
                key=asked.key,
                tag=asked.tag,
                limit=room,
                places=self._places.get(name, ()),
            )
            for name in self._inquiry.state.brokers
        }
        answers = await self._inquiry.ask_by_broker(MESSAGE_TAIL, requests)
        self._places |= {name: list(answer.places) for name, answer in answers.given.items()}
        self._silent = answers.unanswered
        found = [(each.stored_ms, name, each) for name, answer in answers.given.items() for each in answer.messages]
        found.sort(key=lambda each: each[:2])
        newest = found[len(found) - room :] if len(found) > room else found
        shown = [
            ListedMessage.model_validate(placed(name, each, asked.sees_data, BEGINNING_BYTES_MAX))
            for _, name, each in newest
        ]
        passed_over = sum(answer.passed_over for answer in answers.given.values())
        return shown, passed_over + len(found) - len(newest)

    def _about_silence(self) -> list[bytes]:
        """Return an event if the set of silent brokers has changed."""
        if self._silent == self._said:
            return []
        self._said = self._silent
        return [_event("unanswered", _Unanswered(unanswered=self._said))]


class TailResponse(StreamingResponse):
    """Response with the events of a tail; refused if too many are open.

    Args:
        inquiry: asks the brokers.
        clock: the time.
        asked: its parameters.
        tails: registry of open tails.
    """

    def __init__(self, inquiry: Inquiry, clock: Clock, asked: TailAsked, tails: Tails) -> None:
        self._asking = inquiry.lasting()
        self._events = Tail(self._asking, clock, asked, tails).events()
        self._tails = tails
        super().__init__(self._events, media_type="text/event-stream", headers=_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. A client that stops reading is disconnected when the tail would have ended."""
        if self._tails.open >= AT_ONCE_MAX:
            await refusal(429, Code.TOO_MANY_REQUESTS, _TOO_MANY)(scope, receive, send)
            return
        self._tails.open += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LASTS_S + _GRACE_S):
                    await super().__call__(scope, receive, send)
        finally:
            self._tails.open -= 1
            await self._events.aclose()
            await self._asking.close()


def _event(kind: str, data: BaseModel) -> bytes:
    """Encode an event for `text/event-stream`; JSON has no line breaks."""
    return f"event: {kind}\ndata: {data.model_dump_json()}\n\n".encode()
