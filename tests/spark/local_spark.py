"""Spark in this process, with its JVM, and no trace of it afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from popwheel_spark.session import NoJavaError, check_java, spark_session

_SETTINGS = {
    "spark.ui.enabled": "false",
    # Tests are short: what the JVM's slow compiler and its threads take, they do not give back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@contextmanager
def local_spark(folder: Path, master: str) -> Iterator[SparkSession]:
    """Start Spark, and end it. Tests that want it are skipped where there is no Java.

    Args:
        folder: for its tables.
        master: how many tasks it runs at once, and how often each: `local[2, 4]`.
    """
    try:
        check_java()
    except NoJavaError as error:
        pytest.skip(str(error))
    session = spark_session("tests", _SETTINGS | {"spark.master": master, "spark.sql.warehouse.dir": str(folder)})
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    yield session
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it
    gateway.proc.wait()
