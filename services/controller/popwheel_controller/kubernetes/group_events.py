"""Kubernetes Events about broker groups, for `kubectl describe brokergroup` and `kubectl get events`.

They are for people: events that cannot be written now are written later, and those above the rate limit are dropped.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter

from popwheel_common.clock import Clock
from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    EVENTS,
    ApiConflictError,
    ApiRefusalError,
    KubernetesApi,
    Resource,
)
from popwheel_controller.kubernetes.group_status import time_text

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
EVENTS_PER_MINUTE: Final = 30
"""Limit of all groups together. Kubernetes stores each for an hour."""
WAITING_MAX: Final = 100
"""Limit of events that wait to be written."""
MESSAGE_LENGTH_MAX: Final = 1_000
"""Limit of a message; that of Kubernetes is 1,024 bytes."""
_SOURCE: Final = "popwheel-controller"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Event about a broker group.

    Args:
        kind: `NORMAL`, `WARNING`.
        reason: in one word.
        message: the same in a sentence.
    """

    kind: str
    reason: str
    message: str


def event_resource(event: GroupEvent, about: Resource, now_ms: int, number: int) -> Mapping[str, Any]:
    """Return the Kubernetes resource of an event (pure).

    Args:
        event: what to report.
        about: the `BrokerGroup`.
        now_ms: milliseconds since 1970.
        number: of the event, so that events of the same millisecond have different names.
    """
    of = about["metadata"]
    time = time_text(now_ms)
    place = {"namespace": of["namespace"]} if "namespace" in of else {}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{of['name']}.{now_ms:x}-{number:x}", **place},
        "involvedObject": {
            "apiVersion": BROKER_GROUPS.api_version,
            "kind": BROKER_GROUPS.kind,
            "name": of["name"],
            "uid": of["uid"],
            **place,
        },
        "type": event.kind,
        "reason": event.reason,
        "message": event.message.encode()[:MESSAGE_LENGTH_MAX].decode(errors="ignore"),
        "source": {"component": _SOURCE},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


class GroupEvents:
    """Writes events, at a bounded rate.

    Args:
        api: the API server.
        clock: the time.
        registry: for the counter of dropped events.
    """

    def __init__(self, api: KubernetesApi, clock: Clock, registry: CollectorRegistry) -> None:
        self._api = api
        self._clock = clock
        self._waiting: deque[Resource] = deque()
        self._taken = 0
        self._number = 0
        self._since_s = clock.monotonic()
        self._left_out = Counter(
            "popwheel_controller_events_left_out",
            "Kubernetes Events that were not written: above the rate limit, or refused",
            registry=registry,
        )

    def record(self, event: GroupEvent, about: Resource) -> None:
        """Queue an event to be written soon; drop it above the limit."""
        now_s = self._clock.monotonic()
        if now_s - self._since_s >= 60:
            self._since_s, self._taken = now_s, 0
        if self._taken >= EVENTS_PER_MINUTE or len(self._waiting) >= WAITING_MAX:
            self._left_out.inc()
            return
        self._taken += 1
        self._number += 1
        self._waiting.append(event_resource(event, about, self._clock.wall_ms(), self._number))

    async def write(self) -> None:
        """Write the queued events.

        Raises:
            ApiAwayError: the API server accepts none now, and they stay queued; or it refuses some, which are dropped.
        """
        refusal: ApiRefusalError | None = None
        while self._waiting:
            event = self._waiting[0]
            try:
                await self._api.create(EVENTS, event)
            except ApiConflictError:
                pass  # it was written, and the answer was lost
            except ApiRefusalError as error:
                self._left_out.inc()
                refusal = error.with_traceback(None)
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
        if refusal is not None:
            raise refusal

    def clear(self) -> None:
        """Drop the queued events: this controller no longer leads."""
        self._waiting.clear()
