"""The admin API behind tokens."""

from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.errors import ConfigurationError
from popwheel_common.http import make_http_app
from popwheel_common.web.caller import Role
from popwheel_common.web.tokens import Tokens, tokens_of

GOOD = "correct-horse-battery"
SECOND = "another-good-token-0"


def client(file: Path, registry: CollectorRegistry) -> httpx.AsyncClient:
    router = APIRouter(prefix="/api/v1")

    @router.get("/topics")
    async def topics() -> list[str]:
        return ["orders"]

    @router.post("/topics")
    async def make(body: dict[str, str]) -> None:
        raise AssertionError("nobody gets here")

    app = make_http_app("test", "0", registry, {}, [router], tokens=Tokens(str(file), SystemClock(), registry))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def shown(token: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"authorization": f"{scheme} {token}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"{GOOD}\n\n  {SECOND}\n")
    return path


@pytest.mark.parametrize("headers", [shown(GOOD), shown(SECOND), shown(GOOD, "bearer")])
async def test_who_shows_a_token_is_served(headers: dict[str, str], file: Path) -> None:
    async with client(file, CollectorRegistry()) as http:
        assert (await http.get("/api/v1/topics", headers=headers)).json() == ["orders"]


@pytest.mark.parametrize(
    "headers",
    [{}, shown("wrong"), shown(GOOD[:-1]), shown(f"{GOOD}x"), shown(GOOD, "Basic"), shown(""), shown("é" * 20)],
)
async def test_who_shows_none_is_refused_before_the_request_is_read(headers: dict[str, str], file: Path) -> None:
    registry = CollectorRegistry()
    sent = {key.encode(): value.encode() for key, value in headers.items()}
    async with client(file, registry) as http:
        for path in ("/api/v1/topics", "/api/v1/nothing", "/docs", "/openapi.json", "/", "//api/v1/topics"):
            answer = await http.get(path, headers=sent)
            assert answer.status_code == 401
            assert answer.json()["code"] == "UNAUTHORIZED"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await http.post("/api/v1/topics", content=b"no json", headers=sent)).status_code == 401
    assert registry.get_sample_value("popwheel_http_denials_total") == 7


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_health_and_metrics_need_none(path: str, file: Path) -> None:
    async with client(file, CollectorRegistry()) as http:
        assert (await http.get(path)).status_code == 200


async def test_tokens_change_without_a_restart_and_a_wrong_file_changes_nothing(file: Path) -> None:
    registry = CollectorRegistry()
    async with client(file, registry) as http:
        file.write_text("a-token-of-tomorrow")
        assert (await http.get("/api/v1/topics", headers=shown(GOOD))).status_code == 401
        assert (await http.get("/api/v1/topics", headers=shown("a-token-of-tomorrow"))).status_code == 200
        file.write_text("short")
        assert (await http.get("/api/v1/topics", headers=shown("a-token-of-tomorrow"))).status_code == 200
        assert (await http.get("/api/v1/topics", headers=shown("short"))).status_code == 401
        assert registry.get_sample_value("popwheel_http_token_file_refused") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "there is no token in it"),
        ("short", "line 1 is no token"),
        (f"{GOOD}\ntwo words are not one", "line 2 is no token"),
        (f"ops operate {GOOD}\nops {SECOND}", "line 2 is no token: write NAME ROLE TOKEN"),
        (f"ops rule {GOOD}", "line 1 has no good role: the second word must be one of read, read.bodies, operate"),
        ("ops operate short", "line 1 is no token"),
        (f"o/s operate {GOOD}", "line 1 has no good name"),
        (f"controller operate {GOOD}", "line 1 has no good name"),
        (f"ops operate {GOOD}\n\nother read {GOOD}", "line 3 has the token of line 1 and another role"),
        ("x" * 70_000, "it has more than 65536 bytes"),
    ],
)
def test_a_wrong_file_stops_the_start(content: str, sentence: str, file: Path) -> None:
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=f"access.token_file: .*{sentence}"):
        Tokens(str(file), SystemClock(), CollectorRegistry())


def test_no_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"access\.token_file: cannot read"):
        Tokens(str(tmp_path / "nothing"), SystemClock(), CollectorRegistry())


def test_lines_have_names_and_roles_and_old_ones_may_administer() -> None:
    found = tokens_of(
        f"{GOOD}\n\nops operate {SECOND}\n audit  read+bodies\t{GOOD}-3 \nroot administer {GOOD}-4\nr read {GOOD}-5"
        f"\n{GOOD}".encode()
    )
    assert [(each.name, each.role, each.sees_data) for each in found] == [
        ("token 1", Role.ADMINISTER, True),
        ("ops", Role.OPERATE, False),
        ("audit", Role.READ, True),
        ("root", Role.ADMINISTER, True),
        ("r", Role.READ, False),
    ]
    assert GOOD not in repr(found), "a secret is in no log"


@pytest.mark.parametrize(
    "content", [f"ops rule {GOOD}", f"o/s operate {GOOD}", f"ops {GOOD}", f"a read {GOOD}\nb operate {GOOD}"]
)
def test_no_sentence_shows_a_token(content: str) -> None:
    with pytest.raises(ValueError, match="line") as caught:
        tokens_of(content.encode())
    assert GOOD not in str(caught.value)
