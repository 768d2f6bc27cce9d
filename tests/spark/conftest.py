"""One Spark for all tests, a server that tests of a module share, and ways to fill its topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.standalone import StandaloneProcess
from tests.spark.local_spark import local_spark
from tests.spark.topics import Topics


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    with local_spark(tmp_path_factory.mktemp("spark"), "local[2, 4]") as session:
        yield session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """A server for the tests of a module."""
    with StandaloneProcess(tmp_path_factory.mktemp("server") / "data", ("--set", "broker.flush=async")) as process:
        yield process


@pytest.fixture
def topics(server: StandaloneProcess) -> Iterator[Topics]:
    """Makes and fills topics of the server."""
    with Topics(server.grpc_address, server.http_url) as made:
        yield made


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where a stream keeps what it has done."""
    return str(tmp_path / "checkpoint")
