"""Tag filters: `*`, `a`, `a || b`, compared by the tag hashes in the consume queues."""

from functools import lru_cache

from popwheel_broker.log.record import hash_tag
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ALL, TAG, Filter

EVERYTHING: frozenset[int] | None = None
"""A filter that lets all messages through, tagged or not."""

_SHORT = 256
"""Characters of an expression whose parsed form is small; fewer of the longer ones are cached."""


def wanted_hashes(message_filter: Filter) -> frozenset[int] | None:
    """Return the hashes of the tags a filter wants; None if it wants everything.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION, for other kinds of filters.
    """
    if message_filter.kind == ALL:
        return EVERYTHING
    if message_filter.kind == TAG:
        expression = message_filter.expression
        return _parsed(expression) if len(expression) <= _SHORT else _parsed_long(expression)
    raise StatusError(
        Code.ILLEGAL_FILTER_EXPRESSION, "a pull takes tag filters only; use `*`, `tag` or `tag-a || tag-b`, or receive"
    )


def filter_bytes(wanted: frozenset[int] | None) -> int:
    """Return the approximate memory of a filter's hashes, in bytes."""
    return 0 if wanted is None else 256 + 100 * len(wanted)


def _parse(expression: str) -> frozenset[int] | None:
    tags = [tag.strip() for tag in expression.split("||")]
    if tags in (["*"], [""]):
        return EVERYTHING
    return frozenset(hash_tag(tag) for tag in tags if tag)


_parsed = lru_cache(maxsize=4096)(_parse)
_parsed_long = lru_cache(maxsize=64)(_parse)
