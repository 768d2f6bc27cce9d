"""A Kubernetes API server in memory: resource versions, 409s, watches that end, answers and reads that lag."""

import asyncio
import contextlib
import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    CONSUMER_GROUPS,
    TOPICS,
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
        self.events: list[tuple[int, str, Resource, bool]] = []
        """Revision, kind, the resource as it is or was last, and whether it is gone."""
        self.forgotten = 0
        """Watches from before this revision are gone (410)."""
        self.away = False
        self.refusal = "the API server is away"
        """What it says while it is away."""
        self.with_status = {BROKER_GROUPS, TOPICS, CONSUMER_GROUPS}
        """Kinds whose definition has a status."""
        self.forbidden: ResourceKind | None = None
        """Nothing may be done with resources of this kind (403)."""
        self.lists_fail = False
        self.lost_answers = 0
        """Number of the next changes that are made, and yet fail."""
        self.repeated_changes = 0
        """Number of the next changes that are made twice on their way here, and only the second one is answered."""
        self.stale_reads = 0
        """Number of the next reads that give what was before the last change."""
        self.watches = 0
        self.lists = 0
        self._ends = 0
        self._clock = 0
        self._before: dict[tuple[str, str], dict[str, Any] | None] = {}
        self._arrived = asyncio.Event()

    async def get(self, kind: ResourceKind, name: str) -> Resource | None:
        await self._turn(kind)
        key = (kind.plural, name)
        if self.stale_reads and key in self._before:
            self.stale_reads -= 1
            return copy.deepcopy(self._before[key])
        return copy.deepcopy(self.objects.get(key))

    async def list_some(self, kind: ResourceKind, labels: str, most: int | None) -> tuple[list[Resource], str, bool]:
        self.lists += 1
        await self._turn(kind)
        if self.lists_fail:
            raise ApiAwayError("too many requests")
        all_of_kind = [each for (plural, _), each in sorted(self.objects.items()) if plural == kind.plural]
        found: list[Resource] = [copy.deepcopy(each) for each in all_of_kind if _bears(each, labels)]
        return found[:most], str(self.revision), most is not None and len(found) > most

    async def create(self, kind: ResourceKind, resource: Resource) -> Resource:
        await self._turn(kind)
        assert "resourceVersion" not in resource["metadata"]
        resource = {key: resource[key] for key in resource if key != "status" or kind not in self.with_status}
        if (kind.plural, resource["metadata"]["name"]) in self.objects:
            raise ApiConflictError("AlreadyExists")
        made = merged({}, resource)
        self._clock += 1
        made["metadata"] |= {
            "uid": f"uid-{self._clock}",
            "generation": 1,
            "creationTimestamp": f"2026-01-01T00:{self._clock // 60 % 60:02}:{self._clock % 60:02}Z",
        }
        return self._store(kind, made)

    async def patch(self, kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        await self._turn(kind)
        if self.repeated_changes:
            self.repeated_changes -= 1
            with contextlib.suppress(ApiConflictError):
                await self.patch(kind, name, change, status=status)
        stored = self.objects.get((kind.plural, name))
        version = change.get("metadata", {}).get("resourceVersion")
        if stored is None or version not in (None, stored["metadata"]["resourceVersion"]):
            raise ApiConflictError("Conflict")
        if status and kind not in self.with_status:
            raise ApiConflictError("Not Found")
        if kind in self.with_status:
            change = {
                key: change[key] for key in change if (key == "status") is status or (key == "metadata" and not status)
            }
        changed: dict[str, Any] = merged(stored, change)
        if changed == stored:
            return copy.deepcopy(stored)
        if changed.get("spec") != stored.get("spec"):
            changed["metadata"] = {**changed["metadata"], "generation": stored["metadata"].get("generation", 0) + 1}
        if "deletionTimestamp" in changed["metadata"] and not changed["metadata"].get("finalizers"):
            self.remove(kind, name)
            return changed
        return self._store(kind, changed)

    async def watch(
        self, kind: ResourceKind, labels: str, since: str, timeout_s: float, saw: Callable[[Resource, bool], None]
    ) -> None:
        self.watches += 1
        await self._turn(kind)
        if int(since) < self.forgotten:
            raise ApiGoneError("Expired")
        ends, reported = self._ends, int(since)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while ends == self._ends:
                    for revision, plural, each, gone in [event for event in self.events if event[0] > reported]:
                        reported = revision
                        if plural == kind.plural and _bears(each, labels):
                            saw(copy.deepcopy(each), gone)
                    self._arrived.clear()
                    await self._arrived.wait()
                    await self._turn(kind)

    async def close(self) -> None:
        pass

    async def delete(self, kind: ResourceKind, name: str, version: str | None) -> None:
        await self._turn(kind)
        stored = self.objects.get((kind.plural, name))
        if stored is None or version not in (None, stored["metadata"]["resourceVersion"]):
            raise ApiConflictError("Conflict")
        if not stored["metadata"].get("finalizers"):
            self.remove(kind, name)
        elif "deletionTimestamp" not in stored["metadata"]:
            self._store(kind, merged(stored, {"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}}))

    def remove(self, kind: ResourceKind, name: str) -> None:
        """Somebody deletes a resource."""
        self.revision += 1
        gone = copy.deepcopy(self.objects.pop((kind.plural, name)))
        gone["metadata"]["resourceVersion"] = str(self.revision)
        self.events.append((self.revision, kind.plural, gone, True))
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
        self.events.append((self.revision, kind.plural, stored, False))
        self._arrived.set()
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiAwayError("the answer was lost")
        return copy.deepcopy(stored)

    async def _turn(self, kind: ResourceKind) -> None:
        await asyncio.sleep(0)
        if kind is self.forbidden:
            raise ApiAwayError("the API server answers 403 Forbidden")
        if self.away:
            raise ApiAwayError(self.refusal)


def _bears(resource: Resource, labels: str) -> bool:
    """Whether it bears `name=value` and `name in (value,value)`, with commas between them."""
    borne = resource["metadata"].get("labels") or {}
    for name, values in re.findall(r"([^,=() ]+)(?:=| in )(\([^)]*\)|[^,]+)", labels):
        if borne.get(name) not in values.strip("()").split(","):
            return False
    return True


def merged(old: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, Mapping):
        return copy.deepcopy(change)
    result = dict(old) if isinstance(old, Mapping) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
