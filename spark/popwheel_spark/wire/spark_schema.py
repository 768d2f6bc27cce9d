"""Spark's types as Arrow's."""

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_SAYS_ZONE = "timezone" in signature(to_arrow_schema).parameters
"""Flag for Spark 4.2 and later; before, times are in UTC in any case."""


def arrow_of(schema: StructType) -> pa.Schema:
    """Return a schema of Arrow, with times in UTC."""
    return to_arrow_schema(schema, timezone="UTC") if _SAYS_ZONE else to_arrow_schema(schema)
