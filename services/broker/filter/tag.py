"""Tag filters: `*`, `a`, `a || b`, compared by the hashes that stand in the consume queues."""

from functools import lru_cache

from services.broker.store.record import hash_tag
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.broker_pb2 import ALL, TAG, Filter

EVERYTHING: frozenset[int] | None = None
"""A filter that lets all messages through, tagged or not."""


def wanted_hashes(message_filter: Filter) -> frozenset[int] | None:
    """The hashes of the tags a filter wants; None if it wants everything.

    Raises:
        StatusError: ILLEGAL_FILTER_EXPRESSION, for kinds of filters that this broker does not know.
    """
    if message_filter.kind == ALL:
        return EVERYTHING
    if message_filter.kind == TAG:
        return _parse(message_filter.expression)
    raise StatusError(
        Code.ILLEGAL_FILTER_EXPRESSION, "only tag filters are supported yet; use `*`, `tag` or `tag-a || tag-b`"
    )


@lru_cache(maxsize=4096)
def _parse(expression: str) -> frozenset[int] | None:
    tags = [tag.strip() for tag in expression.split("||")]
    if tags in (["*"], [""]):
        return EVERYTHING
    return frozenset(hash_tag(tag) for tag in tags if tag)
