"""What is fuzzed: a whole standalone core in this process, and everything that must hold of it whatever comes."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from popwheel_cli.options import StandaloneOptions
from popwheel_cli.process.in_process import InProcessCluster
from popwheel_common.clock import SystemClock
from popwheel_common.contract import names
from popwheel_common.contract.credentials import ALGORITHM, AUTHORIZATION, DATE_TIME, signature_of
from popwheel_common.errors import StatusError
from popwheel_common.http import make_http_app
from popwheel_common.runtime import Runtime
from popwheel_common.web.hosts import AllowedHosts
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.metrics import RpcMetrics
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_connection import ServerConnection
from tests.harness.loop_turns import TURN_S_MAX, LoopTurns, measured_turns

TOPICS_MAX = 40
GROUPS_MAX = 40
LIMITS = Limits(
    connections_max=50,
    concurrent_streams_max=50,
    message_bytes_max=5 * 2**20,
    receive_buffer_bytes_max=24 * 2**20,
    send_buffer_bytes_max=4 * 2**20,
    resets_max=500,
    pings_max=500,
    settings_max=50,
    priorities_max=500,
    window_updates_max=2_000,
    empty_frames_max=500,
)
_SETTINGS = {
    "proxy": {
        "grpc_client_consumer_min_long_polling_timeout_ms": 0,
        "grpc_client_consumer_max_long_polling_timeout_ms": 20,
        "client": {"sessions_max": 200, "settings_repeat_ms": 20},
        "renewal": {"handles_max": 500},
        "receive": {"interests_max": 200, "interest_idle_ms": 200},
    },
    # Nothing is to move by time alone, as what a refused request may have moved is looked at.
    "broker": {
        "flush": "async",
        "pop": {"stay_ms": 3_600_000},
        "retention": {"interval_ms": 3_600_000},
        "transaction": {"first_check_ms": 3_600_000, "check_interval_ms": 3_600_000},
    },
    "controller": {"topics_max": TOPICS_MAX, "groups_max": GROUPS_MAX},
}

SECRET = "secret of the fuzzer"
_USERS = {
    "users": [
        {
            "access_key": "fuzz",
            "secret": SECRET,
            "rules": [{"topic": "*", "allow": ["admin"]}, {"group": "*", "allow": ["admin"]}],
        },
        {
            "access_key": "reader",
            "secret": SECRET,
            "rules": [{"topic": "fuzz-b", "allow": ["subscribe"]}, {"group": "fuzz-h", "allow": ["subscribe"]}],
        },
    ]
}


class FoundError(AssertionError):
    """The fuzzer has found something; the text says what."""


class Subject:
    """The three services wired as in standalone, with our own server before them that listens to no socket.

    Args:
        data_dir: a folder of its own.
        random_source: for what the services draw.
        guarded: whether clients must sign their calls, and may do only what rules allow.
    """

    def __init__(self, data_dir: Path, random_source: random.Random, *, guarded: bool = False) -> None:
        registry = CollectorRegistry()
        self._guarded = guarded
        settings: dict[str, Any] = dict(_SETTINGS)
        if guarded:
            file = data_dir.with_name("access.json")
            file.write_text(json.dumps(_USERS))
            settings["access"] = {"file": str(file)}
        self.cluster = InProcessCluster(
            Runtime(SystemClock(), random_source, registry), StandaloneOptions.model_validate(settings), data_dir
        )
        self.http = make_http_app(
            "fuzz", "0", registry, {}, [self.cluster.controller.admin], hosts=AllowedHosts(["fuzz"])
        )
        self.registry = registry
        self.server = Server(self.cluster.proxy.service, LIMITS, observer=RpcMetrics(registry).counts)
        self.statuses: Counter[str] = Counter()
        self.turns = LoopTurns()
        self._logs: AbstractContextManager[list[Any]] | None = None
        self._measuring = ExitStack()
        self._entries: list[Any] = []
        self._unhandled: list[Mapping[str, Any]] = []

    async def __aenter__(self) -> Self:
        structlog.configure(cache_logger_on_first_use=False)
        self._logs = capture_logs()
        self._entries = self._logs.__enter__()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._unhandled.append(context))
        await self.cluster.start()
        while not self.cluster.proxy.ready:
            await asyncio.sleep(0.001)
        self.turns = self._measuring.enter_context(measured_turns(besides=asyncio.current_task()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._measuring.close()
        try:
            await self.cluster.stop()
            self.server.deadlines.close()
            if error is None:
                self.check_logs()
        finally:
            assert self._logs is not None
            self._logs.__exit__(None, None, None)
            asyncio.get_running_loop().set_exception_handler(None)

    def headers(self, client_id: str, user: str = "fuzz", secret: str = SECRET) -> dict[str, str]:
        """The headers of a call in order, signed if that is asked for."""
        plain = {"x-mq-client-id": client_id, "x-mq-client-version": "5.1.2"}
        if not self._guarded:
            return plain
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        signature = signature_of(secret.encode(), date_time).hex()
        claim = f"{ALGORITHM} Credential={user}, SignedHeaders={DATE_TIME}, Signature={signature}"
        return plain | {DATE_TIME: date_time, AUTHORIZATION: claim}

    def snapshot(self) -> dict[str, object]:
        """All that lasts: topics, groups, stored messages, committed offsets, messages that are out.

        The log's end is none of it: the broker writes down by itself which topics and groups it has learned of.
        """
        core = self.cluster.broker.core
        state = self.cluster.controller._state_writer.state
        committed = {
            (progress.group, progress.queue.topic, progress.queue.queue_id): progress.committed
            for progress in core.state.merge_buffer
            if progress.committed
        }
        stored = {
            (queue.topic, queue.queue_id): queue.max_offset
            for queue in core.store.queues
            if not queue.topic.startswith(names.REVIVE_PREFIX)
        }
        return {
            "topics": tuple(state.topics),
            "groups": tuple(state.groups),
            "messages stored": stored,
            "messages given out": core.state.table.open_messages,
            "committed offsets": committed,
        }

    @property
    def revived(self) -> int:
        """How many messages have become visible again by time: a change that nobody asked for."""
        return self.cluster.broker.leader.reviver.redelivered

    def check_logs(self) -> None:
        """Look for errors that somebody has logged or nobody has caught.

        Raises:
            FoundError: there is one.
        """
        errors = [entry for entry in self._entries if entry["log_level"] in ("error", "critical")]
        self._entries.clear()
        if errors:
            raise FoundError(f"logged as an error: {errors[0]}")
        if self._unhandled:
            raise FoundError(f"nobody caught this: {self._unhandled[0]}") from self._unhandled[0].get("exception")

    def check_turns(self) -> None:
        """Look for a turn of the loop that was too long.

        Raises:
            FoundError: there was one.
        """
        if self.turns.longest_s > TURN_S_MAX:
            raise FoundError(str(self.turns))

    def check_connection(self, connection: ServerConnection) -> None:
        """Look at what one connection holds (M1).

        Raises:
            FoundError: it is more than the limits allow.
        """
        http2 = connection.http2
        limits = self.server.limits
        bounds = {
            "streams": (len(http2.streams), limits.concurrent_streams_max),
            "calls": (len(connection._calls), limits.concurrent_streams_max),
            "handlers": (len(connection._calls) + len(connection._lingering), 2 * limits.concurrent_streams_max),
            "held bytes": (http2.buffered_bytes, limits.receive_buffer_bytes_max + limits.connection_window_bytes),
            "queued bytes": (http2.outbox.queued_bytes, limits.send_buffer_bytes_max + 8 * 2**20),
            "bytes of an unfinished frame": (len(http2._reader.rest), 16_384 + 9),
            "bytes of an unfinished block": (http2._reader.block_bytes, limits.header_list_bytes_max + 16_384),
            "bytes of the header table": (http2._heads._decoder._table_bytes, 4096),
            "known heads": (len(http2._heads._known), 256),
        }
        for what, (count, most) in bounds.items():
            if not 0 <= count <= most:
                raise FoundError(f"{what}: {count}, at most {most} are allowed")
        queued = sum(sum(map(len, stream.queue or ())) for stream in http2.streams.values())
        if queued != http2.outbox.queued_bytes:
            raise FoundError(f"{queued} bytes wait on streams, {http2.outbox.queued_bytes} are accounted for")

    def check_bounds(self) -> None:
        """Look at what all services hold (M1).

        Raises:
            FoundError: it is more than the limits allow.
        """
        proxy = self.cluster.proxy
        bounds = {
            "topics": (len(proxy.view.topics), TOPICS_MAX),
            "groups": (len(proxy.view.groups), GROUPS_MAX),
            "clients": (len(proxy._clients), 200),
            "interests": (len(proxy._book), 200),
            "renewed handles": (len(proxy._renewals), 500),
            "connections": (len(self.server._connections), LIMITS.connections_max),
            "turns": (len(proxy._send_handler._turns), TOPICS_MAX),
        }
        for what, (count, most) in bounds.items():
            if not 0 <= count <= most:
                raise FoundError(f"{what}: {count}, at most {most} are allowed")
        core = self.cluster.broker.core
        there = {queue.topic for queue in core.store.queues} | {each.queue.topic for each in core.state.merge_buffer}
        for topic in there:
            try:
                names.topic(names.client_topic(topic), names.Use.QUERY)
            except StatusError as error:
                if not topic.startswith(names.SYSTEM_PREFIX):
                    raise FoundError(f"there is a queue of a name that can't be: {error}") from error

    async def quiet(self) -> None:
        """Wait until nothing is under way.

        Raises:
            FoundError: something is left after five seconds.
        """
        proxy = self.cluster.proxy
        left: dict[str, int] = {}
        for _ in range(500):
            left = {
                "connections": len(self.server._connections),
                "polls": proxy._admission.polls,
                "unsent bytes": proxy._admission.unsent.total,
                "waiting sends": proxy._send_handler.waiting_messages,
                "telemetry streams": proxy._telemetry.streams,
            }
            if not any(left.values()):
                return
            await asyncio.sleep(0.01)
        raise FoundError(f"left over when all clients were gone: {left}")
