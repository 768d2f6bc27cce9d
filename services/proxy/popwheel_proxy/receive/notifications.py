"""Notify streams, one per broker: registers this proxy's interests, and receives notifications for them.

After a stream has broken, all interests are registered anew on the next one; a broker notifies at once of messages that
wait already, so none that arrived in between is missed. The next master of a broker group gets a stream of its own at
once.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import NotifyEvents, NotifyInterest
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.lite.lite_subscriptions import Reader
from popwheel_proxy.lite.lite_sync import LiteSync
from popwheel_proxy.receive.interest import Interest
from popwheel_proxy.receive.interest_book import InterestBook
from popwheel_proxy.receive.metrics import PollMetrics
from popwheel_rpc.local import LocalStream
from popwheel_rpc.methods import NOTIFY
from popwheel_rpc.service import Channel, ClientStream, StreamClosedError
from popwheel_rpc.status import RpcError

_PAUSE_FIRST_S = 0.05
_PAUSE_LONGEST_S = 1.0
_PAUSE_NOT_LEADING_S = 0.2
"""Longest pause before the next try at a broker that does not lead yet, or any more."""
_START_S_MAX = 10.0
"""Time without a first stream after which a warning is logged: until then the broker may be starting."""
_LONE_AFTER_S = 0.002
"""Time without a notification after which the next one is taken for one of a lone message."""
_INTERESTS_PER_SEND = 1_000
_READERS_MAX = 10_000
"""Limit of the (topic, group) pairs that brokers are notified of in a minute; a new stream gets all in one turn."""
_READERS_S = 60.0

_logger = structlog.get_logger()


class Notifications:
    """Passes the brokers' notifications of waiting messages to the book.

    Args:
        book: the interests.
        brokers: the brokers there are.
        clock: for the book.
        random_source: spreads reconnects.
        background: where the streams run.
        metrics: what is counted.
        lite: receives brokers' reports about lite topics, and reports which brokers know a client.
    """

    def __init__(
        self,
        book: InterestBook,
        brokers: Brokers,
        clock: Clock,
        random_source: random.Random,
        background: Background,
        metrics: PollMetrics,
        lite: LiteSync,
    ) -> None:
        self._book = book
        self._brokers = brokers
        self._background = background
        self._links: dict[str, _Link] = {}
        self._names: frozenset[str] = frozenset()
        self._readers: dict[tuple[str, str], None] = {}
        """(topic, group) pairs that all brokers were notified of within the last minute."""
        self._tools = _LinkTools(book, clock, random_source, metrics, lite, self._readers)
        self._readers_since = clock.monotonic()
        brokers.subscribe(self.follow)
        lite.subscribe(self._synced)

    def follow(self) -> None:
        """Open streams to new masters, and end those to former ones."""
        for name, link in list(self._links.items()):
            if self._brokers.channel_if_led(name) is not link.channel:
                link.close()
                del self._links[name]
                self._book.stream_ended(name)
                self._book.forget_broker(name)
        for name in self._names.difference(self._brokers.names):
            self._book.forget_broker(name)  # it had no master when it left, so no stream reported that
        self._names = frozenset(self._brokers.names)
        for name in self._brokers.names:
            channel = self._brokers.channel_if_led(name)
            if channel is not None and name not in self._links:
                self._book.stream_ended(name)  # there is none yet
                link = self._links[name] = _Link(name, channel, self._tools)
                link.task = self._background.start(link.run())

    def reads(self, topic: str, group: str) -> bool:
        """Notify all brokers that a group reads a topic: its waiting messages count as lag, wherever it is polled.

        Returns:
            False if there were too many pairs within a minute.
        """
        if (topic, group) in self._readers:
            return True
        if len(self._readers) >= _READERS_MAX:
            return False
        self._readers[topic, group] = None
        for link in self._links.values():
            link.enqueue(_reading(topic, group))
        return True

    def names_changed(self, update: ClusterUpdate) -> None:
        """Forget pairs of deleted topics and groups, as brokers do; after a new creation they are notified again."""
        if update.snapshot:
            self._readers.clear()
        elif self._readers and (update.deleted_topics or update.deleted_groups):
            topics, groups = {*update.deleted_topics}, {*update.deleted_groups}
            for pair in [(topic, group) for topic, group in self._readers if topic in topics or group in groups]:
                del self._readers[pair]

    def register(self, interest: Interest) -> None:
        """Register an interest at all brokers."""
        if not interest.registered:
            self._book.register(interest, self._links)
            message = _registration(interest)
            for link in self._links.values():
                link.enqueue(message)

    def register_at(self, interest: Interest, broker: str) -> None:
        """Have one broker notify for an interest; one without a master is asked once it has one. Polls that wait at one
        that has left go elsewhere.
        """
        if broker not in self._names:
            self._book.forget_broker(broker)
            return
        if not interest.registered and broker not in interest.registered_at:
            interest.registered_at |= {broker}
            link = self._links.get(broker)
            if link is not None:
                link.enqueue(_registration(interest))

    def cancel(self, interest: Interest) -> None:
        """Cancel an interest at all brokers."""
        message = NotifyInterest(id=interest.id, cancel=True)
        for name, link in self._links.items():
            if interest.registered or name in interest.registered_at:
                link.enqueue(message)
        interest.registered = False
        interest.registered_at = frozenset()

    def _synced(self, reader: Reader, broker: str) -> None:
        """Register a client's interest at a broker that refused it, as the broker knows its lite subscriptions now."""
        interest = self._book.refused_at(reader.topic, reader.group, reader.client_id, broker)
        link = self._links.get(broker)
        if interest is not None and link is not None:
            link.enqueue(_registration(interest))

    def time_passed(self, now: float) -> None:
        """Run the periodic work; called ten times a second."""
        if now - self._readers_since >= _READERS_S:  # brokers are notified again: a topic may have been created anew
            self._readers_since = now
            self._readers.clear()
        for interest in self._book.time_passed(now):
            self.cancel(interest)
        for interest, broker in self._book.serve_refused(now):
            link = self._links.get(broker)
            if link is not None:
                link.enqueue(_registration(interest))

    def close(self) -> None:
        """End all streams."""
        for link in self._links.values():
            link.close()
        self._links.clear()


@dataclass(frozen=True, slots=True)
class _LinkTools:
    """Shared parts of the streams to all brokers; see `Notifications`."""

    book: InterestBook
    clock: Clock
    random_source: random.Random
    metrics: PollMetrics
    lite: LiteSync
    readers: Iterable[tuple[str, str]]


class _Link:
    """The stream to one broker, opened again whenever it ends."""

    def __init__(self, name: str, channel: Channel, tools: _LinkTools) -> None:
        self.name = name
        self.channel = channel
        self.task: asyncio.Task[None] | None = None
        self.stream: ClientStream[NotifyEvents, NotifyInterest] | None = None
        self._book = tools.book
        self._clock = tools.clock
        self._random = tools.random_source
        self._metrics = tools.metrics
        self._lite = tools.lite
        self._readers = tools.readers
        self._outbox: list[NotifyInterest | Interest] = []
        """Changes, and interests to be registered: their messages are made when they are sent, as there may be many."""
        self._outbox_filled: asyncio.Future[None] | None = None
        self._leads = True
        self._lone_at_s = 0.0
        self._has_refused = False
        """The broker has refused interests on this stream."""

    def enqueue(self, change: NotifyInterest) -> None:
        """Queue a change for the next write; without a stream it is not needed."""
        self._outbox.append(change)
        if self._outbox_filled is not None and not self._outbox_filled.done():
            self._outbox_filled.set_result(None)

    def close(self) -> None:
        """End the stream for good."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        pause_s = _PAUSE_FIRST_S
        well = True
        warn_at_s = self._clock.monotonic() + _START_S_MAX
        has_warned = False
        while True:
            began = self._clock.monotonic()
            reason = await self._run_one_stream()
            self._book.stream_ended(self.name)
            self._metrics.notify_streams_broken.inc()
            now_s = self._clock.monotonic()
            if now_s - began > _PAUSE_LONGEST_S:
                pause_s = _PAUSE_FIRST_S
                well = True
                warn_at_s, has_warned = now_s, False
            if self._leads and not has_warned and now_s >= warn_at_s:  # while no replica leads, `Brokers` says so
                _logger.warning("notify_stream_ended", broker=self.name, reason=reason)
                has_warned = True
            elif well:
                _logger.info("notify_stream_ended", broker=self.name, reason=reason)
            if well:
                self._lite.stream_ended(self.name)
                well = False
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            pause_s = min(pause_s * 2, _PAUSE_LONGEST_S if self._leads else _PAUSE_NOT_LEADING_S)

    async def _run_one_stream(self) -> str:
        """Open a stream, register everything, and process notifications; return why it ended."""
        self._outbox = list(self._book.registered_at(self.name))
        self._outbox += [_reading(topic, group) for topic, group in self._readers]
        try:
            stream = self.stream = self.channel.open(NOTIFY)
        except RpcError as refusal:
            return str(refusal)
        sender = asyncio.get_running_loop().create_task(self._send(stream))
        self._has_refused = False
        try:
            if isinstance(stream, LocalStream):
                stream.take_at_once(self._take_lone)
            while (events := await stream.receive()) is not None:
                self._take(events)
                if events.lite_ends:
                    await asyncio.sleep(0)  # there may be many such messages
            self._leads = True
            return "the broker ended it"
        except (StatusError, RpcError, StreamClosedError) as error:
            self._leads = not (isinstance(error, StatusError) and error.code == Code.HA_NOT_AVAILABLE)
            return str(error)
        finally:
            sender.cancel()
            stream.cancel()

    def _take_lone(self, events: NotifyEvents) -> bool:
        """Process notifications if the ones before were a while ago; return whether that was done.

        Where messages come fast, a turn of the loop lets the next ones join, so that one pop delivers several.
        """
        if self._clock.monotonic() < self._lone_at_s or events.lite_ends:
            return False
        self._take(events)
        return True

    def _take(self, events: NotifyEvents) -> None:
        """Process notifications; woken polls pop within this step, as far as the broker lets them."""
        now = self._clock.monotonic()
        self._lone_at_s = now + _LONE_AFTER_S
        for event in events.events:
            if not event.refused:
                if not self._book.notified(event.id, self.name, event.waiting, now) and event.shared:
                    self.enqueue(NotifyInterest(id=event.id, forward=True))
                continue
            if event.unknown_client:
                interest = self._book.refuse_unknown(event.id, self.name, now)
                if interest is not None:
                    self._lite.is_unknown(reader_of(interest), self.name)
                continue
            self._book.refuse(event.id, self.name, now)
            if not self._has_refused:
                self._has_refused = True
                _logger.warning("broker_refuses_interests", broker=self.name)
        for end in events.lite_ends:
            self._lite.ended(end, self.name)

    async def _send(self, stream: ClientStream[NotifyEvents, NotifyInterest]) -> None:
        """Send the outbox whenever something is in it."""
        try:
            while True:
                if not self._outbox:
                    self._outbox_filled = asyncio.get_running_loop().create_future()
                    await self._outbox_filled
                now, self._outbox = self._outbox[:_INTERESTS_PER_SEND], self._outbox[_INTERESTS_PER_SEND:]
                await stream.send([_registration(each) if isinstance(each, Interest) else each for each in now])
        except (StatusError, RpcError, StreamClosedError):
            stream.cancel()  # the receiver sees it end too, and opens another


def _reading(topic: str, group: str) -> NotifyInterest:
    return NotifyInterest(topic=topic, group=group, reads=True, cancel=True)


def _registration(interest: Interest) -> NotifyInterest:
    if interest.lite_client_id:
        return NotifyInterest(
            id=interest.id, topic=interest.topic, group=interest.group, lite_client_id=interest.lite_client_id
        )
    return NotifyInterest(id=interest.id, topic=interest.topic, group=interest.group, filter=interest.filter)


def reader_of(interest: Interest) -> Reader:
    """Return the reader of an interest in lite topics."""
    return Reader(interest.group, interest.topic, interest.lite_client_id)
