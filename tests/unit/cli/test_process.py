"""A broker's process saves when it is asked to stop."""

import asyncio
import contextlib
from pathlib import Path

from services.broker.options import BrokerOptions
from services.cli.options import ClusterOptions
from services.cli.process import BrokerProcess


async def test_who_waits_for_a_failure_and_is_cancelled_does_not_keep_the_broker_from_saving(tmp_path: Path) -> None:
    options = BrokerOptions(grpc_port=0, http_port=0, controller_address="127.0.0.1:1")
    process = BrokerProcess(ClusterOptions(broker=options), tmp_path)
    await process.start()
    failed = asyncio.ensure_future(process.failed())
    await asyncio.sleep(0)
    failed.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await failed
    saved = tmp_path / "broker" / "checkpoint"
    saved.unlink()
    await process.stop()
    assert saved.exists()
