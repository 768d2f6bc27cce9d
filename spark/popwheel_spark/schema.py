"""The columns of messages: what they are for Spark, and what they are for Arrow (pure)."""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", "UTC")

COLUMNS: Final[Mapping[str, tuple[str, pa.DataType]]] = {
    "topic": ("STRING", pa.string()),
    "tag": ("STRING", pa.string()),
    "keys": ("ARRAY<STRING>", pa.list_(pa.string())),
    "messageGroup": ("STRING", pa.string()),
    "body": ("BINARY", pa.binary()),
    "properties": ("MAP<STRING, STRING>", pa.map_(pa.string(), pa.string())),
    "brokerName": ("STRING", pa.string()),
    "queueId": ("INT", pa.int32()),
    "queueOffset": ("BIGINT", pa.int64()),
    "bornTimestamp": ("TIMESTAMP", TIME),
    "storeTimestamp": ("TIMESTAMP", TIME),
    "deliveryTimestamp": ("TIMESTAMP", TIME),
    "messageId": ("STRING", pa.string()),
    "attempts": ("INT", pa.int32()),
    "originTopic": ("STRING", pa.string()),
}
"""Of messages, in order: name -> (type in Spark's DDL, type in Arrow)."""

ORIGIN: Final = "originTopic"
"""A column of dead letters alone: the topic where its group failed on it."""


def ddl(names: Sequence[str]) -> str:
    """Columns as Spark's DDL."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Columns as Arrow has them, and as Spark expects them of Arrow."""
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


def is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type is another one, be it that its elements may not be null."""
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return bool(found.key_type == wanted.key_type and found.item_type == wanted.item_type)
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return bool(found.value_type == wanted.value_type)
    return bool(found == wanted)
