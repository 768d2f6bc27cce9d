"""Copies checkpoints from masters to their slaves: the I/O of checkpoint sync."""

import asyncio
from collections.abc import Coroutine, Iterator

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import FetchCheckpointRequest
from popwheel_controller.broker_groups.checkpoint_sync import CheckpointSync, Fetch, Give
from popwheel_controller.broker_groups.roles import Roles
from popwheel_rpc.methods import FETCH_CHECKPOINT, STORE_CHECKPOINT
from popwheel_rpc.status import RpcError

_TIMEOUT_S_MIN = 3.0

_logger = structlog.get_logger()


class CheckpointMetrics(Collector):
    """Metrics of checkpoint sync.

    Args:
        registry: to register with.
        sync: knows the age of the slaves' checkpoints.
        clock: the time.
    """

    def __init__(self, registry: CollectorRegistry, sync: CheckpointSync, clock: Clock) -> None:
        self._sync = sync
        self._clock = clock
        self.durations = Histogram(
            "popwheel_controller_checkpoint_sync_seconds",
            "Time from the request to a master until a slave had its checkpoint",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.failures = Counter(
            "popwheel_controller_checkpoint_failures",
            "Checkpoints that a master did not send, or that a slave did not answer or refused",
            ["step"],
            registry=registry,
        )
        for step in ("fetch", "store", "refused"):
            self.failures.labels(step)
        self.fetches = Counter(
            "popwheel_controller_checkpoint_fetches", "Checkpoints received from masters", registry=registry
        )
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the age of the slaves' checkpoints."""
        ages = GaugeMetricFamily(
            "popwheel_controller_checkpoint_age_seconds",
            "Age of the checkpoint that a living slave has",
            labels=("broker", "replica"),
        )
        now_s = self._clock.monotonic()
        for name in self._sync.names():
            for age in self._sync.ages(name, now_s):
                ages.add_metric((name, str(age.replica)), age.age_s)
        yield ages


class CheckpointCarrier:
    """Fetches from masters and sends to slaves what `CheckpointSync` decides.

    Args:
        sync: decides who is asked and what is sent.
        roles: the masters and slaves, with channels to them.
        clock: the time.
        interval_s: interval of the rounds, in seconds.
        metrics: of checkpoint sync.
    """

    def __init__(
        self, sync: CheckpointSync, roles: Roles, clock: Clock, interval_s: float, metrics: CheckpointMetrics
    ) -> None:
        self._sync = sync
        self._roles = roles
        self._clock = clock
        self._timeout_s = max(_TIMEOUT_S_MIN, interval_s)
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._failing: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        roles.subscribe(self._roles_changed)

    def start(self) -> None:
        """Start the rounds; they are idle until a group has roles."""
        self._running = asyncio.create_task(self._run(), name="checkpoint-sync")

    async def stop(self) -> None:
        """Stop; calls that are under way are cancelled."""
        tasks = [*self._tasks, *([] if self._running is None else [self._running])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._running = None

    def _roles_changed(self, group: str) -> None:
        roles = self._roles.groups.get(group)
        if roles is None:
            self._sync.forget(group)
        else:
            self._sync.roles(roles, self._clock.monotonic())
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            now_s = self._clock.monotonic()
            for fetch in self._sync.time_passed(now_s):
                self._begin(self._fetch(fetch), fetch.group)
            next_s = self._sync.next_time_s()
            # A round that is due and was not begun waits for a call that is under way.
            wait_s = None if next_s is None or next_s <= now_s else next_s - now_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _begin(self, work: Coroutine[None, None, None], group: str) -> None:
        task = asyncio.create_task(work, name=f"checkpoint-of-{group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, fetch: Fetch) -> None:
        request = FetchCheckpointRequest(group=fetch.group, epoch=fetch.epoch)
        channel = self._roles.channel(fetch.group, fetch.master)
        try:
            checkpoint = await channel.call(FETCH_CHECKPOINT, request, timeout_s=self._timeout_s)
        except (StatusError, RpcError) as error:
            self._sync.not_fetched(fetch)
            self._fails("fetch", fetch.group, fetch.master.number, error)
        else:
            self._metrics.fetches.inc()
            self._succeeded("fetch", fetch.group)
            for give in self._sync.fetched(fetch, checkpoint):
                self._begin(self._give(give), give.group)
        self._changed.set()

    async def _give(self, give: Give) -> None:
        channel = self._roles.channel(give.group, give.slave)
        try:
            await channel.call(STORE_CHECKPOINT, give.checkpoint, timeout_s=self._timeout_s)
        except (StatusError, RpcError) as error:
            refused = isinstance(error, StatusError) and error.code == Code.PRECONDITION_FAILED
            self._sync.not_stored(give)
            self._fails("refused" if refused else "store", give.group, give.slave.number, error)
        else:
            now_s = self._clock.monotonic()
            self._metrics.durations.observe(now_s - give.begun_s)
            self._succeeded("store", give.group)
            self._sync.stored(give, now_s)
        self._changed.set()

    def _fails(self, step: str, group: str, replica: int, error: StatusError | RpcError) -> None:
        """Count a failure, and log only the first one until the next success."""
        self._metrics.failures.labels(step).inc()
        if (step, group) not in self._failing:
            self._failing.add((step, group))
            # A master that was just elected does not lead yet; if it never does, other lines of the group's log say so.
            is_early = step == "fetch" and isinstance(error, StatusError) and error.code == Code.PRECONDITION_FAILED
            log = _logger.info if is_early else _logger.warning
            log("checkpoint sync fails", step=step, group=group, replica=replica, reason=str(error))

    def _succeeded(self, step: str, group: str) -> None:
        self._failing.discard((step, group))
        if step == "store":
            self._failing.discard(("refused", group))
