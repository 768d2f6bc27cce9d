"""What Spark tells of where rows come from and go: as docs/use/spark-lineage.md says, and by its example."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.harness.standalone import ROOT
from tests.spark.round_trip import stream_to_parquet
from tests.spark.topics import Topics


def relation(frame: DataFrame) -> Any:
    """What stands at the bottom of a plan."""
    plan = frame._jdf.queryExecution().analyzed()
    while plan.children().size():
        plan = plan.children().apply(0)
    return plan


def test_what_names_a_topic_in_a_plan(spark: SparkSession, topics: Topics) -> None:
    topics.make("lineage")
    read = relation(spark.read.format("popwheel").options(**topics.options, topic="lineage").load())
    assert (read.table().name(), read.identifier().isEmpty(), read.catalog().isEmpty()) == ("popwheel", True, True)
    assert read.options().get("topic") == "lineage"
    spark.sql(f"CREATE TABLE lines USING popwheel OPTIONS (endpoints '{topics.address}', topic 'lineage')")
    try:
        named = relation(spark.table("lines"))
        assert str(named.identifier().get()) == "default.lines"
        assert named.catalog().get().name() == "spark_catalog"
    finally:
        spark.sql("DROP TABLE lines")


def test_a_listener_is_notified_the_topics_of_a_stream(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "use" / "spark-lineage.md").read_text()
    (code,) = re.findall(r"<!-- run: listener -->\n```python\n(.+?)```", page, re.DOTALL)
    found: dict[str, Any] = {"spark": spark}
    exec(code.replace("spark.streams.addListener(Lineage())", "listener = Lineage()"), found)
    spark.streams.addListener(found["listener"])
    try:
        topics.fill(topics.make("told"), 10)
        options = topics.options | {"topic": "told", "startingOffsets": "earliest"}
        stream_to_parquet(spark.readStream.format("popwheel").options(**options).load(), tmp_path)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(found["listener"])
    assert f"None reads told into FileSink[file:{tmp_path}/files]" in capsys.readouterr().out
