"""Clients of this proxy, listed for operators in pages, in the order of their ids."""

import asyncio
from collections.abc import Callable
from heapq import nsmallest
from typing import Final

from popwheel_common.clock import Clock
from popwheel_common.contract import receipt
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_proxy.receive.renewal import RenewalBook, RenewedHandle
from popwheel_proxy.session.client_facts import NAMES_MAX
from popwheel_proxy.session.clients import Clients, KnownClient
from popwheel_proxy.session.telemetry import Telemetry

_LIST_MAX: Final = 500
_SCANNED_AT_ONCE: Final = 500
"""Clients checked in one turn of the loop."""
_DESCRIBED_AT_ONCE: Final = 25
"""Clients described in one turn of the loop."""
_MESSAGES_MAX: Final = 100
_HOLDS = ("push", "lite push")
"""Kinds of clients whose messages the proxy keeps invisible."""


class ClientList:
    """Lists clients.

    Args:
        clients: who they are.
        telemetry: their streams.
        renewals: the messages that are kept invisible for them.
        lite_topics: the number of lite topics that a client reads.
        view: has the key of receipt handles.
        clock: for times.
    """

    def __init__(
        self,
        clients: Clients,
        telemetry: Telemetry,
        renewals: RenewalBook,
        lite_topics: Callable[[str], int],
        view: ClusterView,
        clock: Clock,
    ) -> None:
        self._view = view
        self._clients = clients
        self._telemetry = telemetry
        self._renewals = renewals
        self._lite_topics = lite_topics
        self._clock = clock
        self._lock = asyncio.Lock()

    async def some(self, request: pb.ClientListRequest) -> pb.ClientListResponse:
        """Return a page of clients, or the one that is asked for, if it is here. One list is made at a time."""
        async with self._lock:
            answer = pb.ClientListResponse(total=len(self._clients))
            if request.id:
                known = self._clients.get(request.id)
                if known is not None:
                    self._describe(answer.clients.add(), request.id, known, _MESSAGES_MAX)
                return answer
            limit = min(max(1, request.limit), _LIST_MAX)
            found = await self._find(request, limit + 1)
            answer.next = found[limit - 1] if len(found) > limit else ""
            for number, client_id in enumerate(found[:limit]):
                if number and number % _DESCRIBED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                known = self._clients.get(client_id)
                if known is not None:
                    self._describe(answer.clients.add(), client_id, known, 0)
            return answer

    async def _find(self, request: pb.ClientListRequest, count: int) -> list[str]:
        """Return the ids of the first matching clients behind `request.after`."""
        found: list[str] = []
        ids = self._clients.ids
        for start in range(0, len(ids), _SCANNED_AT_ONCE):
            some = [
                each
                for each in ids[start : start + _SCANNED_AT_ONCE]
                if each > request.after and each.startswith(request.prefix) and self._is_wanted(request, each)
            ]
            found = nsmallest(count, found + some)
            await asyncio.sleep(0)
        return found

    def _is_wanted(self, request: pb.ClientListRequest, client_id: str) -> bool:
        group, topic = request.group, request.topic
        if not group and not topic:
            return True
        known = self._clients.get(client_id)
        if known is None:
            return False
        facts = known.facts
        if group and group != facts.group and not any(group == each for each, _, _ in known.polls):
            return False
        return (
            not topic
            or topic in known.sends
            or topic in facts.publishes
            or any(topic == each for each, _ in facts.subscriptions)
            or any(topic == each and group in ("", of) for of, each, _ in known.polls)
        )

    def _describe(self, info: pb.ClientInfo, client_id: str, known: KnownClient, messages_max: int) -> None:
        facts, clock = known.facts, self._clock
        zero_ms = clock.wall_ms() - round(clock.monotonic() * 1000)
        info.id = client_id
        info.language, info.version = facts.language, facts.version
        info.platform, info.hostname = facts.platform, facts.hostname
        info.address, info.user = known.address, known.user
        info.kind, info.group = facts.kind, facts.group
        info.since_ms = zero_ms + round(known.since * 1000)
        info.seen_ms = zero_ms + round(known.seen_at * 1000)
        self._add_names(info, known, zero_ms)
        open_calls = self._clients.open_calls(client_id, known.user)
        info.polls = max(0, open_calls - self._telemetry.streams_of(client_id))
        count, some = self._renewals.handles_of(client_id, max(1, messages_max))
        info.in_flight = count if count or facts.kind in _HOLDS else -1
        if some:
            info.in_flight_since_ms = zero_ms + round(some[0][1] * 1000)
        for each, since in some[:messages_max]:
            _describe_message(info.messages.add(), self._view.receipt_key, each, zero_ms + round(since * 1000))
        info.lite_topics = self._lite_topics(client_id)

    def _add_names(self, info: pb.ClientInfo, known: KnownClient, zero_ms: int) -> None:
        """Add the topics that the client reads and sends to: by its settings, and by its calls here."""
        facts = known.facts
        polled_ms = {poll: zero_ms + round(at * 1000) for poll, at in known.polls.items()}
        said = [(facts.group, topic, text) for topic, text in facts.subscriptions]
        both = dict.fromkeys((*said, *((group, topic, text or "*") for group, topic, text in polled_ms)))
        times = {(group, topic, text or "*"): at_ms for (group, topic, text), at_ms in polled_ms.items()}
        for group, topic, text in list(both)[:NAMES_MAX]:
            info.subscriptions.add(group=group, topic=topic, filter=text, polled_ms=times.get((group, topic, text), 0))
        info.subscriptions_total = max(facts.subscriptions_total, len(both))
        topics = dict.fromkeys((*facts.publishes, *known.sends))
        info.publishes.extend(list(topics)[:NAMES_MAX])
        info.publishes_total = max(facts.publishes_total, len(topics))


def _describe_message(message: pb.ClientMessage, key: bytes, renewed: RenewedHandle, since_ms: int) -> None:
    """Describe a message that is kept invisible, as far as its handle says."""
    message.group, message.topic, message.broker = renewed.entry.group, renewed.entry.topic, renewed.broker
    message.since_ms = since_ms
    try:
        handle = receipt.decode(key, message.group, message.topic, renewed.entry.receipt_handle)
    except StatusError:
        return  # the key is not known yet: the message is listed without its place
    message.is_retry = handle.origin == receipt.FROM_RETRY_TOPIC
    message.queue_id, message.queue_offset = handle.queue_id, handle.queue_offset
