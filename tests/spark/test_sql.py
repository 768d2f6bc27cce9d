"""What SQL can say: views that read and take rows, and tables that Spark can't use."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.topics import Topics


@pytest.fixture(scope="module")
def source(topics: Topics) -> str:
    """How SQL names a topic."""
    name = topics.make("sql-orders")
    return f"USING popwheel OPTIONS (endpoints '{topics.address}', topic '{name}')"


def test_views_read_and_take_rows(spark: SparkSession, topics: Topics, source: str) -> None:
    topics.fill("sql-orders", 20)
    spark.sql(f"CREATE TEMPORARY VIEW into_orders (body BINARY, tag STRING) {source}")
    spark.sql("INSERT INTO into_orders SELECT CAST('order ' || id AS BINARY), 'new' FROM range(10)")
    spark.sql(f"CREATE TEMPORARY VIEW orders {source}")
    assert spark.sql("SELECT count(*), count(tag) FROM orders").first() == (30, 10)
    spark.sql("CREATE TABLE kept USING parquet AS SELECT messageId, body FROM orders")
    assert spark.sql("SELECT count(DISTINCT messageId) FROM kept").first() == (30,)
    spark.sql("DROP TABLE kept")


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE refused {}",),
        ("CREATE TABLE refused {} AS SELECT 'a' AS body",),
        ("CREATE TABLE refused (queueOffset BIGINT) {}", "SELECT * FROM refused"),
        ("CREATE TABLE refused (body STRING) {}", "INSERT INTO refused VALUES ('a')"),
    ],
)
def test_a_table_is_refused_by_a_sentence(spark: SparkSession, source: str, statements: tuple[str, ...]) -> None:
    *before, last = statements
    for statement in before:
        spark.sql(statement.format(source))
    with pytest.raises(PySparkException, match="Say CREATE TEMPORARY VIEW NAME USING popwheel"):
        spark.sql(last.format(source)).collect()
    spark.sql("DROP TABLE IF EXISTS refused")
