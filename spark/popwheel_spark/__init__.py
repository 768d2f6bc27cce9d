"""Popwheel topics as tables and streams of Spark: a data source and a sink for PySpark (docs/use/spark.md)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from popwheel_spark.data_source import PopwheelDataSource

__all__ = ["PopwheelDataSource"]


def __getattr__(name: str) -> Any:
    """Load the data source when it is asked for: `popwheel-spark --help` does without PySpark."""
    if name != "PopwheelDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from popwheel_spark.data_source import PopwheelDataSource

    return PopwheelDataSource
