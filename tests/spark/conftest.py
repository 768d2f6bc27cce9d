"""One Spark for all tests, a server that tests of a module share, and ways to fill its topics."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.local_spark import local_spark
from tests.spark.topics import Topics, own_topics


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores of this machine."""
    with local_spark(tmp_path_factory.mktemp("spark"), "local[2, 4]") as session:
        yield session


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Makes and fills topics of a server that the tests of a module share."""
    with own_topics(tmp_path_factory.mktemp("server"), "broker.flush=async") as made:
        yield made
