"""Resources of one kind, as the API server shows them: listed once, then watched."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from popwheel_controller.kubernetes.api import (
    ApiAwayError,
    ApiConflictError,
    ApiGoneError,
    KubernetesApi,
    Resource,
    ResourceKind,
)

_WATCH_S = 3.0  # its thread cannot be interrupted, and the process ends when it does
_PAUSE_S = 1.0

_logger = structlog.get_logger()


class ResourceWatch:
    """Cache of resources, updated by a watch, which may lag, end, or have to be restarted (410).

    Args:
        api: the API server.
        kind: of the resources.
        labels: selects them.
        changed: called whenever one has changed.
        most: limit of cached resources, the first ones by name when they are listed; None for all.
    """

    def __init__(
        self,
        api: KubernetesApi,
        kind: ResourceKind,
        labels: str,
        changed: Callable[[], None] | None = None,
        most: int | None = None,
    ) -> None:
        self._api = api
        self._kind = kind
        self._labels = labels
        self._changed = changed
        self._most = most
        self._since = ""
        self._forgotten = False
        self._watching: asyncio.Task[None] | None = None
        self.resources: dict[str, Resource] = {}
        """Resources by name."""
        self.left_out = False
        """True if there are more resources than the limit."""

    @property
    def runs(self) -> bool:
        """True while the watch runs."""
        return self._watching is not None and not self._watching.done()

    async def start(self) -> None:
        """List all, and begin to watch.

        Raises:
            ApiAwayError: they cannot be listed.
        """
        await self._list()
        self._watching = asyncio.create_task(self._watch(), name=f"watch-of-{self._kind.plural}")

    async def stop(self) -> None:
        """Stop the watch."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def patch(self, name: str, change: Resource, *, status: bool = False) -> bool:
        """Change a part of a resource (`KubernetesApi.patch`); return whether it was done. If not, because it is gone
        or has another version, the cache is updated.

        Raises:
            ApiAwayError: the outcome is unknown.
        """
        try:
            self.take(await self._api.patch(self._kind, name, change, status=status))
        except ApiConflictError:
            version = change.get("metadata", {}).get("resourceVersion")
            found = await self.reread(name)
            if found is not None and version in (None, found["metadata"]["resourceVersion"]):
                raise ApiAwayError(
                    f"{self._kind.plural}/{name} takes no such change: install this release's definitions of the "
                    "resources"
                ) from None
            self._notify()
            return False
        return True

    async def delete(self, name: str, version: str) -> None:
        """Delete a resource, if it has that version.

        Raises:
            ApiAwayError: the outcome is unknown.
        """
        with suppress(ApiConflictError):
            await self._api.delete(self._kind, name, version)
        await self.reread(name)

    async def reread(self, name: str) -> Resource | None:
        """Reread a resource; return None if it is gone.

        Raises:
            ApiAwayError: that cannot be known.
        """
        found = await self._api.get(self._kind, name)
        if found is None:
            self.resources.pop(name, None)
        else:
            self.take(found)
        return found

    def take(self, resource: Resource) -> None:
        """Record a resource as it was stored just now, before the watch reports it."""
        name = str(resource["metadata"]["name"])
        if self._most is None or name in self.resources or len(self.resources) < self._most:
            self.resources[name] = resource
        else:
            self._leave_out()

    def _leave_out(self) -> None:
        if not self.left_out:
            _logger.warning("there are more resources than the limit", kind=self._kind.plural, most=self._most)
        self.left_out = True

    async def _list(self) -> None:
        found, self._since, more = await self._api.list_some(self._kind, self._labels, self._most)
        if more:
            self._leave_out()
        else:
            self.left_out = False
        self.resources = {str(resource["metadata"]["name"]): resource for resource in found}
        self._forgotten = False
        self._notify()

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

    def _saw(self, resource: Resource, gone: bool) -> None:
        if not self.runs:
            return
        self._since = str(resource["metadata"]["resourceVersion"])
        if gone:
            self.resources.pop(str(resource["metadata"]["name"]), None)
            self._forgotten = self._forgotten or self.left_out  # there may be room for a left-out one
        else:
            self.take(resource)
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed()
