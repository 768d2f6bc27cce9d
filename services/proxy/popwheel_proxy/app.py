"""Application of one proxy: its parts, and start, drain and stop."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.extras import needs_extra
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, WatchRequest
from popwheel_common.runtime import Runtime
from popwheel_common.settings.access_options import AccessOptions
from popwheel_common.settings.otel_options import OtelOptions
from popwheel_common.settings.watched_file import WatchedFile
from popwheel_proxy.access.access import Access
from popwheel_proxy.access.demands import Demand
from popwheel_proxy.access.metrics import AccessMetrics
from popwheel_proxy.access.users import Sort, Users
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.brokers.metrics import FailoverMetrics, MasterMetrics
from popwheel_proxy.brokers.parked_calls import ParkedCalls
from popwheel_proxy.lite.lite_subscriptions import TOTAL_MAX, LiteSubscriptions
from popwheel_proxy.lite.lite_sync import LiteSync
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol.filters import Filters
from popwheel_proxy.protocol.metrics import ClientLibraries, ProxyMetrics
from popwheel_proxy.protocol.turns import Turns
from popwheel_proxy.receive.ack_handler import AckHandler
from popwheel_proxy.receive.client_list import ClientList
from popwheel_proxy.receive.interest_book import FILTER_BYTES_MAX, InterestBook
from popwheel_proxy.receive.long_poll import Mode
from popwheel_proxy.receive.metrics import PollMetrics
from popwheel_proxy.receive.mode_choice import ModeChoice
from popwheel_proxy.receive.notifications import Notifications
from popwheel_proxy.receive.offsets import Offsets
from popwheel_proxy.receive.poll import PollTools
from popwheel_proxy.receive.poll_limits import PollLimits
from popwheel_proxy.receive.poll_list import PollList
from popwheel_proxy.receive.receive_handler import ReceiveHandler
from popwheel_proxy.receive.redis_counts import RedisCounts
from popwheel_proxy.receive.renewal import Renewal, RenewalBook
from popwheel_proxy.receive.shared_count import CountStore, SharedCount
from popwheel_proxy.send.check_links import CheckLinks
from popwheel_proxy.send.end_handler import EndHandler
from popwheel_proxy.send.recall_handler import RecallHandler
from popwheel_proxy.send.send_handler import SendHandler
from popwheel_proxy.server import Handlers, MessagingServer
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.clients import Clients
from popwheel_proxy.session.producer_book import ProducerBook
from popwheel_proxy.session.routes import Routes
from popwheel_proxy.session.telemetry import LITE_SUBSCRIPTIONS_MAX, Telemetry
from popwheel_rpc.membership.controller_watch import ControllerWatch
from popwheel_rpc.service import Call, Channel, Service

if TYPE_CHECKING:
    from popwheel_proxy.protocol.spans import Exporting

_TICK_S = 0.1
_TICKS_PER_ROUND = 10
_STOP_S = 5.0
_OPEN = AccessOptions()
_UNSEEN = OtelOptions()

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProxyChannels:
    """Channels of a proxy to the other services.

    Args:
        controller: to the controller.
        to_broker: makes a channel to a broker, not connected yet.
    """

    controller: Channel
    to_broker: Callable[[BrokerInfo], Channel]


class ProxyApp:
    """A proxy.

    Args:
        runtime: time, chance, and where metrics are shown.
        options: settings.
        channels: the ways to the other services.
        process: description for operators; its name alone if not given.
        count_store: where proxies add up their polls; if not given, Redis, where the options name one.
        access: who may do what.
        otel: what collectors of OpenTelemetry are sent.

    Raises:
        ConfigurationError: the access file cannot be used, or what tracing needs is not installed.
    """

    def __init__(
        self,
        runtime: Runtime,
        options: ProxyOptions,
        channels: ProxyChannels,
        process: WatchRequest | None = None,
        count_store: CountStore | None = None,
        access: AccessOptions = _OPEN,
        otel: OtelOptions = _UNSEEN,
    ) -> None:
        clock, random_source, registry = runtime.clock, runtime.random_source, runtime.registry
        self.options = options
        self.view = ClusterView()
        self.metrics = ProxyMetrics(registry)
        self._clock = clock
        self._background = Background()
        self._streams = Background()
        numbers = itertools.count(1 + random_source.getrandbits(63))
        context = ProxyContext(options, clock, self.view, self._background, self.metrics, registry, numbers)
        self._controller_watch = ControllerWatch(
            channels.controller,
            self.view,
            process or WatchRequest(process=options.name or "proxy", kind=WatchRequest.PROXY),
            clock,
            random_source,
        )
        receive, adaptive = options.receive, options.adaptive
        pop_timeout_s = receive.pop_timeout_ms / 1000
        self._brokers = Brokers(self.view, channels.to_broker, self._background)
        failover_metrics = FailoverMetrics(registry)
        MasterMetrics(self._brokers, registry)
        self._parked_calls = ParkedCalls(self.view, self._brokers, options.failover, clock, failover_metrics)
        masters = MasterCalls(self._brokers, self._parked_calls, pop_timeout_s)
        catalog = Catalog(self.view, channels.controller, options, clock)
        client = options.client
        self._clients = Clients(client.sessions_max, client.expiry_ms / 1000, client.grace_ms / 1000)
        self._mode_choice = ModeChoice(
            None if options.poll_mode == "auto" else Mode(options.poll_mode),
            adaptive.up_per_s,
            adaptive.down_per_s,
            adaptive.stay_ms / 1000,
            clock.monotonic(),
        )
        self._shared_count: SharedCount | None = None
        if count_store is None and options.redis_url:
            count_store = RedisCounts(options.redis_url, clock, random_source)
        if count_store is not None:
            self._shared_count = SharedCount(count_store, self._mode_choice, clock, registry)
        self.poll_metrics = PollMetrics(registry, self.view, catalog.knows, lambda: self._mode_choice.modes)
        producers, turns = ProducerBook(), Turns()
        filters = Filters(turns)
        self._telemetry = Telemetry(
            context, catalog, self._clients, producers, filters, turns, metrics_endpoint=otel.client_metrics_endpoint
        )
        lite_subscriptions = LiteSubscriptions(LITE_SUBSCRIPTIONS_MAX, TOTAL_MAX)
        self._lite_sync = LiteSync(
            context, lite_subscriptions, catalog, self._brokers, masters, self._clients, self._telemetry
        )
        self._book = InterestBook(receive.interests_max, FILTER_BYTES_MAX, receive.interest_idle_ms / 1000)
        self._notifications = Notifications(
            self._book, self._brokers, clock, random_source, self._streams, self.poll_metrics, self._lite_sync
        )
        self.view.subscribe(self._notifications.names_changed)
        tools = PollTools(
            brokers=self._brokers,
            masters=masters,
            book=self._book,
            notifications=self._notifications,
            background=self._background,
            clock=clock,
            metrics=self.poll_metrics,
            pop_timeout_s=pop_timeout_s,
            lite=self._lite_sync,
            mode_choice=self._mode_choice,
        )
        self._check_links = CheckLinks(producers, self._telemetry, self._brokers, random_source, self._streams)
        self._send_handler = SendHandler(
            context, catalog, self._brokers, self._parked_calls, self._sends_half_messages, self._clients
        )
        limits = PollLimits(options, self.metrics)
        self._admission = limits.admission
        self._renewals = RenewalBook(options.renewal)
        self._receive_handler = ReceiveHandler(context, catalog, self._clients, tools, limits, self._renewals, filters)
        self.client_list = ClientList(
            self._clients, self._telemetry, self._renewals, lite_subscriptions.count_of, self.view, clock
        )
        self.poll_list = PollList(self._book, self._mode_choice, self.poll_metrics, lambda: self._brokers.names)
        ClientLibraries(self._clients.libraries, registry)
        self._renewal = Renewal(context, self._renewals, masters)
        self._access_file: WatchedFile[Users] | None = None
        if access.file:
            from popwheel_proxy.access.access_file import access_file  # late: slow to load, and few proxies need it

            self._access_file = access_file(access.file)
        self._access = self._access_by(self._access_file, access.clock_skew_ms, registry, catalog)
        handlers = Handlers(
            routes=Routes(catalog, self._brokers, options, turns),
            send=self._send_handler,
            recall=RecallHandler(self.view, masters),
            end=EndHandler(self.view, masters),
            receive=self._receive_handler,
            ack=AckHandler(context, masters, self._renewals),
            offsets=Offsets(catalog, self._brokers, masters, limits, clock),
            telemetry=self._telemetry,
            lite_sync=self._lite_sync,
        )
        self._server = MessagingServer(context, handlers, self._clients, self._renewal, turns, self._access)
        self._spans = _export_spans(self._server.service, options) if otel.traces else None
        self.metrics.read_from(
            {
                "polls": lambda: self._admission.polls,
                "polls_waiting": lambda: self._book.waiting_polls,
                "polls_absent": lambda: len(self._receive_handler.absent),
                "interests": lambda: len(self._book),
                "filter_bytes": lambda: self._book.filter_bytes,
                "interests_refused": lambda: self._book.refused,
                "counted_polls": lambda: len(self._mode_choice),
                "unsent_bytes": lambda: self._admission.unsent.total,
                "waiting_sends": lambda: self._send_handler.waiting_messages,
                "waiting_in_send_queues": lambda: self._send_handler.waiting_in_send_queues,
                "clients": lambda: len(self._clients),
                "clients_broken": lambda: self._clients.broken,
                "client_facts_bytes": lambda: self._clients.facts_bytes,
                "client_uses": lambda: self._clients.uses,
                "known_filters": lambda: len(filters),
                "waiting_filters": lambda: filters.waiting,
                "repeated_bytes": lambda: self._telemetry.repeated_bytes,
                "telemetry_streams": lambda: self._telemetry.streams,
                "producer_topics": lambda: producers.pairs,
                "asked_bytes": lambda: self._telemetry.asked_bytes,
                "renewed_handles": lambda: len(self._renewals),
                "parked_calls": lambda: self._parked_calls.calls,
                "parked_bytes": lambda: self._parked_calls.bytes,
                "brokers_without_master": lambda: len(self._brokers.names) - len(self._brokers.led),
                "masters_changed": lambda: self._brokers.masters_changed,
                "stale_routes": lambda: self._brokers.stale_routes,
            }
        )
        self._reading_access = False
        self._is_draining = False
        self._ticks = 0
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def service(self) -> Service:
        """apache.rocketmq.v2.MessagingService."""
        return self._server.service

    async def send_as_operator(self, request: bytes, timeout_s: float, peer: str) -> bytes:
        """Serve a SendMessage that the controller passes on (`MessagingServer.send_as_operator`)."""
        return await self._server.send_as_operator(request, timeout_s, peer)

    @property
    def ready(self) -> bool:
        """True once the cluster is known and has a broker."""
        return self.view.ready and bool(self._brokers.names)

    async def start(self) -> None:
        """Follow the controller and serve; does not wait for the controller to answer."""
        await self._controller_watch.start()
        if self._shared_count is not None:
            self._streams.start(self._shared_count.run())
        self._tick()
        self.metrics.up.set(1)
        _logger.info("proxy started", name=self.options.name)

    def drain(self) -> None:
        """Answer the waiting polls, and let no other wait; sends and other calls continue."""
        self._is_draining = True
        self.metrics.up.set(0)
        self._receive_handler.drain()

    async def stop(self) -> None:
        """Drain, finish the calls in flight, and disconnect; takes a few seconds at the most."""
        self.drain()
        if self._ticker is not None:
            self._ticker.cancel()
        await self._background.finish(_STOP_S)
        self._parked_calls.close()
        self._notifications.close()
        self._check_links.close()
        await self._streams.finish(0)
        if self._shared_count is not None:
            await self._shared_count.close()
        await self._controller_watch.stop()
        await self._brokers.close()
        if self._spans is not None:
            await self._spans.stop()
        _logger.info("proxy stopped", name=self.options.name)

    def _tick(self) -> None:
        """Run the periodic work."""
        self._ticker = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        now = self._clock.monotonic()
        self._notifications.time_passed(now)
        self._ticks += 1
        if self._ticks % _TICKS_PER_ROUND == 0:
            self._release_lost_clients(now)
            for switch in self._mode_choice.time_passed(now):
                self.poll_metrics.mode_switched(switch.mode)
                _logger.info("polls wait in another mode", **switch._asdict() | {"mode": switch.mode.value})
            self._renewal.tick()
            self._lite_sync.tick()
            self._send_handler.tick()
            self._reload_access()

    def _release_lost_clients(self, now: float) -> None:
        """Release the messages of clients that have gone without a goodbye.

        The clients of a draining proxy are at another one by then and keep their messages, which are renewed until the
        end.
        """
        if not self._is_draining:
            for client_id in self._clients.expire(now):
                self._renewal.release(client_id, is_goodbye=False)

    def _sends_half_messages(self, call: Call, topic: str) -> None:
        user = "" if self._access is None else self._access.user_of(call)
        self._telemetry.sends_half_messages(call.metadata.get("x-mq-client-id", ""), user, topic)

    def _access_by(
        self, file: WatchedFile[Users] | None, skew_ms: int, registry: CollectorRegistry, catalog: Catalog
    ) -> Access | None:
        """Return the check of calls by a file of users; None without a file."""
        if file is None:
            return None

        def is_missing(demand: Demand) -> bool:
            find = catalog.find_topic if demand.sort is Sort.TOPIC else catalog.find_group
            return self.view.ready and find(demand.name) is None

        metrics = AccessMetrics(registry, lambda: len(file.content), lambda: bool(file.trouble))
        return Access(file, skew_ms, self._clock, metrics, is_missing)

    def _reload_access(self) -> None:
        """Apply changed rules; a large file takes a while, so it is read in a thread."""
        if self._access is None or self._access_file is None:
            return
        self._access.tick()
        if self._access_file.changed and not self._reading_access:
            self._reading_access = True
            self._background.start(self._read_access(self._access_file))

    async def _read_access(self, file: WatchedFile[Users]) -> None:
        try:
            await asyncio.to_thread(file.refresh)
        finally:
            self._reading_access = False


def _export_spans(service: Service, options: ProxyOptions) -> "Exporting":
    """Wrap calls in spans, and export these.

    Raises:
        MissingExtraError: what is needed for that is not installed.
    """
    with needs_extra("otel.traces", "must be false", "otel"):
        from popwheel_proxy.protocol.spans import Exporting, trace_calls
    spans = Exporting()
    trace_calls(service, spans.tracer, options.message.batch_messages_max)
    return spans
