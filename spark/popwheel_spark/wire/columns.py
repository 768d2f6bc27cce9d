"""Columns of messages in Spark's DDL (pure)."""

from collections.abc import Mapping, Sequence
from typing import Final

TYPES: Final[Mapping[str, str]] = {
    "topic": "STRING",
    "tag": "STRING",
    "keys": "ARRAY<STRING>",
    "messageGroup": "STRING",
    "body": "BINARY",
    "properties": "MAP<STRING, STRING>",
    "brokerName": "STRING",
    "queueId": "INT",
    "queueOffset": "BIGINT",
    "bornTimestamp": "TIMESTAMP",
    "storeTimestamp": "TIMESTAMP",
    "deliveryTimestamp": "TIMESTAMP",
    "messageId": "STRING",
    "attempts": "INT",
    "priority": "INT",
    "originTopic": "STRING",
    "badRecord": "STRING",
}
"""Types of messages' columns, in order: name -> type."""

ORIGIN: Final = "originTopic"
"""A column of dead letters alone: the topic where its group failed on it."""
BAD_RECORD: Final = "badRecord"
"""A column of reads with `badRecords=column` alone: why a message cannot be decoded; null for those that can."""


def ddl(names: Sequence[str]) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"{name} {TYPES[name]}" for name in names)
