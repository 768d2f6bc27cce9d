"""Store of the controller's state as Kubernetes resources; `kubectl get brokergroups -w` shows a failover.

Each broker group is a `BrokerGroup`, the cluster with its latest topics and consumer groups a `PopwheelCluster`, each
page of earlier ones (`cluster_book`) a `PopwheelClusterPage`, the lease a `Lease` of coordination.k8s.io, the key of
the receipt handles a `Secret`, the change log a `ConfigMap`. Compare-and-swap is the API's own: every change names
the resourceVersion that it was made from, and one that is not the latest is refused with 409 (Kubernetes API concepts,
"Resource versions"). Reads return the latest version; watches may lag, end, or have to be restarted (410): so a watch
is only a hint of when to read. Pages never change and are not watched.

A change touches only the fields that it names: annotations, labels and the status have other writers. All decisions are
in the `spec`, which one call writes; the status is for display only (`mirror`).
"""

import base64
import binascii
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from popwheel_common.errors import CorruptDataError, UnknownFormatError
from popwheel_controller.broker_groups.broker_group import NO_MASTER
from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    CLUSTER_PAGES,
    CLUSTERS,
    CONFIG_MAPS,
    LEASES,
    SECRETS,
    ApiConflictError,
    KubernetesApi,
    Resource,
    ResourceKind,
)
from popwheel_controller.kubernetes.resource_watch import ResourceWatch
from popwheel_controller.store.state_store import (
    CHANGES,
    CLUSTER,
    LEASE,
    ConflictError,
    Document,
    Stored,
    group_document_name,
    group_of_document,
    page_of_document,
)

OF_CLUSTER = "popwheel.io/cluster"
_ADDRESS = "popwheel.io/address"
_ADMIN = "popwheel.io/admin-address"
_LEASE_TURN = "popwheel.io/turn"
_WATCHED = (CLUSTERS, BROKER_GROUPS)
_LEGAL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEGAL_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class KubernetesStateStore:
    """A `StateStore` of resources in one namespace. A new cluster may be stored with another key than was given: that
    of its secret, if this is there.

    Args:
        api: the API server.
        cluster: name of the cluster; a label of its resources, so that what is another cluster's is never touched. A
            broker group's resource has the group's name alone: clusters with groups of one name need namespaces of
            their own.
    """

    def __init__(self, api: KubernetesApi, cluster: str) -> None:
        self.api = api
        """The API server."""
        self._cluster = cluster
        self._label = cluster_label(cluster)
        self._watches = {kind: ResourceWatch(api, kind, f"{OF_CLUSTER}={self._label}") for kind in _WATCHED}

    async def read(self, name: str) -> Stored | None:
        kind = _kind(name)
        found = await self.api.get(kind, self._resource_name(name))
        if found is None:
            return None
        self._check_ours(kind, found)
        try:
            document = await self._document(name, found)
        except (KeyError, TypeError, ValueError, AttributeError, EOFError, OSError, binascii.Error) as error:
            if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise CorruptDataError(f"{self.where(name)} is damaged: {error!r}; restore it from a backup") from error
        return Stored(document, _version(found))

    async def write(self, name: str, document: Document, expected: str | None) -> str:
        kind = _kind(name)
        if name == CLUSTER:
            await self._store_key(document["receipt_key"], is_new=expected is None)
        resource = self._resource(kind, name, self._contents(name, document))
        try:
            if expected is None:
                written = await self.api.create(kind, resource)
            else:
                resource["metadata"]["resourceVersion"] = expected
                written = await self.api.patch(kind, resource["metadata"]["name"], resource)
        except ApiConflictError as error:
            raise ConflictError(name) from error
        return _version(written)

    async def delete(self, name: str, expected: str | None) -> None:
        try:
            await self.api.delete(_kind(name), self._resource_name(name), expected)
        except ApiConflictError as error:
            raise ConflictError(name) from error

    async def versions(self) -> Mapping[str, str]:
        for watch in self._watches.values():
            if not watch.runs:
                await watch.start()
        return {
            _document_name(kind, resource): _version(resource)
            for kind, watch in self._watches.items()
            for resource in watch.resources.values()
        }

    async def pages(self) -> Sequence[str]:
        found, _, _ = await self.api.list_some(CLUSTER_PAGES, f"{OF_CLUSTER}={self._label}", None)
        return [str(page["spec"]["name"]) for page in found]

    async def close(self) -> None:
        """Stop the watches."""
        for watch in self._watches.values():
            await watch.stop()
        await self.api.close()

    def where(self, name: str) -> str:
        return f"{_kind(name).plural}/{self._resource_name(name)}"

    async def _document(self, name: str, found: Resource) -> Document:
        """Return the document of a resource."""
        if name == LEASE:
            noted = found["metadata"]["annotations"]
            return {
                "holder": found["spec"].get("holderIdentity") or "",
                "address": noted[_ADDRESS],
                "admin": noted[_ADMIN],
                "turn": int(noted[_LEASE_TURN]),
            }
        if name == CHANGES:
            changes: Document = json.loads(found["data"][CHANGES])
            return changes
        spec = found["spec"]
        if group_of_document(name) is not None:
            document = {key: spec[key] for key in spec if key != "syncStateSet"}
            return {"master": NO_MASTER, **document, "sync_state_set": spec["syncStateSet"]}
        contents: Document = json.loads(gzip.decompress(base64.b64decode(spec["contents"], validate=True)))
        if page_of_document(name) is not None:
            return contents
        key = await self.api.get(SECRETS, self._key_name())
        if key is None:
            raise KeyError(f"secrets/{self._key_name()}")
        self._check_ours(SECRETS, key)
        return {**contents, "name": spec["name"], "version": spec["version"], "receipt_key": key["data"]["key"]}

    def _contents(self, name: str, document: Document) -> dict[str, Any]:
        """Return the fields of a resource that make up its document."""
        if name == CHANGES:
            return {"data": {CHANGES: json.dumps(document, separators=(",", ":"))}}
        if name == LEASE:
            noted = {_ADDRESS: document["address"], _ADMIN: document["admin"], _LEASE_TURN: str(document["turn"])}
            return {"annotations": noted, "spec": {"holderIdentity": document["holder"] or None}}
        if group_of_document(name) is not None:
            spec = {key: document[key] for key in document if key != "sync_state_set"}
            spec["master"] = None if spec["master"] == NO_MASTER else spec["master"]
            return {"spec": {**spec, "syncStateSet": document["sync_state_set"]}}
        page = page_of_document(name)
        if page is not None:
            return {"spec": {"name": page, "contents": _packed(document)}}
        pages = document.get("pages", ())
        return {
            "spec": {
                "name": document["name"],
                "version": document["version"],
                "topics": len(document["topics"]) + sum(page["topics"] for page in pages),
                "groups": len(document["groups"]) + sum(page["groups"] for page in pages),
                "contents": _packed(
                    {key: document[key] for key in document if key not in ("name", "version", "receipt_key")}
                ),
            }
        }

    async def _store_key(self, key: str, *, is_new: bool) -> None:
        """Store the key of the receipt handles in its secret, which never changes. A new cluster takes over an existing
        secret of a process that ended before it could create the cluster.
        """
        found = await self.api.get(SECRETS, self._key_name())
        if found is None:
            secret = self._resource(SECRETS, self._key_name(), {"data": {"key": key}, "type": "Opaque"})
            try:
                await self.api.create(SECRETS, secret)
            except ApiConflictError as error:
                raise ConflictError(CLUSTER) from error
            return
        self._check_ours(SECRETS, found)
        if not is_new and found["data"].get("key") != key:
            raise ConflictError(CLUSTER)

    def _check_ours(self, kind: ResourceKind, found: Resource) -> None:
        """Check that a resource is this cluster's.

        Raises:
            UnknownFormatError: it belongs to another cluster.
        """
        owner = (found["metadata"].get("labels") or {}).get(OF_CLUSTER)
        if owner != self._label:
            raise UnknownFormatError(
                f"{kind.plural}/{found['metadata']['name']} is not of this cluster: its label {OF_CLUSTER} is "
                f"{owner or 'missing'}, not {self._label}; it is left as it is"
            )

    def _resource(self, kind: ResourceKind, name: str, contents: dict[str, Any]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "name": name if kind is SECRETS else self._resource_name(name),
            "labels": {OF_CLUSTER: self._label},
        }
        if "annotations" in contents:
            metadata["annotations"] = contents["annotations"]
        rest = {key: value for key, value in contents.items() if key != "annotations"}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **rest}

    def _resource_name(self, name: str) -> str:
        group, page = group_of_document(name), page_of_document(name)
        if group is not None:
            return group_resource_name(group)
        if page is not None:
            return f"{_legal(self._cluster)}.{_legal(page)}"
        if name == CHANGES:
            return f"{_legal(self._cluster)}-changes"
        return f"{_legal(self._cluster)}-controller" if name == LEASE else _legal(self._cluster)

    def _key_name(self) -> str:
        return f"{_legal(self._cluster)}-receipt-key"


def group_resource_name(group: str) -> str:
    """Return the name of a broker group's resource: the group's name, if Kubernetes allows it."""
    return _legal(group)


def cluster_label(cluster: str) -> str:
    """The value of the label that distinguishes a cluster's resources from others."""
    return _legal(cluster, _LEGAL_LABEL)


def _document_name(kind: ResourceKind, resource: Resource) -> str:
    return CLUSTER if kind is CLUSTERS else group_document_name(str(resource.get("spec", {}).get("name", "")))


def _kind(name: str) -> ResourceKind:
    if page_of_document(name) is not None:
        return CLUSTER_PAGES
    return {CHANGES: CONFIG_MAPS, CLUSTER: CLUSTERS, LEASE: LEASES}.get(name, BROKER_GROUPS)


def _packed(document: Document) -> str:
    contents = json.dumps(document, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(contents, compresslevel=6, mtime=0)).decode()


def _legal(name: str, pattern: re.Pattern[str] = _LEGAL) -> str:
    """A name as a resource, or a label of one, may have it; one that may not be is named by its hash."""
    return name if pattern.fullmatch(name) else f"x-{hashlib.sha256(name.encode()).hexdigest()[:20]}"


def _version(resource: Resource) -> str:
    return str(resource["metadata"]["resourceVersion"])
