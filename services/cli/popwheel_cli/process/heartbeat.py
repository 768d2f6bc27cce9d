"""Heartbeat of a child process to its parent: a byte a second through a pipe.

The loop that serves messages writes it, so a process whose loop hangs is silent, and one that is busy is not. It is no
request over HTTP: clients that take all connections of that port could have healthy processes killed.
"""

import asyncio
import os
from contextlib import suppress

BEAT_S = 1.0


async def give_signs_of_life(descriptor: int) -> None:
    """Write heartbeats until cancelled.

    Args:
        descriptor: the pipe's end; a full or broken pipe costs nothing, as the parent hangs or is gone.
    """
    os.set_blocking(descriptor, False)
    while True:
        with suppress(OSError):
            os.write(descriptor, b".")
        await asyncio.sleep(BEAT_S)
