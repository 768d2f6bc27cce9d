"""Bodies as columns; and the examples of docs/use/spark-decode.md, as they stand there."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pyspark
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_spark.decode import confluent_id, decode_avro, decode_confluent_avro, decode_json, decode_protobuf
from popwheel_spark.errors import OptionError
from popwheel_spark.schema_registry import RegisteredSchema
from tests.harness.schema_registry import registry_pages, running_registry
from tests.harness.standalone import ROOT
from tests.spark.topics import Topics

_VERSIONS = {"4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}
"""Of Spark's packages, by that of PySpark: the newest that was to be had."""
ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "number", "type": ["null", "long"]}]}'
LATER = json.dumps(
    {
        **json.loads(ORDER),
        "fields": [
            {"name": "number", "type": ["null", "long"]},
            {"name": "customer", "type": "string", "default": "nobody"},
        ],
    }
)


def package(spark: SparkSession, name: str) -> None:
    """Have one of Spark's packages on the session's path, or skip."""
    version = _VERSIONS.get(".".join(pyspark.__version__.split(".")[:2]), pyspark.__version__)
    try:
        spark.sql(f"ADD JAR ivy://org.apache.spark:{name}_2.13:{version}?transitive=false")
    except (PySparkException, Py4JError):
        pytest.skip(f"{name} {version} is not to be had here: neither in Spark's cache of packages, nor from Maven")


def bodies(spark: SparkSession, *given: bytes | None) -> DataFrame:
    rows = [("t", "b", 0, offset, f"id-{offset}", body) for offset, body in enumerate(given)]
    place = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, messageId STRING"
    return spark.createDataFrame(rows, f"{place}, body BINARY").coalesce(1).orderBy("queueOffset")


def values(frame: DataFrame, *names: str) -> list[Any]:
    """Of each row its value, or values, as Python has it."""
    rows = frame.select(*(names or ("value",))).collect()
    found = [[each.asDict() if hasattr(each, "asDict") else each for each in row] for row in rows]
    return [row[0] if len(row) == 1 else tuple(row) for row in found]


BROKEN = "it is no JSON object of this schema"
JSON = (b'{"n": 1, "more": 2}', b'{"n": "one"}', b"no", b"", b"[1]", None, b"{}", b'{"n": null}')


def test_json(spark: SparkSession) -> None:
    frame = bodies(spark, *JSON)
    one, none = {"n": 1}, {"n": None}
    good = [one, None, none, none]
    expected = [(one, None), *[(None, BROKEN)] * 4, (None, None), (none, None), (none, None)]
    assert values(decode_json(frame, "n INT", bad="column"), "value", "badValue") == expected
    assert values(decode_json(frame, "n INT", bad="null")) == [value for value, _ in expected]
    assert values(decode_json(frame, "n INT", bad="skip", into="found"), "found") == good
    assert values(decode_json(frame, "n INT, m STRING", bad="skip"), "value.n") == [1, None, None, None]
    assert values(decode_json(frame.where("queueOffset IN (0, 5)"), "n INT")) == [one, None]
    where = "topic t, brokerName b, queueId 0, queueOffset 1, messageId id-1"
    with pytest.raises(PySparkException, match=f"a body cannot be decoded: {BROKEN}, {where}"):
        decode_json(frame, "n INT").collect()


@pytest.mark.parametrize(
    ("decode", "sentence"),
    [
        (lambda frame: decode_json(frame, "n INT", bad="drop"), "'drop' is none of fail, null, skip, column"),
        (lambda frame: decode_json(frame, "INT"), "'INT' is no list of fields; write NAME TYPE, ..."),
        (lambda frame: decode_avro(frame, "{"), "it is not JSON"),
        (lambda frame: decode_avro(frame, '"long"'), "it must be a record"),
        (lambda frame: decode_confluent_avro(frame, []), "there is no version of the schema"),
        (
            lambda frame: decode_confluent_avro(frame, [RegisteredSchema(1, "JSON", "{}")]),
            "the schema 1 is JSON, not AVRO",
        ),
        (lambda frame: decode_protobuf(frame, "a.B", b"", bad="skip"), "of Protobuf it is fail or null, not 'skip'"),
    ],
)
def test_what_cannot_be_is_reported(spark: SparkSession, decode: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        decode(bodies(spark, b""))


def avro(spark: SparkSession, schema: str, *columns: Column) -> list[bytes]:
    """Records of two rows, as Spark writes them."""
    from pyspark.sql.avro.functions import to_avro

    frame = spark.range(2).coalesce(1).select(to_avro(sql.struct(*columns), schema).alias("body"))
    return [bytes(row["body"]) for row in frame.collect()]


def numbers(spark: SparkSession) -> list[bytes]:
    """Two records of `ORDER`: null, and 1."""
    return avro(spark, ORDER, sql.expr("if(id = 0, null, id)").alias("number"))


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def test_avro(spark: SparkSession) -> None:
    package(spark, "spark-avro")
    frame = bodies(spark, *numbers(spark), b"\xff\xff", None)
    assert values(decode_avro(frame, ORDER, bad="column"), "value", "badValue") == [
        ({"number": None}, None),
        ({"number": 1}, None),
        (None, "it is no Avro of this schema"),
        (None, None),
    ]
    later = decode_avro(frame, ORDER, reader=LATER, bad="skip")
    assert values(later, "value.customer") == ["nobody", "nobody", None]
    with pytest.raises(PySparkException, match=r"it is no Avro of this schema, topic t, .*queueOffset 2"):
        decode_avro(frame, ORDER).collect()


def test_avro_of_a_registry(spark: SparkSession) -> None:
    package(spark, "spark-avro")
    _, old = numbers(spark)
    _, new = avro(spark, LATER, sql.col("id").alias("number"), sql.lit("Ann").alias("customer"))
    frame = bodies(spark, framed(3, old), framed(7, new), framed(9, new), b"\0\0", b"{}", framed(3, b"\xff"), None)
    versions = [RegisteredSchema(3, "AVRO", ORDER), RegisteredSchema(7, "AVRO", LATER)]
    no_id = "it does not begin with a schema's id (0, and 4 bytes)"
    assert values(decode_confluent_avro(frame, versions, bad="column"), "value", "badValue") == [
        ({"number": 1, "customer": "nobody"}, None),
        ({"number": 1, "customer": "Ann"}, None),
        (None, "its schema has the id 9, the registry's versions are 3, 7: read them again"),
        (None, no_id),
        (None, no_id),
        (None, "it is no Avro of the schema 3"),
        (None, None),
    ]
    assert values(frame.select(confluent_id().alias("id")), "id") == [3, 7, 9, None, None, 3, None]
    assert values(decode_confluent_avro(bodies(spark, framed(2**32 - 1, b"")), versions, bad="null")) == [None]


def examples() -> dict[str, str]:
    """The code of the page that is to be run, by its name."""
    page = (ROOT / "docs" / "use" / "spark-decode.md").read_text()
    assert page.count("```python") == page.count("<!-- run: ")
    return dict(re.findall(r"<!-- run: ([\w ]+) -->\n```python\n(.+?)```", page, re.DOTALL))


def run_examples(
    spark: SparkSession, topics: Topics, topic: str, given: Sequence[bytes], *names: str, **known: object
) -> dict[str, Any]:
    """Send bodies, and run examples one after another on what Spark reads of them; the names that they know then."""
    if given:

        def dress(message: Message, number: int) -> None:
            message.body = given[number]

        topics.fill(topics.make(topic), len(given), dress)
    messages = spark.read.format("popwheel").options(**topics.options, topic=topic).load()
    found: dict[str, Any] = {"spark": spark, "messages": messages, "cluster": topics.options, **known}
    for name in names:
        exec(examples()[name], found)
    return found


def test_examples_of_json(spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    given = (b'{"number": 17, "customer": "Ann"}', b"no order")
    found = run_examples(spark, topics, "orders", given, "json", "stream")
    printed = capsys.readouterr().out
    assert "Ann" in printed and "no order" in printed and "it is no JSON" in printed
    query = found["by_customer"].writeStream.format("memory").queryName("decoded").trigger(availableNow=True).start()
    query.awaitTermination()
    assert values(spark.table("decoded"), "number", "customer") == [(17, "Ann")]
    packed = [framed(4, b'{"number": 23}')]
    run_examples(spark, topics, "packed", packed, "registry json")
    assert re.search(r"\| +4\| +23\|", capsys.readouterr().out)


def test_examples_of_avro(spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    package(spark, "spark-avro")
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}'
    plain = avro(spark, schema, (sql.col("id") + 40).alias("number"))
    run_examples(spark, topics, "avro", plain, "avro")
    assert "41" in capsys.readouterr().out
    with running_registry(registry_pages("orders-value", {1: schema, 2: LATER})) as (url, _):
        given = [framed(1, plain[1]), framed(9, plain[1])]
        run_examples(spark, topics, "registered", given, "registry", registry_url=url)
    printed = capsys.readouterr().out
    assert re.search(r"\| +41\| +nobody\| +NULL\|", printed) and "its schema has" in printed


def test_example_of_protobuf(spark: SparkSession, topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    package(spark, "spark-protobuf")
    files = FileDescriptorSet()
    file = files.file.add(name="orders.proto", package="shop", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="number", number=1)
    field.type, field.label = FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.LABEL_OPTIONAL
    known = {"descriptors": files.SerializeToString()}
    run_examples(spark, topics, "protobuf", [b"\x08\x2a"], "protobuf", **known)
    assert "42" in capsys.readouterr().out
