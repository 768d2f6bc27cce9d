"""Rows of one message group in one task, in order: the sink keeps the order of a task's rows, and Spark runs tasks side
by side.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

_PLACE = ("brokerName", "queueId", "queueOffset")
_ROW = "_popwheel_lane"
_SINCE = "_popwheel_since"


def in_group_order(rows: DataFrame, *order: str, partitions: int | None = None) -> DataFrame:
    """The rows, to be sent so that each message group keeps its order, whatever tasks they were in before.

    Args:
        rows: with `messageGroup`, and with what the order goes by. Rows without a group are spread over the tasks.
        order: columns by which the rows of a group are sorted. Without: as they lie in the topic that they were read
            from, by the columns `brokerName`, `queueId`, `queueOffset` and `storeTimestamp`. A group that has moved to
            another broker goes on there.
        partitions: how many tasks; None: as `spark.sql.shuffle.partitions` says, or fewer, as Spark likes. Say it where
            a write may be repeated, so that each row is in the same task, and gets the same id, again.
    """
    spread = sql.xxhash64(*(order or _PLACE)).cast("string")
    lane = sql.coalesce(sql.concat(sql.lit("group "), "messageGroup"), spread)
    laned = rows.withColumn(_ROW, lane)
    moved = laned.repartition(_ROW) if partitions is None else laned.repartition(partitions, _ROW)
    if order:
        return moved.sortWithinPartitions(_ROW, *order).drop(_ROW)
    queue = Window.partitionBy(_ROW, "brokerName", "queueId")
    since = moved.withColumn(_SINCE, sql.min("storeTimestamp").over(queue))
    return since.sortWithinPartitions(_ROW, _SINCE, *_PLACE).drop(_ROW, _SINCE)
