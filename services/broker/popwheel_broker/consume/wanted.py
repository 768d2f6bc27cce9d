"""Messages that a consumer asked for: all, those of some tags, or those that pass an SQL92 filter."""

from popwheel_broker.consume.sql_filter import SqlFilter, sql_filter
from popwheel_broker.log import tag
from popwheel_common.pb.popwheel.v1.broker_pb2 import SQL92, Filter

Wanted = frozenset[int] | SqlFilter | None
"""The hashes of tags, a filter, or None for all."""


def wanted_by(message_filter: Filter) -> Wanted:
    """Return what a filter lets through.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION.
    """
    if message_filter.kind == SQL92:
        return sql_filter(message_filter.expression)
    return tag.wanted_hashes(message_filter)


def filter_bytes(wanted: Wanted) -> int:
    """Return the approximate memory of a filter, in bytes."""
    return wanted.bytes if isinstance(wanted, SqlFilter) else tag.filter_bytes(wanted)
