"""Telemetry: the settings that a client reports, and those that it gets in answer.

A healthy stream is never ended from here; one whose first settings are refused is. Settings are answered at once and
sent a second time a moment later, for clients that are not listening yet when the first ones come.

Streams are independent: a stream's checks depend on its own settings, and its end affects no other stream. So a
stream that another process opens under a client's id gets nothing of that client's.
"""

import asyncio
from collections.abc import Callable, Sequence

from popwheel_common.contract.backoff import steps_ms
from popwheel_common.contract.names import LITE_TOPIC_LENGTH_MAX, Use
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    Address,
    ClientType,
    Code,
    CustomizedBackoff,
    Endpoints,
    ExponentialBackoff,
    Language,
    Message,
    Metric,
    Resource,
    RetryPolicy,
    Settings,
    Status,
)
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, TopicType
from popwheel_common.shares import Shares
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.protocol.client_methods import REQUEST_BYTES_MAX
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.filters import Filters
from popwheel_proxy.protocol.statuses import OK, for_client
from popwheel_proxy.protocol.turns import Turns, pieces
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.client_facts import facts_of
from popwheel_proxy.session.clients import Clients
from popwheel_proxy.session.producer_book import Producer, ProducerBook
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_proxy.session.routes import address_scheme
from popwheel_rpc.service import Call, Stream, StreamClosedError

TelemetryStream = Stream[TelemetryCommand, TelemetryCommand]

_RETRY_MULTIPLIER = 2.0
_SEND_BACKOFF_INITIAL_MS = 10
_SEND_BACKOFF_MAX_MS = 1_000
_STREAMS_PER_CLIENT_MAX = 64
_REPEATED_BYTES_MAX = 64 * 1024 * 1024
_ASKED_BYTES_MAX = 64 * 1024 * 1024
_HALF_TOPICS_MAX = 1_000
"""Limit of the topics that a stream is checked for only because its client sent half messages to them."""
_PRODUCERS_TRIED_MAX = 100
_WITH_TRANSACTIONS = (TopicType.TRANSACTION, TopicType.MIXED)
SETTINGS_ENTRIES_MAX = 2_000
"""Topics, or subscriptions, in one client's settings. Fixed: use several clients for more."""
LITE_SUBSCRIPTIONS_MAX = 2_000
"""Limit of lite topics that one client reads of a topic. Fixed: as many as RocketMQ's clients assume; who needs more
starts another client."""
LITE_CLIENTS = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)

# The settings of consumers whose group is not known yet; the controller's own default, which it has a moment later.
_ATTEMPTS_MAX = 17


class Session:
    """A Telemetry stream of a client.

    Args:
        stream: the stream.
        producer: the client, and the stream's number.
        user: the user that opened it; empty where users are not checked.
        may_publish: whether that user may send to a topic now.
    """

    def __init__(
        self, stream: TelemetryStream, producer: Producer, user: str, may_publish: Callable[[str], bool]
    ) -> None:
        self._stream = stream
        self._writing = asyncio.Lock()
        self.producer = producer
        self.user = user
        self.may_publish = may_publish
        self.publishes = False
        """True if its settings are a producer's."""
        self.named: set[str] = set()
        """Topics in its latest settings."""
        self.half_topics: set[str] = set()
        """Topics that its client sent half messages to, perhaps before its settings came."""
        self.group = ""
        """The consumer group in its settings."""
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
        context: of the proxy; its options are in clients' settings.
        catalog: groups, for their back-off.
        clients: settings are a sign of life.
        producers: records the streams of producers, by topic.
        filters: parses those of consumers.
        turns: for large settings.
        metrics_endpoint: host:port of the collector of clients' own metrics; empty if there is none.
    """

    def __init__(
        self,
        context: ProxyContext,
        catalog: Catalog,
        clients: Clients,
        producers: ProducerBook,
        filters: Filters,
        turns: Turns,
        metrics_endpoint: str = "",
    ) -> None:
        self._producers = producers
        self._filters = filters
        self._turns = turns
        self._asked = Shares()  # bytes by client
        self._catalog = catalog
        self._clients = clients
        self._options = context.options
        self._clients_metrics = clients_metrics(metrics_endpoint)
        self._clock = context.clock
        self._background = context.background
        self._metrics = context.metrics
        self._sessions: dict[str, dict[int, Session]] = {}
        """Sessions by client id and number."""
        self._streams_begun = 0
        self._repeated = Shares()  # bytes by client

    @property
    def repeated_bytes(self) -> int:
        """Bytes of settings that wait to be sent a second time."""
        return self._repeated.total

    @property
    def asked_bytes(self) -> int:
        """Bytes of commands that wait to be sent to clients."""
        return self._asked.total

    def streams_of(self, client_id: str) -> int:
        """Return the number of a client's open streams."""
        return len(self._sessions.get(client_id, ()))

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return sum(map(len, self._sessions.values()))

    async def telemetry(
        self,
        call: Call,
        client_id: str,
        stream: TelemetryStream,
        user: str = "",
        may_publish: Callable[[str], bool] = lambda topic: True,
    ) -> None:
        """Serve one stream until the client ends it.

        Args:
            call: its call.
            client_id: its client.
            stream: the stream.
            user, may_publish: as in `Session`.

        Raises:
            StatusError: the client is refused.
        """
        sessions = self._sessions.setdefault(client_id, {})
        if len(sessions) >= _STREAMS_PER_CLIENT_MAX:
            raise LimitError(
                Code.TOO_MANY_REQUESTS,
                "this client has too many Telemetry streams; end some of them",
                "telemetry_streams_per_client_max",
            )
        self._streams_begun += 1
        session = Session(stream, Producer(client_id, self._streams_begun), user, may_publish)
        sessions[session.producer.stream] = session
        self._clients.call_opened(client_id, user)
        try:
            while (command := await self._next(call, session, stream)) is not None:
                if command.HasField("settings"):
                    await self._take_settings(call, session, command.settings)
        except StreamClosedError:
            pass  # the ordinary end of a client
        finally:
            self._clients.call_closed(client_id, self._clock.monotonic(), user, broken=True)
            self._end_repeat(session)
            del sessions[session.producer.stream]
            self._producers.remove(session.producer)
            if not sessions:
                del self._sessions[client_id]
                assert not self._repeated.share(client_id), "settings are kept for a client that has gone (M1)"

    async def _next(self, call: Call, session: Session, stream: TelemetryStream) -> TelemetryCommand | None:
        """Return the next command that is not too large.

        Raises:
            StatusError: it is, and the client was sent no settings yet.
        """
        while True:
            try:
                return await stream.receive()
            except LimitError as error:
                await self._refuse(call, session, error, is_first=not session.welcomed)

    async def _take_settings(self, call: Call, session: Session, settings: Settings) -> None:
        """Answer a client's settings with the settings that it must use.

        Raises:
            StatusError: they are refused, and the client has had none yet. Some clients wait for ever for settings if
                they only get a status; all of them see that a stream has failed.
        """
        client_id = session.producer.client_id
        try:
            if settings.ByteSize() > REQUEST_BYTES_MAX:
                # They are echoed, and kept for a moment to be sent again: M1. Callers of this process send no bytes.
                raise LimitError(
                    Code.INVALID_CLIENT_PROPERTIES,
                    f"the settings have more than {REQUEST_BYTES_MAX} bytes; subscribe to fewer topics",
                    "settings_bytes_max",
                )
            self._clients.seen(client_id, self._clock.monotonic(), session.user)
            answer = await self.settings_for(client_id, settings)
            self._clients.says(client_id, facts_of(settings), call.peer)
            if settings.client_type:
                self._clients.is_of(client_id, lite=settings.client_type in LITE_CLIENTS)
            if settings.HasField("publishing"):
                session.publishes = True
                await self._names(session, settings.publishing.topics)
            elif settings.subscription.group.name:
                session.group = group_name(settings.subscription.group)
        except StatusError as error:
            is_first = bool(settings.WhichOneof("pub_sub")) and not session.welcomed
            await self._refuse(call, session, error, is_first=is_first)
            return
        command = TelemetryCommand(status=OK, settings=answer)
        session.welcomed = True
        await session.send(command)
        if self._options.client.settings_repeat_ms:
            self._repeat(session, command)

    async def _refuse(self, call: Call, session: Session, error: StatusError, *, is_first: bool) -> None:
        """Send a client the refusal of a command.

        Raises:
            StatusError: it was the first command that needs an answer.
        """
        if is_first:
            raise error
        if isinstance(error, LimitError):
            self._metrics.limit_hit(error.limit)
        refusal = Status(code=error.code, message=error.message)
        await session.send(TelemetryCommand(status=for_client(call.metadata, refusal)))

    def sends_half_messages(self, client_id: str, user: str, topic: str) -> None:
        """Record that a user's client sends half messages to a topic: its streams here can be checked for them."""
        for session in self._sessions.get(client_id, {}).values():
            if session.user == user:
                if session.welcomed and not session.publishes:
                    continue
                if topic not in session.half_topics and len(session.half_topics) >= _HALF_TOPICS_MAX:
                    self._metrics.limit_hit("producer_topics_max")
                    continue
                session.half_topics.add(topic)
                if session.publishes:
                    self._publishes(session, [topic])

    async def _names(self, session: Session, topics: Sequence[Resource]) -> None:
        """Set the topics that a stream can be checked for to those of its producer's settings."""
        named: set[str] = set()
        for some in pieces(topics):
            async with self._turns.one():
                named.update(topic_name(each, Use.SEND) for each in some)
        self._producers.remove(session.producer, session.named - named - session.half_topics)
        session.named = named
        for names in pieces([*named, *session.half_topics]):
            async with self._turns.one():
                self._publishes(session, names)

    def _publishes(self, session: Session, topics: Sequence[str]) -> None:
        # A topic that is not there yet may be made on first use, and then takes transactions.
        found = ((name, self._catalog.find_topic(name)) for name in topics)
        if not self._producers.add(
            session.producer, [name for name, topic in found if topic is None or topic.type in _WITH_TRANSACTIONS]
        ):
            self._metrics.limit_hit("producer_topics_max")

    def recover(self, topic: str, transaction_id: str, message: bytes) -> bool:
        """Send a transaction check to one of a topic's producers, in turn; False if none can be checked."""
        for _ in range(_PRODUCERS_TRIED_MAX):
            producer = self._producers.next_of(topic)
            if producer is None:
                break
            session = self._sessions[producer.client_id][producer.stream]
            if session.may_publish(topic):
                command = TelemetryCommand(
                    recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
                        message=Message.FromString(message), transaction_id=transaction_id
                    )
                )
                return self._order(session, command, len(message))
            self._producers.remove(producer, (topic,))  # the rules have changed since
        return False

    def unsubscribe_lite(self, client_id: str, group: str, lite_topic: str) -> bool:
        """Notify a client's consumers of a group that a lite topic of theirs has ended; False if none is here."""
        command = TelemetryCommand(notify_unsubscribe_lite_command=NotifyUnsubscribeLiteCommand(lite_topic=lite_topic))
        sessions = [each for each in self._sessions.get(client_id, {}).values() if each.group == group]
        sent = [self._order(each, command, len(lite_topic)) for each in sessions]
        return any(sent)

    def _order(self, session: Session, command: TelemetryCommand, size: int) -> bool:
        """Send a command on a stream; False if too many bytes wait for its client."""
        client_id = session.producer.client_id
        if size > self._asked.room(client_id, _ASKED_BYTES_MAX):
            self._metrics.limit_hit("asked_bytes_max")
            return False
        self._asked.take(client_id, size)
        self._background.start(self._ask(session, command, size))
        return True

    async def _ask(self, session: Session, command: TelemetryCommand, size: int) -> None:
        try:
            await _send_again(session, command)
        finally:
            self._asked.give(session.producer.client_id, size)

    def _repeat(self, session: Session, command: TelemetryCommand) -> None:
        """Send settings once more in a moment, in place of earlier ones; not if too many bytes wait for that."""
        self._end_repeat(session)
        client_id = session.producer.client_id
        size = command.ByteSize()
        if size > self._repeated.room(client_id, _REPEATED_BYTES_MAX):
            self._metrics.limit_hit("repeated_bytes_max")
            return

        def send_again() -> None:
            self._end_repeat(session)
            self._background.start(_send_again(session, command))

        self._repeated.take(client_id, size)
        session.repeated_bytes = size
        delay_s = self._options.client.settings_repeat_ms / 1000
        session.repeat = asyncio.get_running_loop().call_later(delay_s, send_again)

    def _end_repeat(self, session: Session) -> None:
        if session.repeat is not None:
            session.repeat.cancel()
            session.repeat = None
            self._repeated.give(session.producer.client_id, session.repeated_bytes)

    async def settings_for(self, client_id: str, settings: Settings) -> Settings:
        """Return the settings that are sent to a client with these settings.

        Raises:
            StatusError: INVALID_CLIENT_PROPERTIES, if it says neither what it publishes nor what it subscribes to, or
                says too much; ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_FILTER_EXPRESSION; TOO_MANY_REQUESTS.
        """
        kind = settings.WhichOneof("pub_sub")
        check_entries(settings)
        answer = Settings()
        answer.CopyFrom(settings)
        answer.metric.CopyFrom(self._clients_metrics)
        if kind == "publishing":
            for topics in pieces(answer.publishing.topics):
                async with self._turns.one():
                    for topic in topics:
                        topic_name(topic, Use.SEND)
            answer.publishing.max_body_size = self._options.message.body_bytes_max
            answer.publishing.validate_message_type = True
            answer.backoff_policy.CopyFrom(self._publishing_backoff())
        elif kind == "subscription":
            for entries in pieces(answer.subscription.subscriptions):
                async with self._turns.one():
                    for entry in entries:
                        topic_name(entry.topic, Use.RECEIVE)
                for entry in entries:
                    await self._filters.read(client_id, entry.expression)
            await self._fill_consumer_settings(answer)
        else:
            raise StatusError(
                Code.INVALID_CLIENT_PROPERTIES, "the settings hold neither `publishing` nor `subscription`"
            )
        return answer

    async def _fill_consumer_settings(self, answer: Settings) -> None:
        """Fill in the settings of consumers: their group's order and back-off, batch size and poll time."""
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


def clients_metrics(endpoint: str) -> Metric:
    """Return the settings for clients' own metrics.

    Args:
        endpoint: host:port of their collector; empty if there is none.
    """
    if not endpoint:
        return Metric(on=False)
    host, _, port = endpoint.rpartition(":")
    address = Address(host=host.strip("[]"), port=int(port))
    return Metric(on=True, endpoints=Endpoints(scheme=address_scheme(address.host), addresses=[address]))


def check_entries(settings: Settings) -> None:
    """Refuse settings with too many topics before any of them is checked, whether access is checked or not.

    Raises:
        LimitError: INVALID_CLIENT_PROPERTIES.
    """
    count = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    if count > SETTINGS_ENTRIES_MAX:
        raise LimitError(
            Code.INVALID_CLIENT_PROPERTIES,
            f"the settings name {count} topics, at most {SETTINGS_ENTRIES_MAX} are taken; have several clients, "
            "each with some of them",
            "settings_entries_max",
        )


def _consumers_backoff(group: Group | None, language: Language.ValueType) -> RetryPolicy:
    """Return the retry policy of a group's consumers; the default for a group that is not known yet."""
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
