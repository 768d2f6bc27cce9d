"""Sampler of the masters' activity, every ten seconds while this controller leads."""

import asyncio
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from popwheel_common.clock import Clock
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.history import INTERVAL_MS
from popwheel_controller.http.inquiry import Inquiry
from popwheel_rpc.methods import SAMPLE_ACTIVITY

_NAMES_MAX = 1_000
"""Topics, and groups, of one sample."""
_EARLY_S = 1.0
"""Pause before the next sample until a broker has answered."""

_logger = structlog.get_logger()


class ActivitySampler:
    """Sampler that fills the activity book.

    Args:
        inquiry: asks the brokers.
        book: that gets the samples.
        clock: the time.
        registry: for its metrics.
        sampled: called after each sample.
    """

    def __init__(
        self,
        inquiry: Inquiry,
        book: ActivityBook,
        clock: Clock,
        registry: CollectorRegistry,
        sampled: Callable[[], None],
    ) -> None:
        self._inquiry = inquiry
        self._book = book
        self._clock = clock
        self._sampled = sampled
        self._task: asyncio.Task[None] | None = None
        self._unanswered = Counter(
            "popwheel_controller_samples_unanswered",
            "Samples of activity that a broker did not send in time",
            registry=registry,
        )
        Gauge(
            "popwheel_controller_sampled_names", "Topics and groups of the last samples of activity", registry=registry
        ).set_function(lambda: len(book))
        Gauge(
            "popwheel_controller_history_keys",
            "Topics and groups with stored values of the last hour, of at most 2,000",
            registry=registry,
        ).set_function(lambda: len(book.history))

    def start(self) -> None:
        """Start sampling: this controller leads."""
        self._task = asyncio.create_task(self._run(), name="activity-sampler")

    async def stop(self) -> None:
        """Stop, and drop all samples: this controller no longer leads."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._book.clear()

    async def _run(self) -> None:
        due_s = self._clock.monotonic()
        while True:
            try:
                await self.sample()
            except Exception as error:  # the next sample may succeed; pages show the age of the last one
                _logger.error("a sample of the brokers' activity failed, trying again", exc_info=error)
            now_s = self._clock.monotonic()
            due_s = max(now_s, due_s + (INTERVAL_MS / 1000 if self._book.samples else _EARLY_S))
            await asyncio.sleep(due_s - now_s)

    async def sample(self) -> None:
        """Ask all brokers once."""
        asked = list(self._inquiry.state.brokers)
        requests = {
            name: pb.SampleActivityRequest(
                since=self._book.numbers.get(name, 0), topics_max=_NAMES_MAX, groups_max=_NAMES_MAX
            )
            for name in asked
        }
        answers = await self._inquiry.ask_by_broker(SAMPLE_ACTIVITY, requests)
        self._unanswered.inc(len(answers.unanswered))
        for _ in self._book.take(self._clock.wall_ms(), asked, answers.given):
            await asyncio.sleep(0)
        self._book.history.retain("topic", self._inquiry.state.topics)
        self._book.history.retain("group", self._inquiry.state.groups)
        self._sampled()
