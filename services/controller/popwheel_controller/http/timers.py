"""Queries of the brokers' delayed messages, for the admin API.

A list of all brokers' timers is ordered by second, and within a second by broker. Each broker reports how far it has
scanned; timers of others beyond that are left for a later page.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from popwheel_common.contract import names, recall_handle
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_controller.http.inquiry import Answers, Inquiry, Silence, away
from popwheel_rpc.methods import RECALL, TIMER_HISTOGRAM, TIMER_LIST, TIMER_STATS

_PLACE = re.compile(r"([0-9]{1,18})/([A-Za-z0-9_-]{1,64})/(?:([0-9]{1,18})\.([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class TimerPage:
    """Page of delayed messages.

    Args:
        timers: each with its broker's name, the earliest first.
        next: where the next page goes on; None if this is the last.
        unanswered: the brokers that did not answer.
    """

    timers: list[tuple[str, pb.TimerEntry]]
    next: str | None
    unanswered: list[Silence]


class _Place(NamedTuple):
    """Start of a page: everything before this second, and in it that of earlier brokers, was listed.

    Args:
        slot_ms: the second.
        broker: the broker.
        unit: position within that second of that broker, exclusive; None for its start.
    """

    slot_ms: int = 0
    broker: str = ""
    unit: tuple[int, int] | None = None

    def __str__(self) -> str:
        unit = "" if self.unit is None else "{}.{}".format(*self.unit)
        return f"{self.slot_ms}/{self.broker}/{unit}"

    @classmethod
    def of(cls, text: str) -> "_Place":
        """Parse a place made by `str`; an empty text is the first place."""
        if not text:
            return cls()
        match = _PLACE.fullmatch(text)
        if match is None:
            raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
        return cls(int(match[1]), match[2], None if match[3] is None else (int(match[3]), int(match[4])))

    @classmethod
    def at_broker(cls, broker: str, place: pb.TimerPlace) -> "_Place":
        """Return the place for a broker's answer."""
        unit = (place.unit_position, place.record_position) if place.HasField("unit_position") else None
        return cls(place.slot_ms, broker, unit)

    def at(self, broker: str) -> pb.TimerPlace:
        """Return the start of a broker's own list."""
        if broker < self.broker:
            return pb.TimerPlace(slot_ms=self.slot_ms + 1)
        if broker > self.broker or self.unit is None:
            return pb.TimerPlace(slot_ms=self.slot_ms)
        return pb.TimerPlace(slot_ms=self.slot_ms, unit_position=self.unit[0], record_position=self.unit[1])


def _merged(answers: Answers[pb.TimerListResponse], limit: int) -> TimerPage:
    """Merge the brokers' lists, as far as each of them has scanned."""
    ends = [_Place.at_broker(name, answer.next) for name, answer in answers.given.items() if answer.HasField("next")]
    end = min(ends, key=lambda each: each[:2], default=None)
    found = [
        (_Place.at_broker(name, each.after), each) for name, answer in answers.given.items() for each in answer.timers
    ]
    found.sort(key=lambda each: each[0][:2])
    if end is not None:
        found = [each for each in found if each[0][:2] <= end[:2]]
    if len(found) > limit:
        found = found[:limit]
        end = found[-1][0]
    timers = sorted(((place.broker, each) for place, each in found), key=lambda each: (each[1].due_ms, each[0]))
    return TimerPage(timers, None if end is None else str(end), answers.unanswered)


class Timers:
    """Delayed messages of all brokers.

    Args:
        inquiry: asks the brokers.
    """

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry

    async def stats(self) -> Answers[pb.TimerStatsResponse]:
        """Return the number of delayed messages of each broker."""
        return await self._inquiry.of_all(TIMER_STATS, pb.TimerStatsRequest())

    async def histogram(self, topic: str, bounds_ms: Sequence[int]) -> Answers[pb.TimerHistogramResponse]:
        """Count the messages that are due within given times.

        Raises:
            StatusError: TOPIC_NOT_FOUND.
        """
        if topic:
            self._inquiry.state.topic(topic)
        return await self._inquiry.of_all(TIMER_HISTOGRAM, pb.TimerHistogramRequest(topic=topic, bounds_ms=bounds_ms))

    async def page(self, topic: str, within_ms: int, limit: int, broker: str, after: str) -> "TimerPage":
        """List delayed messages, in the order of the seconds in which the timer handles them next.

        Args:
            topic: of the messages; empty for all topics.
            within_ms: due within this time from now.
            limit: maximum number.
            broker: of the messages; empty for all brokers.
            after: `next` of the page before; empty for the first one.

        Raises:
            StatusError: TOPIC_NOT_FOUND; BAD_REQUEST, `after` is of no page.
        """
        state = self._inquiry.state
        if topic:
            state.topic(topic)
        begin = _Place.of(after)
        requests = {
            name: pb.TimerListRequest(topic=topic, within_ms=within_ms, limit=limit, begin=begin.at(name))
            for name in ([broker] if broker else state.brokers)
        }
        return _merged(await self._inquiry.ask_by_broker(TIMER_LIST, requests), limit)

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a message; return its id.

        Raises:
            StatusError: ILLEGAL_TOPIC; as the broker says; HA_NOT_AVAILABLE if it is away, BAD_REQUEST if the handle is
                of no broker.
        """
        names.topic(topic, Use.SEND)
        name = recall_handle.broker_name(handle)
        state = self._inquiry.state
        if name not in state.brokers:
            recall_handle.decode(state.receipt_key, topic, handle)
            raise away(name)
        answer = await self._inquiry.of(name, RECALL, pb.RecallRequest(topic=topic, recall_handle=handle))
        return answer.message_id
