"""Work in a thread, beside the loop that serves calls."""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

_USUAL_S: Final = sys.getswitchinterval()
_SWITCH_S: Final = 0.0005


async def run_beside_loop(work: Callable[[], Result]) -> Result:
    """Run work that takes long in a thread, which hands the interpreter over to the loop ten times sooner than usual.

    The loop asks for it at each event, some ten times for one send.

    Args:
        work: touches nothing that the loop changes meanwhile.
    """
    sys.setswitchinterval(_SWITCH_S)
    try:
        return await asyncio.to_thread(work)
    finally:
        sys.setswitchinterval(_USUAL_S)
