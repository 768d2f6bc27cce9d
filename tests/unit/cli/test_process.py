"""A broker's process saves when it is asked to stop."""

import asyncio
import contextlib
from pathlib import Path

from services.broker.options import BrokerOptions
from services.cli.options import ClusterOptions
from services.cli.process import BrokerProcess, ControllerProcess
from services.controller.options import ControllerOptions
from tests.harness.ports import free_ports


async def test_who_waits_for_a_failure_and_is_cancelled_does_not_keep_the_broker_from_saving(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ClusterOptions(
        broker=BrokerOptions(grpc_port=0, http_port=0, controller_address=f"127.0.0.1:{port}"),
        controller=ControllerOptions(grpc_port=port, http_port=0),
    )
    controller = ControllerProcess(options, tmp_path / "controller")
    await controller.start()
    process = BrokerProcess(options, tmp_path)
    await process.start()
    assert process._app is not None
    async with asyncio.timeout(10):
        await process._app.until_leads()
    failed = asyncio.ensure_future(process.failed())
    await asyncio.sleep(0)
    failed.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await failed
    saved = tmp_path / "broker" / "checkpoint"
    saved.unlink()
    await process.stop()
    await controller.stop()
    assert saved.exists()
