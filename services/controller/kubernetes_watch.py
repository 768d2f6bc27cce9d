"""Resources of one kind, as the API server tells of them: listed once, then watched."""

import asyncio
from collections.abc import Callable

import structlog

from services.controller.kubernetes_api import ApiGoneError, KubernetesApi, Resource, ResourceKind

_WATCH_S = 3.0  # its thread cannot be interrupted, and the process ends when it does
_PAUSE_S = 1.0

_logger = structlog.get_logger()


class ResourceWatch:
    """Keeps resources as new as the API server tells. That may lag behind, end, or have to begin anew (410).

    Args:
        api: the API server.
        kind: of the resources.
        labels: selects them.
        changed: called whenever one has changed.
    """

    def __init__(
        self, api: KubernetesApi, kind: ResourceKind, labels: str, changed: Callable[[], None] | None = None
    ) -> None:
        self._api = api
        self._kind = kind
        self._labels = labels
        self._changed = changed
        self._since = ""
        self._forgotten = False
        self._watching: asyncio.Task[None] | None = None
        self.resources: dict[str, Resource] = {}
        """By name; one that was deleted stays, as it was last, until all are listed again."""

    @property
    def runs(self) -> bool:
        """Whether it has begun and goes on."""
        return self._watching is not None and not self._watching.done()

    async def start(self) -> None:
        """List all, and begin to watch.

        Raises:
            ApiAwayError: they cannot be listed.
        """
        await self._list()
        self._watching = asyncio.create_task(self._watch(), name=f"watch-of-{self._kind.plural}")

    async def stop(self) -> None:
        """End the watch."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    def take(self, resource: Resource) -> None:
        """One as it was stored just now: its watch may tell later."""
        self.resources[str(resource["metadata"]["name"])] = resource

    def forget(self, name: str) -> None:
        """One is gone."""
        self.resources.pop(name, None)

    async def _list(self) -> None:
        found, self._since = await self._api.list_all(self._kind, self._labels)
        self.resources = {str(resource["metadata"]["name"]): resource for resource in found}
        self._forgotten = False
        self._tell()

    async def _watch(self) -> None:
        broken = False
        while True:
            try:
                if self._forgotten:
                    await self._list()
                await self._api.watch(self._kind, self._labels, self._since, _WATCH_S, self._saw)
            except ApiGoneError:
                self._forgotten = True
            except OSError as error:
                if not broken:
                    _logger.warning("watch of resources broke", kind=self._kind.plural, reason=str(error))
                broken = True
                await asyncio.sleep(_PAUSE_S)
            else:
                broken = False

    def _saw(self, resource: Resource) -> None:
        if not self.runs:
            return
        self._since = str(resource["metadata"]["resourceVersion"])
        self.take(resource)
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed()
