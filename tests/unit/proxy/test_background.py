"""Work that nobody awaits: it begins at once where that is asked for, and nothing is left when the proxy ends."""

import asyncio
from unittest.mock import AsyncMock

import pytest

from popwheel_proxy.brokers.background import Background
from popwheel_proxy.brokers.brokers import _close_after


async def test_what_never_waits_has_ended_when_start_at_once_returns() -> None:
    background = Background()
    seen: list[str] = []

    async def inner() -> None:
        seen.append("inner")

    async def work() -> None:
        seen.append("begin")
        background.start_at_once(inner())
        seen.append("end")

    background.start_at_once(work())
    assert seen == ["begin", "end"], "what it starts itself waits for its turn"
    await background.finish(1.0)
    assert seen == ["begin", "end", "inner"]


async def test_a_failure_is_logged_and_hurts_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    background = Background()

    async def fail() -> None:
        raise ValueError("as planned")

    background.start_at_once(fail())
    assert "as planned" in capsys.readouterr().out
    await background.finish(1.0)


async def test_the_end_waits_for_all_and_cancels_what_takes_too_long() -> None:
    background = Background()
    ended: list[str] = []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            ended.append(name)
        except asyncio.CancelledError:
            ended.append(f"{name} was cancelled")
            raise

    background.start_at_once(work("short", 0.01))
    background.start(work("short task", 0.01))
    background.start_at_once(work("long", 60))
    await background.finish(0.1)
    assert sorted(ended) == ["long was cancelled", "short", "short task"]


async def test_a_former_masters_channel_is_closed_at_once_when_the_proxy_ends() -> None:
    background, channel = Background(), AsyncMock()
    background.start(_close_after(channel))
    await asyncio.sleep(0)
    channel.close.assert_not_awaited()
    await background.finish(0.0)
    channel.close.assert_awaited_once()
