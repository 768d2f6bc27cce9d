"""Tables of the controller's admin API: timers, and messages in flight (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from popwheel_spark.wire.schema import TIME

_MICROS_PER_MS = 1000


@dataclass(frozen=True)
class AdminColumn:
    """Column, and its field in JSON.

    Args:
        ddl: its type in Spark's DDL.
        type: in Arrow. Times are milliseconds in JSON.
        field: of a row in JSON.
    """

    ddl: str
    type: pa.DataType
    field: str


@dataclass(frozen=True)
class AdminTable:
    """List of the admin API as a table.

    Args:
        path: of the list, below `/api/v1/`.
        rows: the field of a page that holds its rows.
        topic_needed: whether a topic must be named.
        columns: by name.
    """

    path: str
    rows: str
    topic_needed: bool
    columns: Mapping[str, AdminColumn]


def _text(field: str) -> AdminColumn:
    return AdminColumn("STRING", pa.string(), field)


def _time(field: str) -> AdminColumn:
    return AdminColumn("TIMESTAMP", TIME, field)


ADMIN_TABLES: Final[Mapping[str, AdminTable]] = {
    "timers": AdminTable(
        "timers",
        "timers",
        False,
        {
            "topic": _text("topic"),
            "tag": _text("tag"),
            "keys": AdminColumn("ARRAY<STRING>", pa.list_(pa.string()), "keys"),
            "brokerName": _text("broker"),
            "deliveryTimestamp": _time("due_ms"),
            "messageId": _text("message_id"),
            "recallHandle": _text("recall_handle"),
        },
    ),
    "inflight": AdminTable(
        "inflight",
        "messages",
        True,
        {
            "group": _text("group"),
            "topic": _text("topic"),
            "brokerName": _text("broker"),
            "queueId": AdminColumn("INT", pa.int32(), "queue_id"),
            "queueOffset": AdminColumn("BIGINT", pa.int64(), "queue_offset"),
            "messageId": _text("message_id"),
            "attempts": AdminColumn("INT", pa.int32(), "attempt"),
            "poppedTimestamp": _time("popped_ms"),
            "dueTimestamp": _time("due_ms"),
        },
    ),
}
"""Tables by the value of the option `table`."""


def admin_record_batch(table: AdminTable, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return the rows of a page as rows of Arrow.

    Args:
        table: that they are of.
        names: of the columns that are wanted.
        rows: from JSON.
    """
    columns = [table.columns[name] for name in names]
    arrays = [
        pa.array([row[column.field] * _MICROS_PER_MS for row in rows], TIME)
        if column.type == TIME
        else pa.array([row[column.field] for row in rows], column.type)
        for column in columns
    ]
    schema = pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
