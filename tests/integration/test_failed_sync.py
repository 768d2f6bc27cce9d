"""A sync that fails is never followed by an OK: the process says why and ends (S1)."""

from pathlib import Path

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess


async def test_a_failed_sync_ends_the_process(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    server = StandaloneProcess(
        tmp_path / "data", module="tests.harness.failing_sync", environment={"FAIL_SYNCS_WHILE": str(broken)}
    )
    with server:
        async with MessagingClient(server.grpc_address) as client:
            assert (await client.send("Kept", b"before")).status.code == Code.OK
            broken.touch()
            with pytest.raises(AioRpcError) as reported:  # the proxy asks again until it ends with the broker
                await client.send("Kept", b"in doubt")
            assert reported.value.code() == StatusCode.UNAVAILABLE
        assert server.wait() == 1
        assert "Input/output error" in server.log_text()
        broken.unlink()
        server.start()
        async with MessagingClient(server.grpc_address) as client:
            (first, *_) = await client.receive_all("kept", "Kept", 1)
            assert first.body in (b"before", b"in doubt")
