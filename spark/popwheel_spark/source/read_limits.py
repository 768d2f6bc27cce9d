"""Limits of a micro-batch, as Spark sets them: from 4.2 on. Spark 4.1 always takes all there is."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Substitute for Spark's class, which Spark 4.1 does not have."""

    class ReadAllAvailable(ReadLimit):
        """No limit, the only one of Spark 4.1."""

    class _Never(ReadLimit):
        """Limit whose options are refused."""

        def __init__(self, value: int) -> None:
            raise AssertionError("a limit of a micro-batch is refused by name before")

    ReadMaxBytes = ReadMaxRows = ReadMinRows = _Never

    class SupportsTriggerAvailableNow:
        """Substitute for Spark's class: Spark 4.1 asks once for the end by itself."""


__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]
