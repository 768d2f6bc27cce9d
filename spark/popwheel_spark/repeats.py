"""Rows that were sent more than once, and a table or stream without the repeats."""

from pyspark.sql import DataFrame


def without_repeats(frame: DataFrame, watermark: str = "1 hour") -> DataFrame:
    """The rows without those that came twice: what `popwheel` sends again has the same message id.

    Args:
        frame: with the column `messageId`; of a stream, also with `storeTimestamp`.
        watermark: for how long a stream remembers ids. A repeat that is stored later than that after the first is
            not known.
    """
    if frame.isStreaming:
        return frame.withWatermark("storeTimestamp", watermark).dropDuplicatesWithinWatermark(["messageId"])
    return frame.dropDuplicates(["messageId"])
