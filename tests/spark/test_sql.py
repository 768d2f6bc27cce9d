"""What SQL can say: tables and views that read and take rows."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.topics import Topics


@pytest.fixture
def source(topics: Topics, request: pytest.FixtureRequest) -> str:
    """How SQL names a topic of a test's own."""
    name = topics.make(f"sql-{abs(hash(request.node.name)) % 10**9}")
    return f"USING popwheel OPTIONS (endpoints '{topics.address}', topic '{name}')"


def test_a_table_is_read_and_takes_rows(spark: SparkSession, topics: Topics, source: str) -> None:
    spark.sql(f"CREATE TABLE orders {source}")
    assert spark.sql("SELECT count(*) FROM orders").first() == (0,)
    spark.sql("INSERT INTO orders (body, tag) SELECT CAST('order ' || id AS BINARY), 'new' FROM range(10)")
    spark.sql("INSERT INTO orders (body) VALUES (CAST('one more' AS BINARY))")
    assert spark.sql("SELECT count(*), count(tag), count(DISTINCT messageId) FROM orders").first() == (11, 10, 11)
    spark.sql("CREATE TABLE kept USING parquet AS SELECT messageId, body FROM orders WHERE tag = 'new'")
    assert spark.sql("SELECT count(DISTINCT messageId) FROM kept").first() == (10,)
    with pytest.raises(PySparkException, match="leave it out of the INSERT"):
        spark.sql("INSERT INTO orders SELECT * FROM orders")
    for name in ("orders", "kept"):
        spark.sql(f"DROP TABLE {name}")


def test_a_table_is_read_as_a_stream(spark: SparkSession, topics: Topics, source: str) -> None:
    spark.sql(f"CREATE TABLE followed {source}")
    spark.sql("INSERT INTO followed (body) SELECT CAST('' || id AS BINARY) FROM range(5)")
    stream = (
        spark.readStream.option("startingOffsets", "earliest")
        .table("followed")
        .writeStream.format("memory")
        .queryName("seen")
    )
    stream.trigger(availableNow=True).start().awaitTermination()
    assert spark.sql("SELECT count(*) FROM seen").first() == (5,)
    spark.sql("DROP TABLE followed")


def test_views_read_and_take_rows(spark: SparkSession, topics: Topics, source: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW into_orders (body BINARY, tag STRING) {source}")
    spark.sql("INSERT INTO into_orders SELECT CAST('order ' || id AS BINARY), 'new' FROM range(10)")
    spark.sql(f"CREATE TEMPORARY VIEW view_of_orders {source}")
    assert spark.sql("SELECT count(*), count(tag) FROM view_of_orders").first() == (10, 10)


def test_a_table_with_columns_of_its_own_takes_its_options_from_each_statement(
    spark: SparkSession, topics: Topics, source: str
) -> None:
    spark.sql(f"CREATE TABLE narrow (body BINARY, tag STRING) {source}")
    options = source.partition("OPTIONS")[2]
    spark.sql(f"INSERT INTO narrow WITH {options} VALUES (CAST('a' AS BINARY), 't')")
    assert spark.sql(f"SELECT tag FROM narrow WITH {options}").first() == ("t",)
    spark.sql("DROP TABLE narrow")


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TABLE refused {} AS SELECT 'a' AS body",),
        ("CREATE TABLE refused (queueOffset BIGINT) {}", "SELECT * FROM refused"),
        ("CREATE TABLE refused (body STRING) {}", "INSERT INTO refused VALUES ('a')"),
    ],
)
def test_a_table_that_has_lost_its_options_is_refused_by_a_sentence(
    spark: SparkSession, source: str, statements: tuple[str, ...]
) -> None:
    *before, last = statements
    for statement in before:
        spark.sql(statement.format(source))
    with pytest.raises(PySparkException, match="Of a SQL table: say CREATE TABLE NAME"):
        spark.sql(last.format(source)).collect()
    spark.sql("DROP TABLE IF EXISTS refused")
