"""Pages of lists that brokers have parts of: they are asked one after another until a page is full.

A place in such a list is the name of a broker, a `/`, and where its own list goes on.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Query

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.http.inquiry import Inquiry, Silence

_PAGE_S_MAX: Final = 4.0
"""Time after which no further question is asked for a page; below the time-out of `popwheel admin`."""

Step = Callable[[str, str], Awaitable[tuple[str, bool]]]
"""Asks a broker by its name, from where its list goes on: where it goes on now, and whether the page is full."""

After = Annotated[
    str, Query(max_length=400, description="`next` of the previous page. A page may be empty although more follow.")
]


async def ask_in_order(
    inquiry: Inquiry, clock: Clock, only: str, after: str, step: Step
) -> tuple[list[Silence], str | None]:
    """Ask brokers until a page is full or takes too long.

    Args:
        inquiry: knows them.
        clock: says how long it takes.
        only: the only broker that is wanted; empty for all.
        after: the place where the page begins; empty for the first.
        step: asks one of them.

    Returns:
        Brokers that did not answer, and where the next page begins; None if there is none.

    Raises:
        StatusError: as a broker says, if it was asked for what cannot be.
    """
    at, slash, begin = after.partition("/")
    if after and not slash:
        raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
    silent: list[Silence] = []
    waiting = [name for name in ([only] if only else sorted(inquiry.state.brokers)) if name >= at]
    until = clock.monotonic() + _PAGE_S_MAX
    for number, name in enumerate(waiting):
        rest, is_full = begin if name == at else "", False
        while True:
            try:
                rest, is_full = await step(name, rest)
            except StatusError as error:
                if error.code < Code.TOO_MANY_REQUESTS:
                    raise
                silent.append(Silence(broker=name, reason=error.message))
                rest = ""
            if not rest or is_full or clock.monotonic() > until:
                break
        if rest:
            return silent, f"{name}/{rest}"
        if (is_full or clock.monotonic() > until) and number + 1 < len(waiting):
            return silent, f"{waiting[number + 1]}/"
    return silent, None
