"""Lists the topics and groups that the log knows, for controllers that have lost their state."""

from base64 import b64decode
from collections.abc import Mapping
from heapq import nsmallest
from typing import Final

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.topics.known_ids import NOT_PLACED
from popwheel_broker.topics.known_settings import KnownSettings
from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace, Steps
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

LISTED_MAX: Final = 1_000
_STEP: Final = 2_000
"""Names that are read in one turn of the loop."""


class NameServer:
    """Serves the names of the log, of popwheel.v1.Broker. It changes nothing.

    Args:
        core: the broker's state.
        clock: how long a step takes.
    """

    def __init__(self, core: BrokerCore, clock: Clock) -> None:
        self._core = core
        self._clock = clock
        self._pace = Pace(clock)

    async def list_names(self, call: Call, request: pb.NameListRequest) -> pb.NameListResponse:
        """Return some names with their ids and settings.

        Raises:
            StatusError: BAD_REQUEST, the page is too large, or none.
        """
        if not 1 <= request.limit <= LISTED_MAX:
            raise StatusError(Code.BAD_REQUEST, f"limit must be from 1 to {LISTED_MAX}, not {request.limit}")
        known = self._core.topic_registry
        ids = known.group_ids if request.groups else known.topic_ids
        page = await self._page(ids, request.after, request.limit + 1)
        answer = pb.NameListResponse(next=page[request.limit - 1] if len(page) > request.limit else "")
        answer.states.extend(
            pb.SeenStore(version=version, applied_version=applied) for version, applied in known.former_states
        )
        if known.known_version:
            answer.states.add(version=known.known_version, applied_version=known.applied_version)
        for name in page[: request.limit]:
            if name in ids:  # else it has gone meanwhile
                answer.names.append(self._group(name) if request.groups else self._topic(name))
        return answer

    async def _page(self, ids: Mapping[str, int], after: str, count: int) -> list[str]:
        """Return the first names behind one, in order."""
        steps = Steps(self._clock, self._pace)
        every = list(ids)
        page: list[str] = []
        for first in range(0, len(every), _STEP):
            last = page[-1] if len(page) == count else None
            some = [name for name in every[first : first + _STEP] if name > after and (last is None or name < last)]
            page = nsmallest(count, [*page, *some])
            await steps.take()
        return page

    def _topic(self, name: str) -> pb.ListedName:
        names, queues = self._core.topic_registry, self._core.store.queues
        listed = _listed(name, names.former_ids(name), names.topic_ids[name], names.topic_settings)
        listed.queues = max((queue.queue_id + 1 for queue in queues.of_topic(name)), default=0)
        listed.has_lite_topics = queues.lite_count(name) > 0
        return listed

    def _group(self, name: str) -> pb.ListedName:
        names = self._core.topic_registry
        return _listed(name, names.former_group_ids(name), names.group_ids[name], names.group_settings)


def _listed(name: str, former: list[int], known: int, settings: KnownSettings) -> pb.ListedName:
    ids = [each for each in former if each != known] + ([known] if known != NOT_PLACED else [])
    text, before = settings.known.get(name), settings.former.get(name)
    return pb.ListedName(
        name=name,
        ids=ids,
        settings=None if text is None else b64decode(text),
        former_settings=None if before is None else b64decode(before),
    )
