"""What is asked of the API server, and what becomes of its answers, with a client that only notes and answers."""

import json
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    PODS,
    TOPICS,
    ApiAwayError,
    ApiConflictError,
    ApiGoneError,
    ApiRefusalError,
    ClientKubernetesApi,
)


class RefusedError(Exception):
    """`kubernetes.client.ApiException`."""

    body: str = ""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Response:
    """One answer."""

    def __init__(self, status: int, *lines: Any) -> None:
        self.status = status
        self.reason = "a reason"
        self.response = self
        self._lines = [json.dumps(line).encode() for line in lines]

    def read(self) -> bytes:
        return b"\n".join(self._lines)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def close(self) -> None:
        pass

    def release_conn(self) -> None:
        pass


class Server:
    """Answers in order, and has what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Response | Exception] = []
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.connection: dict[str, Any] = {}
        self.rest_client = SimpleNamespace(pool_manager=SimpleNamespace(connection_pool_kw=self.connection))

    def param_serialize(self, method: str, path: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
        return method, path, more

    def call_api(self, method: str, path: str, more: dict[str, Any], _request_timeout: float) -> Response:
        assert _request_timeout > 0
        self.asked.append((method, path, more))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def api(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClientKubernetesApi]:
    module: Any = ModuleType("kubernetes")
    tls = SimpleNamespace(ssl_ca_cert=None, ca_cert_data=None, verify_ssl=True)
    module.client = SimpleNamespace(
        Configuration=SimpleNamespace(get_default_copy=lambda: tls),
        ApiClient=lambda configuration: server if configuration.retries is False else None,
        ApiException=RefusedError,
    )
    monkeypatch.setattr(ssl, "create_default_context", strict_context)
    module.config = SimpleNamespace(load_incluster_config=lambda: None, ConfigException=KeyError)
    monkeypatch.setitem(sys.modules, "kubernetes", module)
    made = ClientKubernetesApi("ns")
    yield made
    await made.close()


def strict_context(**_: Any) -> ssl.SSLContext:
    """As Python makes it since 3.13."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


async def test_an_authority_need_not_say_what_it_may_be_used_for(api: ClientKubernetesApi, server: Server) -> None:
    context = server.connection["ssl_context"]
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.check_hostname and context.verify_mode == ssl.CERT_REQUIRED


async def test_each_call_is_one_request(api: ClientKubernetesApi, server: Server) -> None:
    server.answers = [Response(200, {"a": 1}) for _ in range(4)]
    assert await api.get(PODS, "p") == {"a": 1}
    await api.patch(PODS, "p", {"metadata": {"labels": {"x": None}}})
    await api.patch(BROKER_GROUPS, "g", {"status": {}}, status=True)
    await api.delete(BROKER_GROUPS, "g", "7")
    assert [each[:2] for each in server.asked] == [
        ("GET", "/api/v1/namespaces/ns/pods/p"),
        ("PATCH", "/api/v1/namespaces/ns/pods/p"),
        ("PATCH", "/apis/popwheel.io/v1/namespaces/ns/brokergroups/g/status"),
        ("DELETE", "/apis/popwheel.io/v1/namespaces/ns/brokergroups/g"),
    ]
    kinds = [each[2]["header_params"]["Content-Type"] for each in server.asked]
    assert kinds == ["application/json", *["application/merge-patch+json"] * 2, "application/json"]
    assert server.asked[1][2]["body"] == {"metadata": {"labels": {"x": None}}}
    assert server.asked[3][2]["body"]["preconditions"] == {"resourceVersion": "7"}
    assert all(each[2]["auth_settings"] == ["BearerToken"] for each in server.asked)


@pytest.mark.parametrize(
    ("answer", "error", "sentence"),
    [
        (Response(409, "of another version"), ApiConflictError, "a reason"),
        (Response(404, "gone"), ApiConflictError, "a reason"),
        (Response(410, "too long ago"), ApiGoneError, "a reason"),
        (Response(503, "no"), ApiAwayError, "answers 503"),
        (Response(422, "no such type"), ApiRefusalError, "answers 422 a reason: .*no such type"),
        (TimeoutError("nobody answers"), ApiAwayError, "cannot be reached: nobody answers"),
    ],
)
async def test_refusals_are_distinguished(
    api: ClientKubernetesApi, server: Server, answer: Response | Exception, error: type[Exception], sentence: str
) -> None:
    server.answers = [answer]
    with pytest.raises(error, match=sentence):
        await api.patch(BROKER_GROUPS, "g", {"spec": {}})


async def test_a_call_that_is_refused_for_now_is_made_again(
    api: ClientKubernetesApi, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popwheel_controller.kubernetes.api._BUSY_WAIT_S", 0.001)
    busy = Response(429, "storage is (re)initializing")
    server.answers = [busy, busy, Response(200, {"kind": "Pod"})]
    assert await api.get(PODS, "p") == {"kind": "Pod"}
    server.answers = [busy] * 5
    with pytest.raises(ApiAwayError, match=r"answers 429 a reason: .*initializing"):
        await api.patch(BROKER_GROUPS, "g", {"spec": {}})
    assert len(server.answers) == 1, "a server that stays busy is asked for ever"


async def test_what_is_not_there(api: ClientKubernetesApi, server: Server) -> None:
    server.answers = [Response(404), Response(404, "no such kind")]
    assert await api.get(BROKER_GROUPS, "g") is None
    with pytest.raises(ApiAwayError, match="install the definitions"):
        await api.list_some(BROKER_GROUPS, "a=b", None)


async def test_a_list_that_is_cut_off_says_so(api: ClientKubernetesApi, server: Server) -> None:
    page: dict[str, Any] = {"items": [{"a": 1}], "metadata": {"resourceVersion": "7"}}
    server.answers = [Response(200, page), Response(200, {**page, "metadata": {**page["metadata"], "continue": "x"}})]
    assert await api.list_some(TOPICS, "", 1) == ([{"a": 1}], "7", False)
    assert await api.list_some(TOPICS, "", 1) == ([{"a": 1}], "7", True)
    assert dict(server.asked[1][2]["query_params"]) == {"labelSelector": "", "limit": "1"}


async def test_a_watch_reports_each_change_and_that_it_cannot_go_on(api: ClientKubernetesApi, server: Server) -> None:
    events = [{"type": kind, "object": {"number": n}} for n, kind in enumerate(("ADDED", "MODIFIED", "DELETED"))]
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old resource version"}}
    server.answers = [Response(200, *events), Response(200, events[0], gone)]
    seen: list[tuple[Any, bool]] = []

    def saw(resource: Any, gone: bool) -> None:
        seen.append((resource, gone))

    await api.watch(BROKER_GROUPS, "a=b", "5", 3.0, saw)
    assert [(each["number"], gone) for each, gone in seen] == [(0, False), (1, False), (2, True)]
    asked = {"labelSelector": "a=b", "resourceVersion": "5", "timeoutSeconds": "3", "watch": "true"}
    assert dict(server.asked[0][2]["query_params"]) == asked
    with pytest.raises(ApiGoneError, match="too old resource version"):
        await api.watch(BROKER_GROUPS, "a=b", "5", 3.0, saw)
    assert len(seen) == 4
