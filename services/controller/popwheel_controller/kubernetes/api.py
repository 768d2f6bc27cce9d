"""The few calls of the Kubernetes API that the state store needs, and the client that makes them.

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
_THREADS = 16  # six watches wait in one each, and a call that was given up holds its own until its time is up
_BUSY_TRIES = 4
_BUSY_WAIT_S = 1.0  # what a 429 of the API server says in `Retry-After`
_BODY_SHOWN = 300  # it says which field of what was sent is wrong
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of resources.

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
    """The resource is not of the version that the change was made from, or is there already, or gone (409, 404)."""


class _ApiNotFoundError(Exception):
    """Error: there is no such resource, or no such kind of resources (404)."""


class ApiGoneError(Exception):
    """The API server does not remember so far back: list anew (410)."""


class ApiAwayError(OSError):
    """The API server cannot be reached or cannot answer; what has become of a change is not known."""


class _ApiBusyError(ApiAwayError):
    """The API server did nothing and asks to be asked later (429), as it does when a kind is quite new."""


class ApiRefusalError(ApiAwayError):
    """The API server does not take what it was asked, whatever becomes of other changes; nothing was done."""


_KINDS_OF_ERROR = {400: ApiRefusalError, 403: ApiRefusalError, 422: ApiRefusalError, 429: _ApiBusyError}


class KubernetesApi(Protocol):
    """Resources of one namespace. All methods raise `ApiAwayError`."""

    async def get(self, kind: ResourceKind, name: str) -> Resource | None:
        """The latest state of a resource; None if there is none."""

    async def list_some(self, kind: ResourceKind, labels: str, most: int | None) -> tuple[list[Resource], str, bool]:
        """Resources with these labels, at most so many; the resource version from which a watch of all of them goes
        on; and whether there are more.
        """

    async def create(self, kind: ResourceKind, resource: Resource) -> Resource:
        """Make a resource; as it is stored.

        Raises:
            ApiConflictError: there is one of its name.
        """

    async def patch(self, kind: ResourceKind, name: str, change: Resource, *, status: bool = False) -> Resource:
        """Change a part of a resource and leave the rest (RFC 7396, "JSON Merge Patch"); as it is stored.

        Args:
            kind: of the resource.
            name: of the resource.
            change: what is to be so; None for what is to go. If it names a resource version, it is made in place of
                that version only.
            status: whether it is a change of the status, and else of all but the status.

        Raises:
            ApiConflictError: it is of another version, or gone.
        """

    async def delete(self, kind: ResourceKind, name: str, version: str | None) -> None:
        """Delete a resource of that version, or of whichever it has.

        Raises:
            ApiConflictError: it is of another version, or gone.
        """

    async def watch(
        self, kind: ResourceKind, labels: str, since: str, timeout_s: float, saw: Callable[[Resource, bool], None]
    ) -> None:
        """Have `saw` called with each change after a resource version, until the time is up or the watch ends: the
        resource as it is now, or was last, and whether it is gone.

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
        # Who asks decides what is tried again: a repeated PUT meets its own first one and seems refused, four tries in
        # a row outlast a lease, and after a 429 the thread would sleep (`_run` waits without one).
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
        """The events of a watch, each a line. The client's own watch makes a client and a connection for each."""
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
        """Send a request; the response, whose contents are still to be read. The client has a function for each kind
        and verb, but to load those takes 100 MB and more than a second.
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
        """Make a call in a thread, and say in our words what went wrong.

        One that was refused for now is made again, some times: it did nothing, and between its tries no thread waits.
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
            except Exception as error:  # urllib3 has many ways to say that nobody answered
                raise ApiAwayError(f"the API server cannot be reached: {error}") from error

        loop = asyncio.get_running_loop()
        for _ in range(_BUSY_TRIES - 1):
            try:
                return await loop.run_in_executor(self._executor, guarded)
            except _ApiBusyError:
                await asyncio.sleep(_BUSY_WAIT_S)
        return await loop.run_in_executor(self._executor, guarded)

    async def _found(self, call: Callable[[], Result]) -> Result:
        """The same, where nothing can be missing but the kind."""
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
