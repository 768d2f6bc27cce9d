"""Watch of the controller: keeps a process's view of the cluster up to date."""

import asyncio
import contextlib
import random

import structlog

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, WatchRequest
from popwheel_rpc.backoff import OTHER_CLUSTER_S, Backoff
from popwheel_rpc.methods import WATCH
from popwheel_rpc.service import Channel, ClientStream, StreamClosedError
from popwheel_rpc.status import RpcError

_TOGETHER_MAX = 50

_logger = structlog.get_logger()


class ControllerWatch:
    """Applies the updates of `Controller.Watch` to a view; reconnects, for ever, when the stream ends.

    While the controller is away the view stays as it was last received.

    Args:
        channel: to the controller.
        view: the view to update.
        process: description of this process for the controller; a name suffices.
        clock: measures how long the controller has been away.
        random_source: spreads reconnects.
    """

    def __init__(
        self,
        channel: Channel,
        view: ClusterView,
        process: str | WatchRequest,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        self.view = view
        self.away_since: float | None = clock.monotonic()
        """Time since which the controller is unreachable, in seconds of the monotonic clock;

        None while it is reachable.
        """
        self._channel = channel
        self._request = WatchRequest(process=process) if isinstance(process, str) else process
        self._request.in_parts = True
        self._clock = clock
        self._random = random_source
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stream: ClientStream[ClusterUpdate, WatchRequest] | None = None
        self._renewing = False
        self.refusal: InconsistentClusterIdError | None = None
        """Refusal of this process by a controller of another cluster; None without one."""

    @property
    def away_s(self) -> float:
        """Seconds for which the controller has been unreachable; 0 while it is reachable."""
        return 0.0 if self.away_since is None else max(0.0, self._clock.monotonic() - self.away_since)

    async def start(self) -> None:
        """Begin to follow; returns at once (see `wait_ready`)."""
        self._task = asyncio.create_task(self._run(), name="controller-follower")

    async def stop(self) -> None:
        """Stop following; the view stays as it is."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def wait_ready(self) -> None:
        """Wait until the view has its first snapshot."""
        await self._ready.wait()

    def renew(self) -> None:
        """Request the whole state at once, over another stream: this one is known to be late."""
        if self._stream is not None:
            self._renewing = True
            self._stream.cancel()

    async def _run(self) -> None:
        backoff = Backoff(self._random)
        while True:
            refusal, self.refusal = self.refusal, None
            reason = await self._follow()
            if self._renewing:
                self._renewing = False
                continue
            if self.refusal is not None:
                if self.away_since is None:
                    self.away_since = self._clock.monotonic()
                if refusal is None:
                    _logger.error("the controller belongs to another cluster, ignoring it", reason=reason)
                await asyncio.sleep(OTHER_CLUSTER_S)
                continue
            if self.away_since is None:
                self.away_since = self._clock.monotonic()
                backoff.reset()
                _logger.warning(
                    "controller is away, continuing with the last known state of the cluster",
                    reason=reason,
                    version=self.view.version,
                )
            await asyncio.sleep(backoff.next_s())

    async def _follow(self) -> str:
        """Apply the updates of one stream until it ends; return why it ended."""
        try:
            stream = self._channel.open(WATCH)
        except RpcError as error:
            return str(error)
        self._stream = stream
        taken = 0
        try:
            self._request.cluster_id = self.view.cluster_id
            await stream.send([self._request])
            await stream.end()
            while (update := await stream.receive()) is not None:
                self.view.apply(update)
                taken += 1
                if update.more or taken % _TOGETHER_MAX == 0:
                    await asyncio.sleep(0)  # many arrive at once, and would block the loop
                if self.away_since is not None and not update.more:
                    if self._ready.is_set():
                        _logger.info("controller is back", away_s=round(self.away_s, 3), version=update.version)
                    self.away_since = None
                    self._ready.set()
        except InconsistentClusterIdError as error:
            self.refusal = error
            return error.message
        except (StatusError, RpcError, StreamClosedError) as error:
            return str(error) or "the stream was closed"
        except Exception as error:  # a listener of the view failed; the next snapshot repairs that
            _logger.exception("a change of the cluster could not be applied, requesting the whole state")
            return repr(error)
        finally:
            self._stream = None
            stream.cancel()
        return "the controller ended the stream"
