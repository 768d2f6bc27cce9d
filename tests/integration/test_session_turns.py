"""A short run of large requests of each kind with a fixed seed; none keeps the loop for longer than a turn may take."""

from pathlib import Path

from tests.fuzz.session_turns import run
from tests.harness.loop_turns import TURN_S_MAX

SEED = 35_500_101
"""An odd one: users and rules are checked, too."""

LIMIT_S = 2 * TURN_S_MAX
"""Twelve requests of a mebibyte in one turn are near the bound, and what is measured swings by half on a busy machine.
`python -m tests.fuzz.session_turns` goes by the bound itself.
"""


async def test_no_large_request_keeps_the_loop_from_others(tmp_path: Path) -> None:
    seen = await run(SEED, tmp_path / "data", rounds=1, turn_s_max=LIMIT_S)
    assert {"Telemetry filters", "AckMessage parts", "ReceiveMessage", "SyncLiteSubscription"} <= seen.longest_s.keys()
