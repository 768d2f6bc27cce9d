"""The certificates in their Secret, at an API server in memory."""

import base64
import datetime

import pytest

from popwheel_cli.certificates import take_step
from popwheel_cli.errors import CommandError
from popwheel_controller.kubernetes.api import SECRETS, ApiAwayError
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.memory_api import MemoryApi

SECRET = "popwheel-internal-tls"
NAMES = ["*.broker"]
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC).timestamp() * 1000))


def data(api: MemoryApi) -> dict[str, str]:
    stored = api.objects[SECRETS.plural, SECRET]["data"]
    assert isinstance(stored, dict)
    return dict(stored)


async def test_a_secret_is_made_left_alone_and_renewed(api: MemoryApi, clock: ManualClock) -> None:
    assert "are an authority and a certificate now" in await take_step(api, SECRET, NAMES, clock)
    made = data(api)
    assert made.keys() == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert base64.b64decode(made["tls.key"]).startswith(b"-----BEGIN PRIVATE KEY-----")
    assert await take_step(api, SECRET, NAMES, clock) == "no renewal is due"
    assert data(api) == made
    clock.advance(61 * DAY_MS)
    assert "last third" in await take_step(api, SECRET, NAMES, clock)
    renewed = data(api)
    assert {name for name in made if made[name] != renewed[name]} == {"tls.crt", "tls.key"}


async def test_what_is_taken_out_of_it_is_made_anew(api: MemoryApi, clock: ManualClock) -> None:
    await take_step(api, SECRET, NAMES, clock)
    del api.objects[SECRETS.plural, SECRET]["data"]["tls.crt"]
    assert await take_step(api, SECRET, NAMES, clock) == "there is no certificate"


async def test_who_was_slower_looks_again(api: MemoryApi, clock: ManualClock) -> None:
    await take_step(api, SECRET, NAMES, clock)
    made = data(api)
    clock.advance(61 * DAY_MS)
    await take_step(api, SECRET, NAMES, clock)
    renewed = data(api)
    api.stale_reads = 1
    assert await take_step(api, SECRET, NAMES, clock) == "no renewal is due"
    assert data(api) == renewed != made
    api.stale_reads = 100
    with pytest.raises(CommandError, match="was changed by others 3 times"):
        await take_step(api, SECRET, NAMES, clock)


async def test_a_secret_of_somebody_elses_is_left_alone(api: MemoryApi, clock: ManualClock) -> None:
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "data": {}}
    await api.create(SECRETS, theirs)
    with pytest.raises(CommandError, match="is not of our making"):
        await take_step(api, SECRET, NAMES, clock)


@pytest.mark.parametrize("content", ["no", "bm8="])
async def test_a_secret_that_holds_something_else_is_left_alone(
    api: MemoryApi, clock: ManualClock, content: str
) -> None:
    await take_step(api, SECRET, NAMES, clock)
    api.objects[SECRETS.plural, SECRET]["data"]["tls.crt"] = content
    with pytest.raises(CommandError, match="delete it, and all is made anew"):
        await take_step(api, SECRET, NAMES, clock)


async def test_an_api_server_that_is_away_is_said(api: MemoryApi, clock: ManualClock) -> None:
    api.away = True
    with pytest.raises(ApiAwayError):
        await take_step(api, SECRET, NAMES, clock)
