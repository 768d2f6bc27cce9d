"""Removal of rows that were sent more than once."""

from pyspark.sql import DataFrame


def without_repeats(frame: DataFrame, watermark: str = "1 hour") -> DataFrame:
    """Return the rows without repeats: messages that `popwheel` sends again have the same message id.

    Args:
        frame: with the column `messageId`; of a stream, also with `storeTimestamp`.
        watermark: for how long a stream remembers ids. A repeat that is stored later than that after the first is
            not known.
    """
    if frame.isStreaming:
        return frame.withWatermark("storeTimestamp", watermark).dropDuplicatesWithinWatermark(["messageId"])
    return frame.dropDuplicates(["messageId"])
