"""Telemetry: what a client says of itself, and the settings it gets in answer.

A healthy stream is never ended from here; one whose first settings are refused is. Settings are answered at once and
sent a second time a moment later, for clients that are not listening yet when the first ones come.
"""

import asyncio

from services.common.clock import Clock
from services.common.contract.backoff import steps_ms
from services.common.contract.names import LITE_TOPIC_LENGTH_MAX, Use
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    Language,
    Message,
    Metric,
    RetryPolicy,
    Settings,
    Status,
)
from services.common.pb.apache.rocketmq.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from services.common.pb.popwheel.v1.controller_pb2 import Group, TopicType
from services.common.shares import Shares
from services.proxy.background import Background
from services.proxy.errors import LimitError
from services.proxy.metrics import ProxyMetrics
from services.proxy.options import ProxyOptions
from services.proxy.session.catalog import Catalog
from services.proxy.session.clients import Clients
from services.proxy.session.producer_book import ProducerBook
from services.proxy.session.resources import group_name, topic_name
from services.proxy.statuses import OK, for_client
from services.proxy.validation import filter_of
from services.rpc.service import Call, Stream, StreamClosedError

TelemetryStream = Stream[TelemetryCommand, TelemetryCommand]

_RETRY_MULTIPLIER = 2.0
_SEND_BACKOFF_INITIAL_MS = 10
_SEND_BACKOFF_MAX_MS = 1_000
_STREAMS_PER_CLIENT_MAX = 64
_SETTINGS_BYTES_MAX = 1024 * 1024
_REPEATED_BYTES_MAX = 64 * 1024 * 1024
_ASKED_BYTES_MAX = 64 * 1024 * 1024
_WITH_TRANSACTIONS = (TopicType.TRANSACTION, TopicType.MIXED)
LITE_SUBSCRIPTIONS_MAX = 2_000
"""Lite topics that one client reads of a topic, as clients are told. Fixed: as many as RocketMQ's clients assume; who
needs more starts another client."""
LITE_CLIENTS = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)

# What consumers are told whose group is not known yet; the controller's own default, which it has a moment later.
_ATTEMPTS_MAX = 17


class Session:
    """One Telemetry stream of a client.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: TelemetryStream) -> None:
        self._stream = stream
        self._writing = asyncio.Lock()
        self.welcomed = False
        self.repeat: asyncio.TimerHandle | None = None
        self.repeated_bytes = 0

    async def send(self, command: TelemetryCommand) -> None:
        """Send a command, after those before it.

        Raises:
            StreamClosedError: the client has gone.
        """
        async with self._writing:
            await self._stream.send((command,))


class Telemetry:
    """The Telemetry streams of this proxy.

    Args:
        catalog: groups, for their back-off.
        clients: settings are a sign of life.
        options: what clients are told.
        clock: for signs of life.
        background: where repeated settings are sent.
        metrics: what is counted.
        producers: takes down which client sends to which topic.
    """

    def __init__(
        self,
        catalog: Catalog,
        clients: Clients,
        options: ProxyOptions,
        clock: Clock,
        background: Background,
        metrics: ProxyMetrics,
        producers: ProducerBook,
    ) -> None:
        self._producers = producers
        self._asked = Shares()  # bytes by client
        self._catalog = catalog
        self._clients = clients
        self._options = options
        self._clock = clock
        self._background = background
        self._metrics = metrics
        self._sessions: dict[str, list[Session]] = {}
        self._repeated = Shares()  # bytes by client

    @property
    def repeated_bytes(self) -> int:
        """Bytes of settings that wait to be sent a second time."""
        return self._repeated.total

    @property
    def asked_bytes(self) -> int:
        """Bytes of what clients are asked to do on their streams, on its way to them."""
        return self._asked.total

    @property
    def streams(self) -> int:
        """Streams open now."""
        return sum(map(len, self._sessions.values()))

    async def telemetry(self, call: Call, client_id: str, stream: TelemetryStream) -> None:
        """Serve one stream until the client ends it."""
        session = Session(stream)
        sessions = self._sessions.setdefault(client_id, [])
        if len(sessions) >= _STREAMS_PER_CLIENT_MAX:
            raise LimitError(
                Code.TOO_MANY_REQUESTS,
                "this client has too many Telemetry streams; end some of them",
                "telemetry_streams_per_client_max",
            )
        sessions.append(session)
        try:
            while (command := await stream.receive()) is not None:
                if command.HasField("settings"):
                    await self._take_settings(call, client_id, session, command.settings)
        except StreamClosedError:
            pass  # the ordinary end of a client
        finally:
            self._end_repeat(client_id, session)
            sessions.remove(session)
            if not sessions:
                self._sessions.pop(client_id, None)
                self._producers.remove(client_id)
                assert not self._repeated.held(client_id), "settings are kept for a client that has gone (M1)"

    async def _take_settings(self, call: Call, client_id: str, session: Session, settings: Settings) -> None:
        """Answer a client's settings with what it is to go by.

        Raises:
            StatusError: they are refused, and the client has had none yet. Some clients wait for ever for settings if
                they are only told a status; all of them see that a stream has failed.
        """
        try:
            if settings.ByteSize() > _SETTINGS_BYTES_MAX:
                # They are echoed, and kept for a moment to be sent again: M1.
                raise LimitError(
                    Code.INVALID_CLIENT_PROPERTIES,
                    f"the settings have more than {_SETTINGS_BYTES_MAX} bytes; subscribe to fewer topics",
                    "settings_bytes_max",
                )
            self._clients.seen(client_id, self._clock.monotonic())
            answer = await self.settings_for(settings)
            if settings.client_type:
                self._clients.is_of(client_id, lite=settings.client_type in LITE_CLIENTS)
            if settings.HasField("publishing"):
                self._publishes(client_id, [topic_name(each, Use.SEND) for each in settings.publishing.topics])
        except StatusError as error:
            if settings.WhichOneof("pub_sub") and not session.welcomed:
                raise
            if isinstance(error, LimitError):
                self._metrics.limit_hit(error.limit)
            refusal = Status(code=error.code, message=error.message)
            await session.send(TelemetryCommand(status=for_client(call.metadata, refusal)))
            return
        command = TelemetryCommand(status=OK, settings=answer)
        session.welcomed = True
        await session.send(command)
        if self._options.client.settings_repeat_ms:
            self._repeat(client_id, session, command)

    def sends_halves(self, call: Call, topic: str) -> None:
        """A client sends half messages to a topic: if it has a stream here, it can be asked about them."""
        client_id = call.metadata.get("x-mq-client-id", "")
        if client_id in self._sessions:
            self._publishes(client_id, [topic])

    def _publishes(self, client_id: str, topics: list[str]) -> None:
        # A topic that is not there yet may be made on first use, and then takes transactions.
        found = ((name, self._catalog.find_topic(name)) for name in topics)
        if not self._producers.add(
            client_id, [name for name, topic in found if topic is None or topic.type in _WITH_TRANSACTIONS]
        ):
            self._metrics.limit_hit("producer_topics_max")

    def recover(self, topic: str, transaction_id: str, message: bytes) -> bool:
        """Ask one of a topic's producers, each in turn, how a transaction ended; False if none can be asked."""
        client_id = self._producers.next_of(topic)
        if client_id is None or client_id not in self._sessions:
            return False
        command = TelemetryCommand(
            recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                message=Message.FromString(message), transaction_id=transaction_id
            )
        )
        return self._order(client_id, command, len(message))

    def unsubscribe_lite(self, client_id: str, lite_topic: str) -> bool:
        """Tell a client that a lite topic of its has ended; False if it has no stream here."""
        if client_id not in self._sessions:
            return False
        told = NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
        return self._order(client_id, TelemetryCommand(notify_unsubscribe_lite_command=told), len(lite_topic))

    def _order(self, client_id: str, command: TelemetryCommand, size: int) -> bool:
        """Send a command to a client that has a stream; False if too much is on its way to it."""
        if size > self._asked.room(client_id, _ASKED_BYTES_MAX):
            self._metrics.limit_hit("asked_bytes_max")
            return False
        self._asked.take(client_id, size)
        self._background.start(self._ask(client_id, self._sessions[client_id][-1], command, size))
        return True

    async def _ask(self, client_id: str, session: Session, command: TelemetryCommand, size: int) -> None:
        try:
            await _send_again(session, command)
        finally:
            self._asked.give(client_id, size)

    def _repeat(self, client_id: str, session: Session, command: TelemetryCommand) -> None:
        """Send settings once more in a moment, in place of those that were to be; not if too many are kept for that."""
        self._end_repeat(client_id, session)
        size = command.ByteSize()
        if size > self._repeated.room(client_id, _REPEATED_BYTES_MAX):
            self._metrics.limit_hit("repeated_bytes_max")
            return

        def send_again() -> None:
            self._end_repeat(client_id, session)
            self._background.start(_send_again(session, command))

        self._repeated.take(client_id, size)
        session.repeated_bytes = size
        delay_s = self._options.client.settings_repeat_ms / 1000
        session.repeat = asyncio.get_running_loop().call_later(delay_s, send_again)

    def _end_repeat(self, client_id: str, session: Session) -> None:
        if session.repeat is not None:
            session.repeat.cancel()
            session.repeat = None
            self._repeated.give(client_id, session.repeated_bytes)

    async def settings_for(self, settings: Settings) -> Settings:
        """The settings that a client with these settings is told.

        Raises:
            StatusError: INVALID_CLIENT_PROPERTIES, if it says neither what it publishes nor what it subscribes to;
                ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION.
        """
        answer = Settings()
        answer.CopyFrom(settings)
        answer.metric.CopyFrom(Metric(on=False))
        kind = settings.WhichOneof("pub_sub")
        if kind == "publishing":
            for topic in answer.publishing.topics:
                topic_name(topic, Use.SEND)
            answer.publishing.max_body_size = self._options.message.body_bytes_max
            answer.publishing.validate_message_type = self._options.client.validate_message_type
            answer.backoff_policy.CopyFrom(self._publishing_backoff())
        elif kind == "subscription":
            for entry in answer.subscription.subscriptions:
                topic_name(entry.topic, Use.RECEIVE)
                filter_of(entry.expression)
            await self._tell_consumer(answer)
        else:
            raise StatusError(
                Code.INVALID_CLIENT_PROPERTIES, "the settings hold neither `publishing` nor `subscription`"
            )
        return answer

    async def _tell_consumer(self, answer: Settings) -> None:
        """Fill in what consumers are told: their group's order and back-off, batch size and poll time."""
        options = self._options
        group = None
        if answer.subscription.group.name:
            try:
                group = await self._catalog.ensure_group(group_name(answer.subscription.group))
            except StatusError as error:
                if error.code != Code.HA_NOT_AVAILABLE:
                    raise
        subscription = answer.subscription
        subscription.fifo = group is not None and group.fifo
        subscription.receive_batch_size = options.receive.batch_messages_max
        if answer.client_type in LITE_CLIENTS:
            subscription.lite_subscription_quota = LITE_SUBSCRIPTIONS_MAX
            subscription.max_lite_topic_size = LITE_TOPIC_LENGTH_MAX
        poll_ms = options.grpc_client_consumer_max_long_polling_timeout_ms
        if subscription.HasField("long_polling_timeout"):
            asked_ms = subscription.long_polling_timeout.ToMilliseconds()
            shortest_ms = options.grpc_client_consumer_min_long_polling_timeout_ms
            poll_ms = min(max(asked_ms, shortest_ms, 1), poll_ms)
        subscription.long_polling_timeout.FromMilliseconds(poll_ms)
        answer.backoff_policy.CopyFrom(_consumers_backoff(group, answer.user_agent.language))

    def _publishing_backoff(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self._options.client.send_max_attempts,
            exponential_backoff=_exponential(_SEND_BACKOFF_INITIAL_MS, _SEND_BACKOFF_MAX_MS, _RETRY_MULTIPLIER),
        )


def _consumers_backoff(group: Group | None, language: Language.ValueType) -> RetryPolicy:
    """What a group's consumers are told; the default for a group that is not known yet."""
    attempts = _ATTEMPTS_MAX if group is None else group.max_attempts
    if group is not None and group.HasField("exponential_backoff"):
        policy = group.exponential_backoff
        exponential = _exponential(policy.initial_ms, policy.max_ms, policy.multiplier)
        return RetryPolicy(max_attempts=attempts, exponential_backoff=exponential)
    steps = steps_ms(group)
    if language == Language.NODE_JS:
        # It overlooks any other policy, and with it the attempts: in order it would try a message only once.
        exponential = _exponential(steps[0], steps[-1], _RETRY_MULTIPLIER)
        return RetryPolicy(max_attempts=attempts, exponential_backoff=exponential)
    customized = CustomizedBackoff()
    for milliseconds in steps:
        customized.next.add().FromMilliseconds(milliseconds)
    return RetryPolicy(max_attempts=attempts, customized_backoff=customized)


def _exponential(initial_ms: int, max_ms: int, multiplier: float) -> ExponentialBackoff:
    backoff = ExponentialBackoff(multiplier=multiplier)
    backoff.initial.FromMilliseconds(initial_ms)
    backoff.max.FromMilliseconds(max_ms)
    return backoff


async def _send_again(session: Session, command: TelemetryCommand) -> None:
    try:
        await session.send(command)
    except StreamClosedError:
        return
