"""The names by which a process is asked over HTTP, and what pages of other sites may have a browser do."""

import re

import httpx
import pytest
from fastapi import APIRouter
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from structlog.testing import capture_logs

from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.listeners import learn_full_name, own_names
from popwheel_common.http import make_http_app
from popwheel_common.settings.http_options import HttpOptions
from popwheel_common.web.hosts import AllowedHosts, host_name

HOSTS = AllowedHosts(["popwheel-0.svc", "*.example.com", "Proxy."])
GOOD = (
    *(
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:80",
        "10.1.2.3:8080",
        "[::1]",
        "[fe80::1]:80",
    ),
    *("popwheel-0.svc", "POPWHEEL-0.SVC:8080", "a.example.com", "a.b.example.com:1", "proxy"),
)
BAD = (
    *(
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "127.0.0.1@evil.example",
        "xlocalhost",
    ),
    *(
        "example.com",
        "badexample.com",
        "popwheel-0.svc.evil.example",
        "[::1].evil.example",
        "[evil]",
        "::1",
        "localhost:x",
    ),
    *("", ":80", "[]", "[::1]x", "a b", "localhost,evil.example", "127.1", "0x7f.1", "2130706433", "localhost:80:80"),
)


@pytest.mark.parametrize("host", GOOD)
def test_a_name_of_our_own_or_an_address_is_good(host: str) -> None:
    assert HOSTS.allow(host)


@pytest.mark.parametrize("host", BAD)
def test_any_other_name_is_not(host: str) -> None:
    assert not HOSTS.allow(host)


@given(st.text(max_size=40))
def test_a_name_that_somebody_else_may_own_is_refused(name: str) -> None:
    assert not AllowedHosts(["x"]).allow(f"{name}.evil.example")
    assert not AllowedHosts(["x"]).allow(f"{name}.evil.example:8080")
    assert (host_name(name) is None) <= (not AllowedHosts(["x"]).allow(name))


def test_all_names_are_good_if_that_is_wanted() -> None:
    assert AllowedHosts(["*"]).allow("evil.example")
    assert AllowedHosts(["*"]).allow("evil example:x"), "whatever is wrong with them"


@pytest.mark.parametrize("host", ["*", "mq", "mq.example.com.", "*.example.com", "10.1.2.3", "::1", "fe80::1", "a_b"])
def test_hosts_in_the_settings_are_names_or_addresses(host: str) -> None:
    assert HttpOptions(allowed_hosts=[host]).allowed_hosts == [host]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "mq:8080",
        "http://mq",
        "mq/",
        "[::1]",
        "[::1]:80",
        "*mq",
        "a.*.com",
        "*.*",
        "**",
        "a b",
        "a,b",
        "m\u00fc",
        "*.",
    ],
)
def test_what_is_no_host_is_refused_in_the_settings(host: str) -> None:
    """It would allow nobody, and nobody would say so."""
    with pytest.raises(ValidationError, match=r"is no host: give a name .* without scheme, port, path or brackets"):
        HttpOptions(allowed_hosts=[host])
    pattern = HttpOptions.model_json_schema()["properties"]["allowed_hosts"]["items"]["pattern"]
    assert re.search(pattern, host) is None, "the chart says it as well"


def test_names_in_the_settings_are_good() -> None:
    options = ClusterOptions.model_validate(
        {
            "controller": {"advertised_address": "controller-1.c.svc:8083"},
            "broker": {"controller": "controller-0.c.svc:8083,[fd00::1]:8083", "name": "broker-a"},
            "proxy": {"advertised_address": "mq.example.com"},
        }
    )
    assert {"controller-0.c.svc", "controller-1.c.svc", "mq.example.com", "broker-a-master"} <= own_names(options)


def test_the_full_name_of_the_machine_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "Machine.example.org.")
    hosts = AllowedHosts(())
    assert not hosts.allow("machine.example.org")
    learn_full_name(hosts).join()
    assert hosts.allow("machine.example.org:8080")


def http_of(changed: list[str], registry: CollectorRegistry | None = None) -> httpx.AsyncClient:
    router = APIRouter()

    @router.api_route("/change", methods=["GET", "POST", "DELETE", "PUT"])
    async def change() -> None:
        changed.append("changed")

    app = make_http_app("test", "0", registry or CollectorRegistry(), {}, [router], hosts=HOSTS)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8080")


async def test_refusals_are_counted_and_each_name_is_logged_once() -> None:
    registry = CollectorRegistry()
    async with http_of([], registry) as http:
        with capture_logs() as lines:
            for host in ("evil.example", "evil.example", *(f"{number}.evil.example" for number in range(100))):
                assert (await http.get("/healthz", headers={"host": host})).status_code == 421
            assert (await http.post("/change", headers={"origin": "http://evil.example"})).status_code == 403
    assert [line["host"] for line in lines[:2]] == ["'evil.example'", "'0.evil.example'"]
    assert len(lines) == 16
    for reason, count in (("host", 102), ("site", 1), ("body", 0)):
        assert registry.get_sample_value("popwheel_http_refused_total", {"reason": reason}) == count


async def test_requests_for_another_host_are_refused_on_every_path() -> None:
    changed: list[str] = []
    async with http_of(changed) as http:
        for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/change", "/nowhere"):
            answer = await http.get(path, headers={"host": "evil.example"})
            assert (answer.status_code, answer.json()["code"]) == (421, "BAD_REQUEST")
            assert "http.allowed_hosts" in answer.json()["message"]
            answer = await http.get(path, headers=[("host", "localhost"), ("host", "evil.example")])
            assert answer.status_code == 421
        assert not changed
        assert (await http.get("/change")).status_code == 200


FROM_OUTSIDE = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://127.0.0.1:8080"},
    {"origin": "http://localhost:8080", "Origin": "http://evil.example"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("headers", FROM_OUTSIDE, ids=str)
async def test_pages_of_other_sites_change_nothing(method: str, headers: dict[str, str]) -> None:
    changed: list[str] = []
    async with http_of(changed) as http:
        answer = await http.request(method, "/change", headers=list(headers.items()))
        assert (answer.status_code, answer.json()["code"], changed) == (403, "FORBIDDEN", [])
        assert "another site" in answer.json()["message"]


async def test_our_own_pages_and_programs_may_change_something() -> None:
    changed: list[str] = []
    async with http_of(changed) as http:
        for headers in (
            {},
            {"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"},
            {"origin": "https://LOCALHOST:8080"},
            {"sec-fetch-site": "none"},
        ):
            assert (await http.post("/change", headers=headers)).status_code == 200
        assert len(changed) == 4
