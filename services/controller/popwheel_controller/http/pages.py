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

Prefix = Annotated[str, Query(max_length=255, description="Only names with this prefix.")]
After = Annotated[str, Query(max_length=255, description="Only names after this one: `next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX, description="Maximum number of entries.")]


def page_of(named: NameMap[Named], prefix: str, after: str, limit: int) -> tuple[list[Named], int, bool]:
    """Return a page of entries whose names have a prefix, the number of all of these, and whether more follow.

    Args:
        named: all entries.
        prefix: of the names; empty for all.
        after: the last name of the page before; empty for the first page.
        limit: maximum number.
    """
    end = prefix + _LAST
    names = islice(takewhile(lambda name: name < end, named.after(max(prefix, after))), limit + 1)
    page = [named[name] for name in names]
    if prefix > after and prefix in named:
        page.insert(0, named[prefix])
    return page[:limit], named.count_before(end) - named.count_before(prefix), len(page) > limit
