"""Client of the few calls of the Kubernetes API that the controller needs.

The client is the `kubernetes` package (the extra of that name), loaded only when this store is asked for; it blocks, so
its calls run in threads.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from popwheel_common.errors import ConfigurationError
from popwheel_common.extras import needs_extra

Resource = Mapping[str, Any]
Result = TypeVar("Result")

_TIMEOUT_S = 5.0
_THREADS = 16  # one for each of six watches; a call that timed out occupies its thread until its own time-out
_BUSY_TRIES = 4
_BUSY_WAIT_S = 1.0  # what a 429 of the API server says in `Retry-After`
_BODY_SHOWN = 300  # names the wrong field of a request
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """Kind of resources.

    Args:
        group: of the API; empty for the core's.
        version: of that group.
        plural: as it stands in paths.
        kind: as it stands in resources.
    """

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """API version as resources name it."""
        return f"{self.group}/{self.version}" if self.group else self.version


BROKER_GROUPS = ResourceKind("popwheel.io", "v1", "brokergroups", "BrokerGroup")
CLUSTERS = ResourceKind("popwheel.io", "v1", "popwheelclusters", "PopwheelCluster")
CLUSTER_PAGES = ResourceKind("popwheel.io", "v1", "popwheelclusterpages", "PopwheelClusterPage")
CONSUMER_GROUPS = ResourceKind("popwheel.io", "v1", "consumergroups", "ConsumerGroup")
CONFIG_MAPS = ResourceKind("", "v1", "configmaps", "ConfigMap")
EVENTS = ResourceKind("", "v1", "events", "Event")
LEASES = ResourceKind("coordination.k8s.io", "v1", "leases", "Lease")
PODS = ResourceKind("", "v1", "pods", "Pod")
SECRETS = ResourceKind("", "v1", "secrets", "Secret")
TOPICS = ResourceKind("popwheel.io", "v1", "topics", "Topic")


class ApiConflictError(Exception):
    """Conflict: the resource has another version, exists already, or is gone (409, 404)."""


class _ApiNotFoundError(Exception):
    """Error: there is no such resource, or no such kind of resources (404)."""


class ApiGoneError(Exception):
    """The resource version is too old for the API server: list anew (410)."""


class ApiAwayError(OSError):
    """The API server cannot be reached or cannot answer; the outcome of a change is unknown."""


class _ApiBusyError(ApiAwayError):
    """The API server asks to retry later (429), as it does for a new kind; nothing was done."""


class ApiRefusalError(ApiAwayError):
    """The API server refuses this request, which a retry does not change; nothing was done."""


_KINDS_OF_ERROR = {400: ApiRefusalError, 403: ApiRefusalError, 422: ApiRefusalError, 429: _ApiBusyError}


class KubernetesApi(Protocol):
    """Resources of one namespace. All methods raise `ApiAwayError`."""

    async def get(self, kind: ResourceKind, name: str) -> Resource | None:
        """Return the latest state of a resource; None if there is none."""

    async def list_some(self, kind: ResourceKind, labels: str, most: int | None) -> tuple[list[Resource], str, bool]:
        """Return resources with these labels, up to a limit; the resource version to start a watch from; and whether
        there are more.
        """

    async def create(self, kind: ResourceKind, resource: Resource) -> Resource:
        """Create a resource; return it as stored.

        Raises:
            ApiConflictError: one of its name exists.
        """

    async def patch(self, kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        """Change a part of a resource (RFC 7396, "JSON Merge Patch"); return it as stored.

        Args:
            kind: of the resource.
            name: of the resource.
            change: new values; None removes a field. With a resource version in it, it applies to that version only.
            status: whether it changes the status, else all but the status.

        Raises:
            ApiConflictError: it has another version, or is gone.
        """

    async def delete(self, kind: ResourceKind, name: str, version: str | None) -> None:
        """Delete a resource of that version, or of any.

        Raises:
            ApiConflictError: it has another version, or is gone.
        """

    async def watch(
        self, kind: ResourceKind, labels: str, since: str, timeout_s: float, saw: Callable[[Resource, bool], None]
    ) -> None:
        """Call `saw` with each change after a resource version, until the time-out or the end of the watch: the
        latest state of the resource, and whether it is gone.

        Raises:
            ApiGoneError: that is too long ago.
        """

    async def close(self) -> None:
        """Close connections and threads."""


class ClientKubernetesApi:
    """The API server of the Kubernetes cluster that this process runs in, or that `~/.kube/config` names.

    Args:
        namespace: of the resources; empty: that of this pod.

    Raises:
        MissingExtraError: the client is not installed.
        ConfigurationError: it finds no cluster.
    """

    def __init__(self, namespace: str) -> None:
        with needs_extra("controller.store.kind", "must be file", "kubernetes"):
            from kubernetes import client, config
        try:
            try:
                config.load_incluster_config()
            except config.ConfigException:
                config.load_kube_config()
        except config.ConfigException as error:
            raise ConfigurationError(
                "controller.store.kind", f"must be file, because no Kubernetes cluster is found here: {error}"
            ) from error
        self._namespace = namespace or _own_namespace()
        configuration = client.Configuration.get_default_copy()
        # Callers decide about retries: a repeated PUT would conflict with its own first one, four tries outlast a
        # lease, and after a 429 the thread would sleep (`_run` waits without one).
        configuration.retries = False
        configuration.connection_pool_maxsize = _THREADS
        self._client = client.ApiClient(configuration)
        self._client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = _tls_context(
            configuration.ssl_ca_cert, configuration.ca_cert_data, is_verified=configuration.verify_ssl
        )
        self._error = client.ApiException
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="kubernetes")

    async def get(self, kind: ResourceKind, name: str) -> Resource | None:
        try:
            return await self._run(lambda: self._answer("GET", kind, name))
        except _ApiNotFoundError:
            return None

    async def list_some(self, kind: ResourceKind, labels: str, most: int | None) -> tuple[list[Resource], str, bool]:
        query = {"labelSelector": labels, **({} if most is None else {"limit": str(most)})}
        found = await self._found(lambda: self._answer("GET", kind, query=query))
        about = found["metadata"]
        return list(found["items"]), str(about["resourceVersion"]), bool(about.get("continue"))

    async def create(self, kind: ResourceKind, resource: Resource) -> Resource:
        return await self._found(lambda: self._answer("POST", kind, body=resource))

    async def patch(self, kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        part = f"{name}/status" if status else name
        try:
            return await self._run(lambda: self._answer("PATCH", kind, part, body=change))
        except _ApiNotFoundError as error:
            raise ApiConflictError(str(error)) from error

    async def delete(self, kind: ResourceKind, name: str, version: str | None) -> None:
        only_this: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if version is not None:
            only_this["preconditions"] = {"resourceVersion": version}
        try:
            await self._run(lambda: self._answer("DELETE", kind, name, body=only_this))
        except _ApiNotFoundError as error:
            raise ApiConflictError(str(error)) from error

    async def watch(
        self, kind: ResourceKind, labels: str, since: str, timeout_s: float, saw: Callable[[Resource, bool], None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            for event in self._events(kind, labels, since, timeout_s):
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise self._error(
                        status=status.get("code"), reason=f"{status.get('reason')}: {status.get('message')}"
                    )
                loop.call_soon_threadsafe(saw, event["object"], event["type"] == "DELETED")

        await self._found(call)

    async def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _answer(
        self,
        method: str,
        kind: ResourceKind,
        part: str = "",
        query: Mapping[str, str] | None = None,
        body: Resource | None = None,
    ) -> Resource:
        found: Resource = json.loads(self._ask(method, kind, part, query or {}, body, _TIMEOUT_S).read())
        return found

    def _events(self, kind: ResourceKind, labels: str, since: str, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        """Yield the events of a watch, one per line. The package's own watch opens a connection each time."""
        query = {
            "labelSelector": labels,
            "resourceVersion": since,
            "timeoutSeconds": str(int(timeout_s)),
            "watch": "true",
        }
        response = self._ask("GET", kind, "", query, None, timeout_s + _TIMEOUT_S).response
        try:
            for line in response:
                yield json.loads(line)
        finally:
            response.close()
            response.release_conn()

    def _ask(
        self,
        method: str,
        kind: ResourceKind,
        part: str,
        query: Mapping[str, str],
        body: Resource | None,
        timeout_s: float,
    ) -> Any:
        """Send a request; return the unread response. The package has a function for each kind and verb, but loading
        them takes 100 MB and more than a second.
        """
        root = f"/apis/{kind.group}" if kind.group else "/api"
        path = f"{root}/{kind.version}/namespaces/{self._namespace}/{kind.plural}"
        request = self._client.param_serialize(
            method,
            f"{path}/{part}" if part else path,
            query_params=list(query.items()),
            header_params={"Accept": _JSON, "Content-Type": _MERGE if method == "PATCH" else _JSON},
            body=None if body is None else dict(body),
            auth_settings=["BearerToken"],
        )
        response = self._client.call_api(*request, _request_timeout=timeout_s)
        if not 200 <= response.status <= 299:
            error = self._error(status=response.status, reason=response.reason)
            error.body = response.read().decode(errors="replace")
            raise error
        return response

    async def _run(self, call: Callable[[], Result]) -> Result:
        """Make a call in a thread, and translate its errors.

        A call that was refused with 429 is retried some times: it did nothing, and no thread waits between the tries.
        """

        def guarded() -> Result:
            try:
                return call()
            except self._error as error:
                if error.status == 404:
                    raise _ApiNotFoundError(str(error.reason)) from error
                if error.status == 409:
                    raise ApiConflictError(str(error.reason)) from error
                if error.status == 410:
                    raise ApiGoneError(str(error.reason)) from error
                said = f"{error.status} {error.reason}: {str(error.body)[:_BODY_SHOWN]}"
                raise _KINDS_OF_ERROR.get(error.status, ApiAwayError)(f"the API server answers {said}") from error
            except Exception as error:  # urllib3 has many errors for a missing answer
                raise ApiAwayError(f"the API server cannot be reached: {error}") from error

        loop = asyncio.get_running_loop()
        for _ in range(_BUSY_TRIES - 1):
            try:
                return await loop.run_in_executor(self._executor, guarded)
            except _ApiBusyError:
                await asyncio.sleep(_BUSY_WAIT_S)
        return await loop.run_in_executor(self._executor, guarded)

    async def _found(self, call: Callable[[], Result]) -> Result:
        """Make a call that fails with 404 only if the kind is missing."""
        try:
            return await self._run(call)
        except _ApiNotFoundError as error:
            raise ApiAwayError(
                f"the API server knows no such kind or namespace ({error}): install the definitions of the "
                "resources, and make the namespace"
            ) from error


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(
            "controller.store.namespace", f"must be given outside of a pod ({_NAMESPACE_FILE} cannot be read)"
        ) from error


def _tls_context(authority: str | None, authority_pem: str | None, *, is_verified: bool) -> ssl.SSLContext:
    """Return the TLS context for calls to the API server, which checks as kubectl and Python before 3.13 do.

    Since then an authority's certificate must say what it may be used for, which that of many a cluster does not.
    """
    context = ssl.create_default_context(cafile=authority, cadata=authority_pem)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
