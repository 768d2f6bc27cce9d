"""Streams for transaction checks, one per broker: the broker sends them, producers answer them.

There is none while no producer is known here. After a stream has broken, the next one begins with all topics.
"""

import asyncio
import random
from itertools import islice

import structlog

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import TransactionCheck, TransactionProducers
from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.session.producer_book import ProducerBook
from popwheel_proxy.session.telemetry import Telemetry
from popwheel_rpc.methods import CHECK_TRANSACTIONS
from popwheel_rpc.service import Channel, ClientStream, StreamClosedError
from popwheel_rpc.status import RpcError

_PAUSE_FIRST_S = 0.1
_PAUSE_LONGEST_S = 2.0
_TOPICS_PER_MESSAGE = 1_000

_logger = structlog.get_logger()


class CheckLinks:
    """Streams to all brokers.

    Args:
        book: producers by topic.
        telemetry: the way to them.
        brokers: the brokers there are.
        random_source: spreads reconnects.
        background: where the streams run.
    """

    def __init__(
        self,
        book: ProducerBook,
        telemetry: Telemetry,
        brokers: Brokers,
        random_source: random.Random,
        background: Background,
    ) -> None:
        self._book = book
        self._telemetry = telemetry
        self._brokers = brokers
        self._random = random_source
        self._background = background
        self._links: dict[str, _Link] = {}
        book.subscribe(self._producers_changed)
        brokers.subscribe(self.follow)

    def follow(self) -> None:
        """Open streams to new masters, and end those to former ones."""
        for name, link in list(self._links.items()):
            if self._brokers.channel_if_led(name) is not link.channel:
                link.close()
                del self._links[name]
        if not len(self._book):
            return
        for name in self._brokers.names:
            channel = self._brokers.channel_if_led(name)
            if channel is not None and name not in self._links:
                link = self._links[name] = _Link(name, channel, self._book, self._telemetry, self._random)
                link.task = self._background.start(link.run())

    def _producers_changed(self, topics: list[str], gone: list[str]) -> None:
        for link in self._links.values():
            link.report(topics, gone)
        self.follow()

    def close(self) -> None:
        """End all streams."""
        for link in self._links.values():
            link.close()
        self._links.clear()


class _Link:
    """The stream to one broker, opened again whenever it ends."""

    def __init__(
        self, name: str, channel: Channel, book: ProducerBook, telemetry: Telemetry, random_source: random.Random
    ) -> None:
        self.channel = channel
        self.task: asyncio.Task[None] | None = None
        self._name = name
        self._book = book
        self._telemetry = telemetry
        self._random = random_source
        self._unreported: dict[str, bool] = {}
        """Topic -> whether there are producers; changes to be sent next, each topic once."""
        self._changed = asyncio.Event()

    def report(self, topics: list[str], gone: list[str]) -> None:
        """Queue a change for the next message."""
        self._unreported.update(dict.fromkeys(topics, True))
        self._unreported.update(dict.fromkeys(gone, False))
        self._changed.set()

    def close(self) -> None:
        """End the stream for good."""
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        pause_s = _PAUSE_FIRST_S
        while True:
            reason, was_well = await self._run_one_stream()
            if was_well:
                pause_s = _PAUSE_FIRST_S
                _logger.warning("check_stream_ended", broker=self._name, reason=reason)
            await asyncio.sleep(pause_s * (0.5 + self._random.random()))
            pause_s = min(pause_s * 2, _PAUSE_LONGEST_S)

    async def _run_one_stream(self) -> tuple[str, bool]:
        """Open a stream, report all topics, and forward checks; return why it ended, and whether anything came."""
        self._unreported = dict.fromkeys(self._book, True)
        self._changed.set()
        try:
            stream = self.channel.open(CHECK_TRANSACTIONS)
        except RpcError as error:
            return str(error), False
        sender = asyncio.get_running_loop().create_task(self._send(stream))
        was_well = False
        try:
            while (check := await stream.receive()) is not None:
                was_well = True
                self._telemetry.recover(check.topic, check.transaction_id, check.message)
            return "the broker ended it", was_well
        except (StatusError, RpcError, StreamClosedError) as error:
            return str(error), was_well
        finally:
            sender.cancel()
            stream.cancel()

    async def _send(self, stream: ClientStream[TransactionCheck, TransactionProducers]) -> None:
        """Report changes whenever there are some."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._unreported:
                    reported = list(islice(self._unreported.items(), _TOPICS_PER_MESSAGE))
                    for topic, _ in reported:
                        del self._unreported[topic]
                    topics = [topic for topic, has_producers in reported if has_producers]
                    gone = [topic for topic, has_producers in reported if not has_producers]
                    await stream.send([TransactionProducers(topics=topics, gone_topics=gone)])
        except (StatusError, RpcError, StreamClosedError):
            stream.cancel()  # the receiver sees it end too, and opens another
