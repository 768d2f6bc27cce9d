"""The processes of a cluster: how they end, and what they are called by others."""

import asyncio
import contextlib
from itertools import pairwise
from pathlib import Path

import pytest

from popwheel_broker.options import BrokerOptions
from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.service_process import BrokerProcess, ControllerProcess, _admin_address
from popwheel_common.settings.tls_options import ClusterTlsOptions
from popwheel_controller.options import ControllerOptions
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.ports import free_ports


async def test_who_waits_for_a_failure_and_is_cancelled_does_not_keep_the_broker_from_saving(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    options = ClusterOptions(
        broker=BrokerOptions(grpc_port=0, http_port=0, controller=f"127.0.0.1:{port}"),
        controller=ControllerOptions(grpc_port=port, http_port=0),
    )
    controller = ControllerProcess(options, tmp_path / "controller")
    await controller.start()
    process = BrokerProcess(options, tmp_path)
    await process.start()
    assert process._app is not None
    async with asyncio.timeout(10):
        await process._app.roles.until_leads()
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


@pytest.mark.parametrize(
    ("host", "address", "named"),
    [
        ("0.0.0.0", "c-0.c.ns.svc:8083", "c-0.c.ns.svc:8080"),
        ("::", "[fd00::1]:8083", "[fd00::1]:8080"),
        ("127.0.0.1", "c-0.c.ns.svc:8083", "127.0.0.1:8080"),
        ("::1", "host:8083", "[::1]:8080"),
    ],
)
def test_other_controllers_name_an_admin_address_that_can_be_reached(host: str, address: str, named: str) -> None:
    """They named 0.0.0.0:8080, and `popwheel admin` was sent to nowhere."""
    assert _admin_address(host, 8080, address) == named


NONE = "no certificate"
STEPS = (NONE, "accept", "prefer", "demand")
"""How a cluster that runs comes to TLS; processes of two steps that follow each other are there at one time."""


@pytest.mark.parametrize(
    ("controller_step", "broker_step"),
    [pair for one, next_one in pairwise(STEPS) for pair in ((one, next_one), (next_one, one))],
)
async def test_a_cluster_comes_to_tls_step_by_step(tmp_path: Path, controller_step: str, broker_step: str) -> None:
    volume = CertificateVolume(tmp_path / "tls")
    authority = new_authority()
    volume.hold(certificate_by(authority), authority)

    def tls(step: str) -> ClusterTlsOptions:
        return ClusterTlsOptions.model_validate(
            {}
            if step == NONE
            else {
                "certificate_file": str(volume.certificate),
                "key_file": str(volume.key),
                "authority_file": str(volume.authority),
                "mode": step,
            }
        )

    (port,) = free_ports(1)
    options = ClusterOptions(controller=ControllerOptions(grpc_port=port, http_port=0), tls=tls(controller_step))
    controller = ControllerProcess(options, tmp_path / "controller")
    await controller.start()
    options = ClusterOptions(
        broker=BrokerOptions(grpc_port=0, http_port=0, controller=f"127.0.0.1:{port}"), tls=tls(broker_step)
    )
    broker = BrokerProcess(options, tmp_path)
    await broker.start()
    assert broker._app is not None
    async with asyncio.timeout(10):
        await broker._app.roles.until_leads()
    await broker.stop()
    await controller.stop()
