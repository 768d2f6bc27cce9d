"""Login by OpenID Connect: who is let in, and whose answers are no good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from popwheel_common.errors import ConfigurationError, StatusError
from popwheel_common.settings.console_options import ConsoleOptions, OidcOptions
from popwheel_common.web.caller import Rights, Role
from popwheel_console.login.oidc import Oidc, identity_of
from tests.unit.console.login_world import LoginWorld, login_world
from tests.unit.console.oidc_provider import ISSUER, Provider

URL = "https://console.test"
OIDC: dict[str, Any] = {
    "issuer": ISSUER,
    "client_id": "console",
    "roles": {"operators": "operate", "owners": "administer"},
}


@asynccontextmanager
async def oidc_world(folder: Path, provider: Provider) -> AsyncIterator[LoginWorld]:
    (folder / "secret").write_text("the secret of the client, which is long")
    options: dict[str, Any] = {"url": URL, "oidc": {**OIDC, "client_secret_file": str(folder / "secret")}}
    oidc = Oidc(ConsoleOptions(**options))
    oidc._client.client_kwargs["transport"] = httpx.ASGITransport(provider.app)
    async with login_world(folder, asks=oidc, **options) as w:
        yield w


async def log_in(w: LoginWorld, provider: Provider, **changes: str) -> httpx.Response:
    begun = await w.browser.get("/login/oidc?next=/topics")
    code, state = provider.visited(begun.headers["location"])
    return await w.browser.get("/login/oidc/callback", params={"code": code, "state": state, **changes})


async def test_a_person_with_a_role_is_let_in(tmp_path: Path) -> None:
    provider = Provider()
    async with oidc_world(tmp_path, provider) as w:
        assert "your organisation" in (await w.browser.get("/login")).text
        done = await log_in(w, provider)
        assert (done.status_code, done.headers["location"]) == (303, "/topics")
        assert provider.asked["redirect_uri"] == [f"{URL}/login/oidc/callback"]
        await w.browser.get("/")
        assert w.calls[-1][:3] == ("anna", "OPERATE", False)


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"aud": "another-client"},
        {"iss": "https://another.test"},
        {"exp": 1_000_000_000, "iat": 999_999_000},
    ],
)
async def test_claims_of_another_login_or_time_are_refused(tmp_path: Path, claims: dict[str, Any]) -> None:
    provider = Provider()
    provider.claims = claims
    async with oidc_world(tmp_path, provider) as w:
        refused = await log_in(w, provider)
        assert refused.status_code == 401 and "log in again" in refused.text
        assert (await w.browser.get("/")).status_code == 303


@pytest.mark.parametrize("kind", ["another key", "the client's secret", "none"])
async def test_what_the_provider_has_not_signed_is_refused(tmp_path: Path, kind: str) -> None:
    provider = Provider()
    provider.forge(kind)
    async with oidc_world(tmp_path, provider) as w:
        assert (await log_in(w, provider)).status_code == 401


async def test_an_answer_that_nobody_here_asked_for_is_refused(tmp_path: Path) -> None:
    """Else somebody could have a browser log in as himself."""
    provider = Provider()
    async with oidc_world(tmp_path, provider) as w, w.new_browser() as other:
        assert (await log_in(w, provider, state="forged")).status_code == 401
        begun = await other.get("/login/oidc")
        code, state = provider.visited(begun.headers["location"])
        answer = await w.browser.get("/login/oidc/callback", params={"code": code, "state": state})
        assert answer.status_code == 401
        cookie = next(each for each in other.cookies.jar if each.name == "popwheel_oidc")
        w.browser.cookies.set(cookie.name, cookie.value or "", path="/login/oidc", domain="console.test")
        answer = await w.browser.get("/login/oidc/callback", params={"code": code, "state": state})
        assert answer.status_code == 401, "it is of another session"


async def test_a_provider_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    provider = Provider()
    async with oidc_world(tmp_path, provider) as w:
        provider.app.routes.clear()
        answer = await w.browser.get("/login/oidc")
        assert answer.status_code == 500 and "cannot be asked now" in answer.text


def test_the_greatest_of_several_roles_counts_and_no_role_lets_nobody_in() -> None:
    options = OidcOptions(**OIDC)
    claims = {"preferred_username": "Anna Smith", "groups": ["operators", "owners", 7]}
    found = identity_of(claims, options)
    assert (found.name, found.rights) == ("Anna_Smith", Rights(Role.ADMINISTER, True))
    assert identity_of({"sub": "controller", "groups": "operators"}, options).name == "u_controller"
    for groups in (None, [], ["staff"], "staff", {"operators": 1}):
        with pytest.raises(StatusError, match="has no role here"):
            identity_of({"sub": "x", "groups": groups}, options)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"url": ""}, "console.url"),
        ({"oidc": {**OIDC, "client_id": ""}}, "console.oidc.client_id"),
        ({"oidc": {**OIDC, "roles": {}}}, "console.oidc.roles"),
        ({"oidc": {**OIDC, "client_secret_file": "/nowhere"}}, "console.oidc.client_secret_file"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        Oidc(ConsoleOptions(**{"url": URL, "oidc": OIDC, **changes}))
