"""Python's cycle collector as servers have it: its passes over all that a test run has loaded take tens of ms."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from popwheel_cli.process.garbage_collection import GarbageCollection


@contextmanager
def collector_of_servers() -> Iterator[None]:
    """Collect as servers do, for as long as the `with` block takes."""
    threshold = gc.get_threshold()
    GarbageCollection.freeze_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
