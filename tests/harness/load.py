"""Clients at work until their server goes away, and what they tried and were promised until then."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc.aio

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient


@dataclass
class Ledger:
    """What clients tried and what they were promised, by body."""

    tried: set[bytes] = field(default_factory=set)
    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    ack_with_unknown_outcome: set[bytes] = field(default_factory=set)
    """Whose last ack was asked for and never answered: it may have counted, so they may come again and need not."""
    again: set[bytes] = field(default_factory=set)
    """Delivered although they had been acked with OK."""

    @property
    def owed(self) -> set[bytes]:
        """Promised to their senders, and not taken by a consumer, not even perhaps: they must still come."""
        return self.sent - self.acked - self.ack_with_unknown_outcome


@dataclass
class Load:
    """Clients at work until their server goes away.

    Args:
        address: of the server.
        ledger: where they write.
        enough: looked at after each step; sets `reached`.
    """

    address: str
    ledger: Ledger
    enough: Callable[[Ledger], bool]
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, sender: int) -> None:
        """Send two messages at a time; `sender` makes their bodies unique."""
        async with MessagingClient(self.address) as client:
            number = 0
            while True:
                batch = [f"{sender}-{number + each}".encode() for each in range(2)]
                number += 2
                self.ledger.tried.update(batch)
                try:
                    answer = await client.send("Load", *batch)
                except grpc.aio.AioRpcError:
                    return
                if answer.status.code == Code.OK:
                    self.ledger.sent.update(batch)
                self._look()

    async def consume(self) -> None:
        """Receive, and ack four of five."""
        async with MessagingClient(self.address) as client:
            while True:
                try:
                    received = await client.receive("load", "Load", count=10, invisible_s=3.0, poll_s=5.0)
                    self.ledger.again.update(each.body for each in received.messages if each.body in self.ledger.acked)
                    good = [each for each in received.messages if each.body[-1] % 5]
                    if good:
                        self.ledger.ack_with_unknown_outcome.update(each.body for each in good)
                        answer = await client.ack("load", "Load", good)
                        self.ledger.ack_with_unknown_outcome.difference_update(each.body for each in good)
                        for message, entry in zip(good, answer.entries, strict=True):
                            if entry.status.code == Code.OK:
                                self.ledger.acked.add(message.body)
                except grpc.aio.AioRpcError:
                    return
                self._look()

    def _look(self) -> None:
        if self.enough(self.ledger):
            self.reached.set()


async def receive_and_ack_all(client: MessagingClient, missing: set[bytes]) -> list[bytes]:
    """Receive and ack until nothing of `missing` is missing and nothing more comes, or patience ends."""
    got: list[bytes] = []
    empty_polls = 0
    while empty_polls < 2:
        messages = (await client.receive("load", "Load", invisible_s=30.0, poll_s=5.0)).messages
        if messages:
            got += [message.body for message in messages]
            assert (await client.ack("load", "Load", messages)).status.code == Code.OK
            empty_polls = 0
        elif missing <= set(got):
            break
        else:
            empty_polls += 1
    return got
