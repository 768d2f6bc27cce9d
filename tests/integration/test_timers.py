"""Delayed messages of the real process: none early, none lost, none twice, whatever kills it (T1, T2, T4)."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies, delayed_message
from tests.harness.metrics import metric
from tests.harness.standalone import StandaloneProcess
from tests.harness.timers import OfficialConsumer, TimerLedger, TimerSender, consume
from tests.integration.conftest import QUICK

KILLS = int(os.environ.get("CRASH_ROUNDS", "3"))
"""`make drills` kills more often."""
PENDING = 10_000 * KILLS
SHARE = 2_000
"""Of those the official client receives this many; all others come to a faster one."""
ALSO_DUE_DURING_KILLS = 1_000 * KILLS
WINDOW_AFTER_S = 5.0 + 2.7 * KILLS
WINDOW_S = 10.0
FILL_SENDERS = 4
LOAD_SENDERS = 4
CONSUMERS = 6
SENDER_NUMBERS = 10_000_000
RECALLED = 200
RECALLED_DUE_AFTER_S = 10.0
"""Longer than two hundred sends, a kill and a start take, on machines that have a lot else to do."""
AT_ONCE_S = 5.0
"""Far more than it takes, for machines that have a lot else to do."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _spread(begin_ms: int, length_s: float, first: int, count: int) -> Callable[[int], int]:
    """When messages are due that fall due evenly over a time, the number of the first of which is given."""
    return lambda number: begin_ms + int((number - first) % count * length_s * 1000 / count)


@pytest.mark.timeout(180)
async def test_kill_9_again_and_again_with_many_timers(tmp_path: Path) -> None:
    source = random.Random(5)
    server = StandaloneProcess(tmp_path / "data", QUICK)
    ledger, share = TimerLedger(), TimerLedger()
    with server, OfficialConsumer(server.grpc_address, "Share", "share", tmp_path / "official") as official:
        address = server.grpc_address
        begin_ms = _now_ms()
        window_ms = begin_ms + int(WINDOW_AFTER_S * 1000)
        of_window = (PENDING - SHARE) // FILL_SENDERS
        fills = [
            TimerSender("Later", ledger, first, _spread(window_ms, WINDOW_S, first, of_window)).send(address, of_window)
            for first in range(0, FILL_SENDERS * SENDER_NUMBERS, SENDER_NUMBERS)
        ]
        fills.append(TimerSender("Share", share, 0, _spread(window_ms, WINDOW_S, 0, SHARE)).send(address, SHARE))
        first = FILL_SENDERS * SENDER_NUMBERS
        due_ms = _spread(begin_ms + 2000, WINDOW_AFTER_S - 2, first, ALSO_DUE_DURING_KILLS)
        fills.append(TimerSender("Later", ledger, first, due_ms).send(address, ALSO_DUE_DURING_KILLS))
        await asyncio.gather(*fills)
        consumers = [asyncio.create_task(consume(address, "Later", "later", ledger)) for _ in range(CONSUMERS)]
        for kill in range(KILLS):
            pending = metric(server, "popwheel_timers_pending")
            assert pending >= PENDING or _now_ms() > window_ms
            senders = [
                asyncio.create_task(
                    TimerSender(
                        "Later",
                        ledger,
                        (FILL_SENDERS + 1 + kill * LOAD_SENDERS + number) * SENDER_NUMBERS,
                        lambda number: _now_ms() + 50 + number * 977 % 3000,
                    ).send(address, None)
                )
                for number in range(LOAD_SENDERS)
            ]
            sent_before, wanted = len(ledger.sent), source.randrange(100, 3000)
            while len(ledger.sent) < sent_before + wanted:
                await asyncio.sleep(0.005)
            server.kill()
            await asyncio.gather(*senders)
            await asyncio.to_thread(server.start)
        await asyncio.sleep((window_ms - _now_ms()) / 1000 + WINDOW_S)
        until = time.monotonic() + 60
        while (ledger.missing or share.missing) and time.monotonic() < until:
            await asyncio.sleep(0.2)
            official.read(share)
        await asyncio.sleep(1)
        official.read(share)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        left = metric(server, "popwheel_timers_pending")
    ledger.check()
    share.check()
    assert len(ledger.sent) + len(share.sent) >= PENDING + ALSO_DUE_DURING_KILLS
    assert left == 0


async def test_what_was_recalled_stays_so_after_kill_9(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        due_ms = _now_ms() + int(RECALLED_DUE_AFTER_S * 1000)
        handles: dict[bytes, str] = {}
        answered: set[bytes] = set()
        async with MessagingClient(server.grpc_address) as client:
            for number in range(RECALLED):
                message = delayed_message("Recalled", b"%d" % number, due_ms)
                (entry,) = (await client.send_messages(message)).entries
                assert entry.status.code == Code.OK
                handles[message.body] = entry.recall_handle

            asked = list(handles)[: RECALLED * 3 // 4]

            async def recall(body: bytes) -> None:
                if (await client.recall("Recalled", handles[body])).status.code == Code.OK:
                    answered.add(body)

            recalls = [asyncio.create_task(recall(body)) for body in asked]
            while len(answered) < RECALLED // 3:
                await asyncio.sleep(0.001)
            server.kill()
            await asyncio.gather(*recalls, return_exceptions=True)
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            assert _now_ms() < due_ms, "the machine is too slow for this test"
            for body in list(answered)[:5]:
                assert (await client.recall("Recalled", handles[body])).status.code == Code.OK, "asked again"
            messages = await client.receive_all(
                "recalled", "Recalled", RECALLED, patience_s=(due_ms - _now_ms()) / 1000 + 2
            )
            assert _now_ms() >= due_ms
            got = [message.body for message in messages]
            assert len(got) == len(set(got)), "fired twice (T2)"
            assert not answered & set(got), "recalled with OK and delivered (T4)"
            assert handles.keys() - set(asked) <= set(got), "lost (T2)"
            too_late = await client.recall("Recalled", handles[got[0]])
            assert too_late.status.code == Code.PRECONDITION_FAILED


@pytest.mark.parametrize("end", ["sigterm", "kill"])
async def test_what_fell_due_while_the_server_was_down_comes_at_once(tmp_path: Path, end: str) -> None:
    with StandaloneProcess(tmp_path / "data", QUICK) as server:
        due_ms = _now_ms() + 1500
        async with MessagingClient(server.grpc_address) as client:
            messages = [delayed_message("Down", b"%d" % number, due_ms + number) for number in range(50)]
            answer = await client.send_messages(*messages)
            assert {entry.status.code for entry in answer.entries} == {Code.OK}
        assert _now_ms() < due_ms, "the machine is too slow for this test"
        server.kill() if end == "kill" else server.stop()
        await asyncio.sleep((due_ms + 1000 - _now_ms()) / 1000)
        server.start()
        ready_at = time.monotonic()
        async with MessagingClient(server.grpc_address) as client:
            got = await client.receive_all("down", "Down", 50)
            assert time.monotonic() - ready_at < AT_ONCE_S
            assert bodies(got) == bodies(messages)
