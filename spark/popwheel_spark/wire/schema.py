"""Columns of messages: their types in Spark and in Arrow (pure)."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from popwheel_spark.wire.columns import TYPES

TIME: Final = pa.timestamp("us", "UTC")

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "STRING": pa.string(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "BINARY": pa.binary(),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": TIME,
}

COLUMNS: Final[Mapping[str, tuple[str, pa.DataType]]] = {name: (kind, _ARROW[kind]) for name, kind in TYPES.items()}
"""Columns of messages, in order: name -> (type in Spark's DDL, type in Arrow)."""


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return columns as an Arrow schema, in the form that Spark expects."""
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


def is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type equals another, but for elements that may not be null."""
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return bool(found.key_type == wanted.key_type and found.item_type == wanted.item_type)
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return bool(found.value_type == wanted.value_type)
    return bool(found == wanted)
