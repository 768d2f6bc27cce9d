"""Bodies as columns: JSON, Avro and Protobuf by Spark's own functions, and Avro with a schema registry.

docs/use/spark-decode.md has examples. Avro and Protobuf need Spark's packages `spark-avro` and `spark-protobuf`.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from popwheel_spark.errors import OptionError
from popwheel_spark.schema_registry import RegisteredSchema

BAD_VALUE: Final = "badValue"
"""Column with the reason why a body cannot be decoded, with `bad="column"`."""
_OK: Final = "popwheel_ok"
_BROKEN: Final = "popwheel_broken"
_PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset", "messageId")
_MAGIC: Final = "00"
_HEADER_BYTES: Final = 5


class Bad(StrEnum):
    """Treatment of a body that cannot be decoded; as the option `badRecords`, and `null`."""

    FAIL = "fail"
    NULL = "null"
    SKIP = "skip"
    COLUMN = "column"


def decode_json(
    frame: DataFrame, schema: str | StructType, *, body: str = "body", into: str = "value", bad: str = Bad.FAIL
) -> DataFrame:
    """Decode JSON bodies to a column of structs.

    Args:
        frame: a table or stream of messages.
        schema: of the objects, as DDL or types. Fields that a body lacks are null; others are left out.
        body: the column that is decoded.
        into: the column that is added.
        bad: what is done about a body that is no JSON, or has a value of another type: `fail`, `null`, `skip` or
            `column`.

    Raises:
        OptionError: the schema has no fields, or `bad` is none of these.
    """
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType):
        raise OptionError("schema", f"{schema!r} is no list of fields; write NAME TYPE, ...")
    wanted = StructType([*fields.fields, StructField(_BROKEN, StringType())])
    parsed = sql.from_json(
        sql.col(body).cast("string"), wanted, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    )
    is_good = parsed.isNotNull() & parsed[_BROKEN].isNull()
    reason = sql.when(sql.col(body).isNotNull() & ~is_good, "it is no JSON object of this schema")
    return _decoded(frame, sql.when(is_good, parsed.dropFields(_BROKEN)), reason, into, bad)


def decode_avro(
    frame: DataFrame,
    schema: str,
    *,
    reader: str | None = None,
    body: str = "body",
    into: str = "value",
    bad: str = Bad.FAIL,
) -> DataFrame:
    """Decode Avro bodies without a header to a column of structs.

    Args:
        frame: a table or stream of messages.
        schema: with which they were written, as JSON.
        reader: as which they are read, as JSON; None: as they were written.
        body, into, bad: as of `decode_json`.

    Raises:
        OptionError: a schema is none of a record, or `bad` is impossible.
    """
    found = _from_avro(sql.col(body), schema, reader or schema)
    reason = sql.when(sql.col(body).isNotNull() & found[_OK].isNull(), "it is no Avro of this schema")
    return _decoded(frame, sql.when(found[_OK], found.dropFields(_OK)), reason, into, bad)


def decode_confluent_avro(
    frame: DataFrame,
    versions: Sequence[RegisteredSchema],
    *,
    body: str = "body",
    into: str = "value",
    bad: str = Bad.FAIL,
) -> DataFrame:
    """Decode Avro bodies in Confluent's wire format to a column of structs, of the type of the last version.

    Args:
        frame: a table or stream of messages.
        versions: of the schema, the newest last: `SchemaRegistry.versions`. Bodies of any of them are read as the last.
        body, into, bad: as of `decode_json`. A body whose id is none of theirs is bad, too.

    Raises:
        OptionError: there is no version, one is no record of Avro, or `bad` is impossible.
    """
    if not versions:
        raise OptionError("versions", "there is no version of the schema; is it the right subject?")
    for version in versions:
        if version.kind != "AVRO":
            raise OptionError("versions", f"the schema {version.id} is {version.kind}, not AVRO; see confluent_payload")
    schema_id, payload = confluent_id(body), confluent_payload(body)
    found = {each.id: _from_avro(payload, each.text, versions[-1].text) for each in versions}
    ids = ", ".join(map(str, sorted(found)))
    # A chain of conditions, of which Spark evaluates one branch for each row.
    value, reason = (
        sql.lit(None),
        sql.concat(
            sql.lit("its schema has the id "),
            schema_id,
            sql.lit(f", the registry's versions are {ids}: read them again"),
        ),
    )
    for number, parsed in found.items():
        is_it = schema_id == number
        value = sql.when(is_it, sql.when(parsed[_OK], parsed.dropFields(_OK))).otherwise(value)
        broken = sql.when(parsed[_OK].isNull(), f"it is no Avro of the schema {number}")
        reason = sql.when(is_it, broken).otherwise(reason)
    reason = sql.when(schema_id.isNull(), "it does not begin with a schema's id (0, and 4 bytes)").otherwise(reason)
    return _decoded(frame, value, sql.when(sql.col(body).isNotNull(), reason), into, bad)


def confluent_id(body: str = "body") -> Column:
    """Return the schema id of a body in Confluent's wire format; null if it is none.

    Args:
        body: the column.
    """
    head = sql.hex(sql.substring(sql.col(body), 1, _HEADER_BYTES))
    is_one = (sql.length(head) == 2 * _HEADER_BYTES) & head.startswith(_MAGIC)
    return sql.when(is_one, sql.conv(sql.substring(head, 3, 8), 16, 10).cast("long"))


def confluent_payload(body: str = "body") -> Column:
    """Return the payload behind the id: JSON or Avro as it is; for Protobuf with the message index in front.

    Args:
        body: the column.
    """
    return sql.expr(f"substring(`{body}`, {_HEADER_BYTES + 1})")


def decode_protobuf(
    frame: DataFrame, message: str, descriptors: bytes, *, body: str = "body", into: str = "value", bad: str = Bad.FAIL
) -> DataFrame:
    """Decode Protobuf bodies to a column of structs.

    Args:
        frame: a table or stream of messages.
        message: the whole name of their type.
        descriptors: a `FileDescriptorSet` that has it: `protoc --include_imports --descriptor_set_out=FILE`.
        body, into: as of `decode_json`.
        bad: `fail`, by Spark's own error, or `null`: all fields are null. Spark reports no more.

    Raises:
        OptionError: `bad` is neither.
    """
    from pyspark.sql.protobuf.functions import from_protobuf

    wanted = _bad(bad)
    if wanted not in (Bad.FAIL, Bad.NULL):
        raise OptionError("bad", f"of Protobuf it is fail or null, not {bad!r}: Spark does not mark bad bodies")
    options = {"mode": "FAILFAST" if wanted is Bad.FAIL else "PERMISSIVE"}
    return frame.withColumn(into, from_protobuf(body, message, options=options, binaryDescriptorSet=descriptors))


def _from_avro(payload: Column, schema: str, reader: str) -> Column:
    """Return the record with one more field, which is null if decoding failed: then Spark makes all fields null."""
    from pyspark.sql.avro.functions import from_avro

    _record(schema)
    wanted: dict[str, Any] = {**_record(reader)}
    wanted["fields"] = [*wanted["fields"], {"name": _OK, "type": "boolean", "default": True}]
    return from_avro(payload, schema, {"mode": "PERMISSIVE", "avroSchema": json.dumps(wanted)})


def _record(schema: str) -> Mapping[str, Any]:
    """Return a parsed schema.

    Raises:
        OptionError: it is no schema of a record.
    """
    try:
        found = json.loads(schema)
    except ValueError as error:
        raise OptionError("schema", f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise OptionError("schema", 'it must be a record: {"type": "record", "name": ..., "fields": [...]}')
    return found


def _decoded(frame: DataFrame, value: Column, reason: Column, into: str, bad: str) -> DataFrame:
    """Return the frame with decoded values.

    Args:
        frame: the frame with the bodies.
        value: null where it can't be.
        reason: why not; null where it can.
        into: the column of values.
        bad: treatment of bodies that can't be decoded.
    """
    match _bad(bad):
        case Bad.FAIL:
            where = [name for name in _PLACE if name in frame.columns]
            parts = [part for name in where for part in (sql.lit(f", {name} "), sql.col(name).cast("string"))]
            said = sql.concat_ws("", sql.lit("a body cannot be decoded: "), reason, *parts)
            return frame.withColumn(into, sql.when(reason.isNotNull(), sql.raise_error(said)).otherwise(value))
        case Bad.NULL:
            return frame.withColumn(into, value)
        case Bad.SKIP:
            return frame.where(reason.isNull()).withColumn(into, value)
        case Bad.COLUMN:
            return frame.withColumns({into: value, BAD_VALUE: reason})


def _bad(text: str) -> Bad:
    try:
        return Bad(text)
    except ValueError:
        raise OptionError("bad", f"{text!r} is none of {', '.join(Bad)}") from None
