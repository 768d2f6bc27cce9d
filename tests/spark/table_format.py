"""A topic as a table of Delta or Iceberg, by a stream that is begun three times: each message must be there once.

`python -m tests.spark.table_format delta|iceberg MAVEN_PACKAGE` fetches the package with Spark's own means. It prints
how many messages the table has, and fails if these are not those that were sent.
"""

import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from popwheel_spark.session import spark_session
from tests.spark.topics import own_topics

_ICEBERG = "spark.sql.catalog.local"
SETTINGS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        _ICEBERG: "org.apache.iceberg.spark.SparkCatalog",
        f"{_ICEBERG}.type": "hadoop",
    },
}


def table(spark: SparkSession, kind: str, folder: Path) -> DataFrame:
    """The table."""
    return spark.read.format("delta").load(str(folder / "table")) if kind == "delta" else spark.table("local.db.orders")


def run(spark: SparkSession, kind: str, messages: DataFrame, folder: Path) -> None:
    """Write what a stream has now."""
    writer = messages.writeStream.format(kind).option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    if kind == "delta":
        query = writer.start(str(folder / "table"))
    else:
        if not spark.catalog.tableExists("local.db.orders"):
            spark.sql("CREATE NAMESPACE IF NOT EXISTS local.db")
            spark.createDataFrame([], messages.schema).writeTo("local.db.orders").using("iceberg").create()
        query = writer.toTable("local.db.orders")
    query.awaitTermination()


def main(kind: str, package: str) -> None:
    """Try one combination."""
    with tempfile.TemporaryDirectory(prefix="popwheel-table-") as name:
        folder = Path(name)
        warehouse = {f"{_ICEBERG}.warehouse": str(folder / "iceberg")} if kind == "iceberg" else {}
        spark = spark_session("table format", SETTINGS[kind] | warehouse | {"spark.jars.packages": package})
        with own_topics(folder / "server", "broker.flush=async") as topics:
            sent = topics.fill(topics.make("orders"), 1_000)
            options = topics.options | {"topic": "orders", "startingOffsets": "earliest"}
            for more in (0, 500, 0):
                sent |= topics.fill("orders", more)
                run(spark, kind, spark.readStream.format("popwheel").options(**options).load(), folder)
            found = [row["messageId"] for row in table(spark, kind, folder).select("messageId").collect()]
        spark.stop()
    assert sorted(found) == sorted(sent), f"{len(found)} rows, {len(set(found) & sent)} of {len(sent)} messages"
    print(f"{kind} ({package}) with PySpark {pyspark.__version__}: {len(found)} messages, each once")


if __name__ == "__main__":
    main(*sys.argv[1:])
