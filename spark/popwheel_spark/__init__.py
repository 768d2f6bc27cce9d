"""Popwheel topics as tables and streams of Spark: a data source and a sink for PySpark (docs/spark.md)."""

from popwheel_spark.source import PopwheelDataSource

__all__ = ["PopwheelDataSource"]
