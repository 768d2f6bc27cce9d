"""A Kubernetes API server in memory: resource versions, 409s, watches that end, answers and reads that lag."""

import asyncio
import contextlib
import copy
from typing import Any

from services.controller.kubernetes_api import (
    ApiAwayError,
    ApiConflictError,
    ApiGoneError,
    Resource,
    ResourceKind,
)


class MemoryApi:
    """A `KubernetesApi`; several may share its `objects` by being the same."""

    def __init__(self) -> None:
        self.revision = 100
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.events: list[tuple[int, str, Resource]] = []
        self.forgotten = 0
        """Watches from before this revision are gone (410)."""
        self.away = False
        self.lists_fail = False
        self.lost_answers = 0
        """So many of the next changes are made, and yet fail."""
        self.repeated_changes = 0
        """So many of the next changes are made twice on their way here, and only the second one is answered."""
        self.stale_reads = 0
        """So many of the next reads give what was before the last change."""
        self.watches = 0
        self.lists = 0
        self._ends = 0
        self._before: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._arrived = asyncio.Event()

    async def get(self, kind: ResourceKind, name: str) -> Resource | None:
        await self._turn()
        key = (kind.plural, name)
        if self.stale_reads and key in self._before:
            self.stale_reads -= 1
            return copy.deepcopy(self._before[key])
        return copy.deepcopy(self.objects.get(key))

    async def list_all(self, kind: ResourceKind, labels: str) -> tuple[list[Resource], str]:
        self.lists += 1
        await self._turn()
        if self.lists_fail:
            raise ApiAwayError("too many requests")
        all_of_kind = [each for (plural, _), each in self.objects.items() if plural == kind.plural]
        return [copy.deepcopy(each) for each in all_of_kind if _bears(each, labels)], str(self.revision)

    async def create(self, kind: ResourceKind, resource: Resource) -> Resource:
        await self._turn()
        assert "resourceVersion" not in resource["metadata"]
        if (kind.plural, resource["metadata"]["name"]) in self.objects:
            raise ApiConflictError("AlreadyExists")
        return self._store(kind, resource)

    async def replace(self, kind: ResourceKind, resource: Resource) -> Resource:
        await self._turn()
        if self.repeated_changes:
            self.repeated_changes -= 1
            with contextlib.suppress(ApiConflictError):
                await self.replace(kind, resource)
        stored = self.objects.get((kind.plural, resource["metadata"]["name"]))
        if stored is None or stored["metadata"]["resourceVersion"] != resource["metadata"]["resourceVersion"]:
            raise ApiConflictError("Conflict")
        return self._store(kind, resource)

    async def watch(self, kind: ResourceKind, labels: str, since: str, timeout_s: float) -> tuple[list[Resource], str]:
        self.watches += 1
        await self._turn()
        if int(since) < self.forgotten:
            raise ApiGoneError("Expired")
        ends = self._ends
        while ends == self._ends:
            fresh = [(revision, each) for revision, plural, each in self.events if revision > int(since)]
            if fresh:
                mine = [each for _, each in fresh if each["kind"] == kind.kind and _bears(each, labels)]
                return copy.deepcopy(mine), str(fresh[-1][0])
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                break
            await self._turn()
        return [], since

    async def close(self) -> None:
        pass

    async def delete(self, kind: ResourceKind, name: str, version: str | None) -> None:
        await self._turn()
        stored = self.objects.get((kind.plural, name))
        if stored is None or version not in (None, stored["metadata"]["resourceVersion"]):
            raise ApiConflictError("Conflict")
        self.remove(kind, name)

    def remove(self, kind: ResourceKind, name: str) -> None:
        """Somebody deletes a resource."""
        self.revision += 1
        gone = copy.deepcopy(self.objects.pop((kind.plural, name)))
        gone["metadata"]["resourceVersion"] = str(self.revision)
        self.events.append((self.revision, kind.plural, gone))
        self._arrived.set()

    def end_watches(self, *, forget: bool = False) -> None:
        """Let all watches end; if told so, they cannot go on from where they were."""
        if forget:
            self.revision += 1
            self.forgotten = self.revision
            self.events.clear()
        self._ends += 1
        self._arrived.set()

    def _store(self, kind: ResourceKind, resource: Resource) -> Resource:
        self.revision += 1
        stored: dict[str, Any] = copy.deepcopy(dict(resource))
        stored["metadata"]["resourceVersion"] = str(self.revision)
        key = (kind.plural, stored["metadata"]["name"])
        self._before[key] = self.objects.get(key)
        self.objects[key] = stored
        self.events.append((self.revision, kind.plural, stored))
        self._arrived.set()
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiAwayError("the answer was lost")
        return copy.deepcopy(stored)

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise ApiAwayError("the API server is away")


def _bears(resource: Resource, labels: str) -> bool:
    name, _, value = labels.partition("=")
    return bool(resource["metadata"]["labels"].get(name) == value)
