"""SyncLiteSubscription: forwards clients' lite subscriptions to all brokers, and repeats them to those that lost them.

A broker has no subscriptions of a client after a restart, as a new master, or if no report came for a while. It says so
in its answer to a pop, and the whole set is sent again. Clients that are alive are reported every half minute.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import structlog

from popwheel_common.contract.names import LITE_TOPIC_LENGTH_MAX, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, LiteSubscriptionAction, OffsetOption
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import SyncLiteSubscriptionRequest, SyncLiteSubscriptionResponse
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.lite.lite_subscriptions import LiteSubscriptions, Reader, too_many
from popwheel_proxy.lite.metrics import LiteMetrics
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.protocol.validation import check_lite_name, check_reader
from popwheel_proxy.send.send_queues import place_of
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.clients import Clients
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_proxy.session.telemetry import Telemetry
from popwheel_rpc.methods import SYNC_LITE
from popwheel_rpc.service import Call

Synced = Callable[[Reader, str], None]
"""Listener for a reader and the broker that knows all its lite topics now."""

HEARTBEAT_EVERY_S = 30.0
"""Interval of a reader's sign of life to brokers, if it does not report by itself.

It is a third of the time after which brokers forget it.
"""
_AT_ONCE_MAX = 32
"""Calls to brokers at once."""
_BEATS_AT_ONCE = 1_000
"""Readers reported as alive in one turn of the loop: some ten milliseconds."""
_TRY_FOR_S = 10.0
_WARN_EVERY_S = 10.0
_OFFSET_MAX = 2**62
_POLICIES = {
    OffsetOption.LAST: broker.LITE_LAST,
    OffsetOption.MIN: broker.LITE_MIN,
    OffsetOption.MAX: broker.LITE_MAX,
}

_logger = structlog.get_logger()


@dataclass(slots=True)
class _ReportOrder:
    """Order of reports of one reader to brokers: a later report must not overtake an earlier one."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class LiteSync:
    """Keeps the brokers' lite subscriptions in step with those that clients report here.

    Args:
        context: of the proxy.
        book: the reported subscriptions.
        catalog: topics and groups.
        brokers: the broker groups there are.
        masters: the way to them.
        clients: who is alive.
        telemetry: the way to clients.
    """

    def __init__(
        self,
        context: ProxyContext,
        book: LiteSubscriptions,
        catalog: Catalog,
        brokers: Brokers,
        masters: MasterCalls,
        clients: Clients,
        telemetry: Telemetry,
    ) -> None:
        self._book = book
        self._catalog = catalog
        self._brokers = brokers
        self._masters = masters
        self._clients = clients
        self._telemetry = telemetry
        self._clock = context.clock
        self._background = context.background
        self._metrics = LiteMetrics(context.registry)
        self._turns: dict[Reader, _ReportOrder] = {}
        self._unreported: OrderedDict[tuple[Reader, str], bool] = OrderedDict()
        """Reader and broker -> whether all subscriptions are reported, or only a sign of life; the oldest first."""
        self._after_streams: dict[str, tuple[list[Reader], bool]] = {}
        """Readers to report again, by broker.

        They are added after its Notify stream broke or it became master; the flag asks for all that they read.
        """
        self._missed: dict[Reader, set[str]] = {}
        """Reader -> brokers that did not accept all its subscriptions; they get them with its next sign of life."""
        self._reporting = 0
        self._is_beating = False
        self._warn_after = 0.0
        self._synced: list[Synced] = []
        self._metrics.read_from(book)
        brokers.subscribe(self._brokers_changed)

    def subscribe(self, listener: Synced) -> None:
        """Notify `listener` whenever a broker has received all subscriptions of a reader."""
        self._synced.append(listener)

    async def sync(
        self, call: Call, client_id: str, request: SyncLiteSubscriptionRequest, user: str = ""
    ) -> SyncLiteSubscriptionResponse:
        """Store the lite subscriptions of a user's client; answers when all masters know them.

        Raises:
            StatusError: the first rule that is broken, or why a broker could not be notified.
        """
        group = group_name(request.group)
        self._catalog.check_group(group)
        topic = self._catalog.topic(topic_name(request.topic, Use.RECEIVE))
        names = _names_of(call, request)
        _check(topic, request, names, self._book.per_client_max)
        check_reader(topic, self._clients.reads_lite(client_id))
        offset = _offset_of(request)
        now = self._clock.monotonic()
        self._clients.seen(client_id, now, user)
        book, reader = self._book, Reader(group, topic.name, client_id)
        asked = broker.SyncLiteRequest(group=group, topic=topic.name, client_id=client_id, offset=offset)
        undo: Callable[[], None] = _nothing
        match request.action:
            case LiteSubscriptionAction.PARTIAL_ADD:
                undo = partial(book.remove, reader, book.add(reader, names, now), now)
                asked.action = broker.LITE_ADD
                asked.lite_topics.extend(names)
            case LiteSubscriptionAction.PARTIAL_REMOVE:
                book.remove(reader, names, now)
                asked.action = broker.LITE_REMOVE
                asked.lite_topics.extend(names)
            case LiteSubscriptionAction.COMPLETE_ADD:
                undo = partial(book.replace, reader, book.names(reader), now)
                book.replace(reader, names, now)
                asked.action = broker.LITE_SET
                asked.lite_topics.extend(sorted(book.names(reader)))
            case _:
                book.end(reader)
                self._missed.pop(reader, None)
                asked.action = broker.LITE_END
        asked.said_ms = self._clock.wall_ms()
        book.said(reader, asked.said_ms)
        await self._catalog.ensure_group(group)  # last, as it must not be made for a request that is refused (E1)
        try:
            await self._report_to_all(reader, asked, call.deadline)
        except StatusError as error:
            if error.code == Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED:
                undo()
                for name in self._brokers.led:
                    self._report_later(reader, name, everything=True)
            raise
        return SyncLiteSubscriptionResponse(status=OK)

    def client_ends(self, client_id: str) -> None:
        """End the subscriptions of a client that terminates, so that others get its messages at once."""
        for reader in self._book.of_client(client_id):
            self._book.end(reader)
            self._missed.pop(reader, None)
            self._background.start(self._end(reader))

    async def _end(self, reader: Reader) -> None:
        try:
            await self._report_to_all(reader, _request(reader, broker.LITE_END), self._clock.monotonic() + _TRY_FOR_S)
        except StatusError:
            return  # brokers forget it by themselves, in a while

    def is_unknown(self, reader: Reader, name: str) -> None:
        """Report a reader again to a broker that does not know it."""
        if reader in self._book:
            self._report_later(reader, name, everything=True)

    def stream_ended(self, name: str) -> None:
        """Record that the Notify stream of a broker broke: it may have forgotten all readers."""
        _, everything = self._after_streams.get(name, ((), False))
        self._after_streams[name] = self._book.readers, everything
        self._pump()

    def ended(self, end: broker.LiteTopicEnd, name: str) -> None:
        """Notify the reader of a lite topic that ended at a broker, unless its messages go to another broker now."""
        names = self._brokers.names
        if not names or place_of(end.topic, end.lite_topic, names, 1)[0] != name:
            return
        reader = Reader(end.group, end.topic, end.client_id)
        if reader in self._book:
            self._book.remove(reader, (end.lite_topic,), self._clock.monotonic())
        if self._telemetry.unsubscribe_lite(end.client_id, end.group, end.lite_topic):
            self._metrics.ends_notified.inc()

    def tick(self) -> None:
        """Report readers that are alive to brokers, and forget the others; called about once a second."""
        if not self._is_beating:
            self._is_beating = True
            self._background.start(self._beat())

    async def _beat(self) -> None:
        """Report all readers that are due, some in each turn of the loop."""
        try:
            while readers := self._book.not_said_since(self._clock.monotonic() - HEARTBEAT_EVERY_S, _BEATS_AT_ONCE):
                self._beat_for(readers)
                await asyncio.sleep(0)
        finally:
            self._is_beating = False

    def _beat_for(self, readers: Sequence[Reader]) -> None:
        now = self._clock.monotonic()
        for reader in readers:
            topic = self._catalog.find_topic(reader.topic)
            if not self._clients.is_alive(reader.client_id, now) or topic is None or topic.type != TopicType.LITE:
                self._missed.pop(reader, None)
                self._book.end(reader)  # silently: it may be at another proxy
                continue
            self._book.reported(reader, now)
            missed = self._missed.pop(reader, ())
            for name in self._brokers.led:
                self._report_later(reader, name, everything=name in missed)

    def _brokers_changed(self) -> None:
        """Report all readers to new masters: those know none, or have missed the latest reports."""
        for name in self._brokers.changed & self._brokers.led:
            self._after_streams[name] = self._book.readers, True
        self._pump()

    async def _report_to_all(self, reader: Reader, asked: broker.SyncLiteRequest, deadline: float | None) -> None:
        """Report to all masters; a new master gets the report later."""
        self._metrics.syncs.labels(broker.LiteAction.Name(asked.action).removeprefix("LITE_").lower()).inc()
        async with self._ordered(reader):
            names = sorted(self._brokers.led)
            reported = (self._report(name, reader, asked, deadline) for name in names)
            results = await asyncio.gather(*reported, return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, StatusError) and name not in self._brokers.led:
                continue  # its next master is notified
            if isinstance(result, BaseException):
                raise result

    async def _report(self, name: str, reader: Reader, asked: broker.SyncLiteRequest, deadline: float | None) -> None:
        """Report to one broker; with all subscriptions of the reader if the broker does not know it."""
        answer, _ = await self._masters.call(name, SYNC_LITE, asked, deadline)
        if answer.unknown_client and asked.action in (broker.LITE_ADD, broker.LITE_REMOVE):
            self._metrics.repeats.inc()
            with_offset = asked.HasField("offset")
            everything = self._everything(reader, without=asked.lite_topics if with_offset else ())
            await self._masters.call(name, SYNC_LITE, everything, deadline)
            if with_offset:  # which counts only for what is added
                await self._masters.call(name, SYNC_LITE, asked, deadline)
        elif asked.action != broker.LITE_SET:
            return
        for listener in self._synced:
            listener(reader, name)

    def _everything(self, reader: Reader, without: Sequence[str] = ()) -> broker.SyncLiteRequest:
        request = _request(reader, broker.LITE_SET)
        request.lite_topics.extend(sorted(self._book.names(reader).difference(without)))
        request.said_ms, request.is_repeat = self._book.said_ms(reader), True
        return request

    def _report_later(self, reader: Reader, name: str, *, everything: bool) -> None:
        key = (reader, name)
        self._unreported[key] = everything or self._unreported.get(key, False)
        self._pump()

    def _pump(self) -> None:
        """Send the waiting reports, some at a time."""
        while self._reporting < _AT_ONCE_MAX and (self._unreported or self._after_streams):
            if self._unreported:
                (reader, name), everything = self._unreported.popitem(last=False)
            else:
                name, (readers, everything) = next(iter(self._after_streams.items()))
                if not readers:
                    del self._after_streams[name]
                    continue
                reader = readers.pop()
            self._reporting += 1
            self._background.start(self._report_now(reader, name, everything))

    async def _report_now(self, reader: Reader, name: str, everything: bool) -> None:
        try:
            async with self._ordered(reader):
                if reader not in self._book or name not in self._brokers.led:
                    return
                if everything:
                    self._metrics.repeats.inc()
                asked = self._everything(reader) if everything else _request(reader, broker.LITE_ADD)
                await self._report(name, reader, asked, self._clock.monotonic() + _TRY_FOR_S)
        except StatusError as error:
            # The next sign of life, in half a minute, repeats it.
            if everything and reader in self._book:
                self._missed.setdefault(reader, set()).add(name)
            self._metrics.failures.inc()
            now = self._clock.monotonic()
            if now >= self._warn_after:
                self._warn_after = now + _WARN_EVERY_S
                _logger.warning(
                    "lite subscriptions could not be reported to a broker", broker=name, reason=error.message
                )
        finally:
            self._reporting -= 1
            self._pump()

    @asynccontextmanager
    async def _ordered(self, reader: Reader) -> AsyncIterator[None]:
        turn = self._turns.setdefault(reader, _ReportOrder())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[reader]


def _nothing() -> None:
    """Do nothing: there is nothing to be undone."""


def _request(reader: Reader, action: broker.LiteAction.ValueType) -> broker.SyncLiteRequest:
    return broker.SyncLiteRequest(group=reader.group, topic=reader.topic, client_id=reader.client_id, action=action)


def _names_of(call: Call, request: SyncLiteSubscriptionRequest) -> list[str]:
    """Return the lite topics that a client names.

    The Python client (5.1.2) adds and removes one at a time, and sends each character of its name by itself. Nothing
    distinguishes that from names of one letter, so both are accepted. Its next whole set, half a minute later, is
    right.
    """
    names = list(request.lite_topic_set)
    may_be_spelt = (
        request.action in (LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.PARTIAL_REMOVE)
        and 1 < len(names) <= LITE_TOPIC_LENGTH_MAX
        and call.metadata.get("x-mq-language") == "PYTHON"
        and all(len(each) == 1 for each in names)
    )
    return list(dict.fromkeys((*names, "".join(names)))) if may_be_spelt else names


def _check(topic: Topic, request: SyncLiteSubscriptionRequest, names: Sequence[str], names_max: int) -> None:
    """Check what a client asks for.

    Raises:
        StatusError: BAD_REQUEST, ILLEGAL_LITE_TOPIC, LITE_SUBSCRIPTION_QUOTA_EXCEEDED.
    """
    if topic.type != TopicType.LITE:
        raise StatusError(
            Code.BAD_REQUEST,
            f"the topic {topic.name} is not of type LITE, so it has no lite topics; bind the consumer to one that is, "
            "or use a consumer that is not for lite topics",
        )
    if request.action not in LiteSubscriptionAction.values():
        raise StatusError(Code.BAD_REQUEST, f"there is no action {request.action} on lite subscriptions")
    if len(names) > names_max:  # before each of them is looked at
        raise too_many(topic.name, len(names), names_max)
    for name in names:
        check_lite_name(name)


def _offset_of(request: SyncLiteSubscriptionRequest) -> broker.LiteOffset | None:
    """Return where the group begins in the added topics; None if the request does not say.

    Raises:
        StatusError: BAD_REQUEST, ILLEGAL_OFFSET.
    """
    kind = request.offset_option.WhichOneof("offset_type") if request.HasField("offset_option") else None
    if kind is None:
        return None
    if request.action != LiteSubscriptionAction.PARTIAL_ADD:
        raise StatusError(Code.BAD_REQUEST, "an offset option goes with PARTIAL_ADD only; leave it out")
    option = request.offset_option
    if kind == "policy":
        if option.policy not in _POLICIES:
            raise StatusError(Code.ILLEGAL_OFFSET, f"there is no offset policy {option.policy}")
        return broker.LiteOffset(policy=_POLICIES[option.policy])
    number: int = getattr(option, kind)
    if not 0 <= number <= _OFFSET_MAX:
        raise StatusError(Code.ILLEGAL_OFFSET, f"{number} is not an offset, a count or a time; it is negative or huge")
    match kind:
        case "offset":
            return broker.LiteOffset(offset=number)
        case "tail_n":
            return broker.LiteOffset(tail=number)
        case _:
            return broker.LiteOffset(timestamp_ms=number)
