"""The longest answers of the admin API take no long turn of the loop."""

import asyncio
from pathlib import Path

import pytest

from tests.harness.collector import collector_of_servers
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.controller.fake_audit_broker import FakeAuditBroker
from tests.unit.controller.test_audit import api

ROWS = 1_000
PATHS = {
    "/inflight?topic=orders&limit=1000": "messages",
    "/groups/workers/progress?limit=1000": "queues",
}


@pytest.mark.parametrize(("path", "name"), PATHS.items())
async def test_a_page_of_a_thousand_rows_takes_a_short_turn(tmp_path: Path, path: str, name: str) -> None:
    async with api(tmp_path, FakeAuditBroker("b1", ROWS)) as http:
        with collector_of_servers(), measured_turns() as turns:
            await asyncio.sleep(0)
            answer = await http.get(path)
            await asyncio.sleep(0)
        assert len(answer.json()[name]) >= ROWS
        assert turns.longest_s < TURN_S_MAX, f"{path}: {turns}"
