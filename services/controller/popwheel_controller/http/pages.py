"""Pages of names, for routes that list topics or groups."""

from itertools import islice, takewhile
from typing import Annotated, Final

from fastapi import Query

from popwheel_controller.cluster.cluster_state import Named
from popwheel_controller.cluster.name_map import NameMap

LISTED: Final = 100
LISTED_MAX: Final = 1_000
_LAST: Final = chr(0x10FFFF)
"""Character after all characters of names."""

Prefix = Annotated[str, Query(max_length=255, description="Only those whose names begin so.")]
After = Annotated[str, Query(max_length=255, description="Only those that come after this: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX, description="At most so many.")]


def page_of(named: NameMap[Named], prefix: str, after: str, limit: int) -> tuple[list[Named], int, bool]:
    """Some of what has names with a prefix, how many do, and whether there are more.

    Args:
        named: all there is.
        prefix: of the names; empty for all.
        after: the last name of the page before; empty for the first page.
        limit: so many at the most.
    """
    end = prefix + _LAST
    names = islice(takewhile(lambda name: name < end, named.after(max(prefix, after))), limit + 1)
    page = [named[name] for name in names]
    if prefix > after and prefix in named:
        page.insert(0, named[prefix])
    return page[:limit], named.count_before(end) - named.count_before(prefix), len(page) > limit
