"""One Spark for all tests, a server that tests of a module share, and ways to fill its topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from popwheel_spark.session import NoJavaError, check_java, spark_session
from tests.harness.standalone import StandaloneProcess
from tests.spark.topics import Topics

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    try:
        check_java()
    except NoJavaError as error:
        pytest.skip(str(error))
    folder = str(tmp_path_factory.mktemp("spark"))
    session = spark_session("tests", SETTINGS | {"spark.master": "local[2, 4]", "spark.sql.warehouse.dir": folder})
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it
    gateway.proc.wait()


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
