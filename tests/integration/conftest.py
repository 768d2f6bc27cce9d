"""A server that tests of one module share, and clients of it; and servers of a contract for tests of the transport."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from popwheel_rpc.limits import Limits
from popwheel_rpc.server.server import Server
from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess
from tests.harness.transport import Recorder, Serve
from tests.unit.rpc.contract_service import ContractService

QUICK = ("--set", "proxy.receive.invisible_ms_min=500")
"""So that a test need not wait ten seconds for a message to come again."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("shared") / "data", QUICK) as process:
        yield process


@pytest_asyncio.fixture
async def client(server: StandaloneProcess) -> AsyncIterator[MessagingClient]:
    async with MessagingClient(server.grpc_address) as connected:
        yield connected


@pytest_asyncio.fixture
async def contract() -> ContractService:
    return ContractService()


@pytest_asyncio.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest_asyncio.fixture
async def serve(contract: ContractService, recorder: Recorder) -> AsyncIterator[Serve]:
    """Start servers of the contract's service; they are stopped after the test."""
    servers = []

    async def start(limits: Limits | None = None) -> Server:
        server = Server(contract.service, limits, observer=recorder)
        servers.append(server)
        await server.start("127.0.0.1", 0)
        return server

    yield start
    for server in servers:
        await server.stop(0)
