"""A server that tests of one module share, and clients of it."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess

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
