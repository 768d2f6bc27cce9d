"""Partitioning by message group: the sink keeps the order of a task's rows, and Spark runs tasks side
by side.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sql

_PLACE = ("brokerName", "queueId", "queueOffset")
_GROUP = "_popwheel_group"
_SINCE = "_popwheel_since"


def in_group_order(rows: DataFrame, *order: str, partitions: int | None = None) -> DataFrame:
    """Return the rows, so partitioned and sorted that each message group keeps its order when they are sent.

    Args:
        rows: with `messageGroup`, and with what the order goes by. Rows without a group are spread over the tasks.
        order: columns by which the rows of a group are sorted. Without: as they lie in the topic that they were read
            from, by the columns `brokerName`, `queueId`, `queueOffset` and `storeTimestamp`, also for a group that has
            moved to another broker.
        partitions: how many tasks; None: as `spark.sql.shuffle.partitions` says, or fewer, as Spark likes. Say it where
            a write may be repeated, so that each row is in the same task, and gets the same id, again.
    """
    spread = sql.xxhash64(*(order or _PLACE)).cast("string")
    group = sql.coalesce(sql.concat(sql.lit("group "), "messageGroup"), spread)
    grouped = rows.withColumn(_GROUP, group)
    moved = grouped.repartition(_GROUP) if partitions is None else grouped.repartition(partitions, _GROUP)
    if order:
        return moved.sortWithinPartitions(_GROUP, *order).drop(_GROUP)
    queue = Window.partitionBy(_GROUP, "brokerName", "queueId")
    since = moved.withColumn(_SINCE, sql.min("storeTimestamp").over(queue))
    return since.sortWithinPartitions(_GROUP, _SINCE, *_PLACE).drop(_GROUP, _SINCE)
