"""A cluster whose services speak TLS to one another serves the official client, while certificates change."""

import asyncio
import signal
from pathlib import Path

import pytest

from popwheel_common.pb.popwheel.v1.broker_pb2 import GetOffsetRequest
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.methods import GET_OFFSET
from popwheel_rpc.status import RpcError
from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.client import MessagingClient
from tests.harness.failover import ReplicatedCluster
from tests.harness.load import receive_and_ack_all
from tests.integration.conftest import QUICK
from tests.integration.test_cluster import OfficialClient, go_on

INSIDE = ["controller-0", "controller-1", "broker-0-0", "broker-0-1"]


async def test_replication_controllers_and_proxy_under_tls_serve_while_certificates_change(tmp_path: Path) -> None:
    first, second = new_authority(), new_authority()
    volume = CertificateVolume(tmp_path / "tls")
    volume.hold(certificate_by(first), first)
    stranger = CertificateVolume(tmp_path / "stranger")
    stranger.hold(certificate_by(first), first, second)
    cluster = ReplicatedCluster(tmp_path, *QUICK, *volume.settings, controllers=2)
    with cluster.command as command:
        group = await cluster.wait_until_healthy()
        worker = OfficialClient(tmp_path, cluster.address, "worker")
        try:
            await go_on(worker)
            volume.hold(certificate_by(first), first, second)
            await go_on(worker)
            volume.hold(certificate_by(second), first, second)
            await go_on(worker)
            volume.hold(certificate_by(second), second)
            # Now all have to connect anew to the group's next master, and the one that comes back to all of them.
            cluster.signal(cluster.replica(group["master"]), signal.SIGKILL)
            await cluster.wait_for_epoch_after(group["epoch"])
            await cluster.wait_until_healthy()
            await go_on(worker)
        finally:
            worker.end()
            worker.wait()
        # What nobody answered when the master was killed may have been carried out; all else comes again.
        if missing := worker.bodies("sent") - worker.bodies("acked") - worker.bodies("ack failed"):
            async with MessagingClient(cluster.address) as client:
                missing -= set(await receive_and_ack_all(client, missing))
        assert missing == set(), "sent with OK and lost"

        rows = command.rows()
        for name in INSIDE:
            for context, why in ((None, "was closed|was lost"), (stranger.files().client, "UNKNOWN_CA")):
                channel = connect(rows[name][0], tls=context)
                with pytest.raises(RpcError, match=f"no connection to .*({why})"):
                    await channel.call(GET_OFFSET, GetOffsetRequest(), timeout_s=5)
                await channel.close()
        for name in [*INSIDE, "proxy-0"]:
            status, page = await asyncio.to_thread(command.page, f"{rows[name][1]}/metrics")
            assert status == 200
            assert 'popwheel_certificate_expires_seconds{use="services"} 7' in page  # million
            assert 'popwheel_certificate_refused{use="services"} 0.0' in page
