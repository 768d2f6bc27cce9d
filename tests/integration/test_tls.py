"""TLS and plain text on one port, with a certificate made at the start if none is given."""

import asyncio
import ssl

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess


async def certificate(server: StandaloneProcess) -> bytes:
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", server.grpc_port))
    return pem.encode()


async def test_tls_and_plain_text_meet_on_one_port(server: StandaloneProcess, client: MessagingClient) -> None:
    async with MessagingClient(server.grpc_address, certificate=await certificate(server)) as secret:
        assert (await client.send("Both", b"plain")).status.code == Code.OK
        assert (await secret.send("Both", b"secret")).status.code == Code.OK
        messages = await secret.receive_all("both", "Both", 2)
        assert bodies(messages) == [b"plain", b"secret"]
        assert (await client.ack("both", "Both", messages)).status.code == Code.OK


async def test_http_2_is_agreed_on_by_name(server: StandaloneProcess) -> None:
    context = ssl.create_default_context(cadata=(await certificate(server)).decode())
    context.check_hostname = False
    context.set_alpn_protocols(["http/1.1", "h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", server.grpc_port, ssl=context)
    agreed = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.transport.abort()
    assert agreed == "h2"
