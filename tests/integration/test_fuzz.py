"""A short run of the fuzzer with a fixed seed; `make fuzz` runs it for longer, with a new seed each time."""

from pathlib import Path

import pytest

from tests.fuzz.campaign import run
from tests.harness.proxy_calls import CALLS

SEED = 20_260_711
ROUNDS = 3


@pytest.mark.parametrize("seed", [SEED, SEED + 1], ids=["guarded", "open"])
async def test_garbage_is_answered_by_name_and_changes_nothing(seed: int, tmp_path: Path) -> None:
    """Of the two seeds one has proxies check signatures and rights."""
    report = await run(seed, tmp_path / "data", rounds=ROUNDS)
    assert report.rounds == ROUNDS
    assert report.asked > 0, "a server that was started again was asked for what had been acknowledged"
    methods = {name.split(" ")[0] for name in report.statuses}
    assert methods == set(CALLS), "each call has been answered"
    asked = {name.rpartition(" ")[0] for name in report.answered}
    assert len(asked) > 25, "most calls of the admin API have been answered"
    codes = {name.split(" ")[1] for name in report.statuses}
    assert {"OK", "INVALID_ARGUMENT", "ILLEGAL_TOPIC", "INVALID_RECEIPT_HANDLE", "CLIENT_ID_REQUIRED"} <= codes
    assert ({"UNAUTHORIZED", "FORBIDDEN"} <= codes) == (seed == SEED)
