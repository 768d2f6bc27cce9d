"""The quick start of docs/use/spark.md: sends rows, reads them as a table, archives them as a stream.

`python demo/spark_quick_start.py [ENDPOINTS [FOLDER]]`
"""

import sys
from pathlib import Path

from popwheel_spark.session import spark_session


def main(endpoints: str = "127.0.0.1:8081", folder: str = ".") -> None:
    """Show it.

    Args:
        endpoints: of the cluster's proxies.
        folder: for archive and checkpoint.
    """
    spark = spark_session("quick start")
    cluster = {"endpoints": endpoints}

    rows = spark.range(1000).selectExpr(
        "'order ' || id AS body", "'new' AS tag", "map('number', '' || id) AS properties"
    )
    rows.write.format("popwheel").mode("append").options(**cluster, topic="orders").save()

    orders = spark.read.format("popwheel").options(**cluster, topic="orders").load()
    orders.selectExpr("queueId", "queueOffset", "tag", "CAST(body AS STRING)").orderBy("queueId", "queueOffset").show(5)

    stream = spark.readStream.format("popwheel").options(**cluster, topic="orders", startingOffsets="earliest").load()
    archive, checkpoint = str(Path(folder) / "archive"), str(Path(folder) / "checkpoint")
    query = (
        stream.writeStream.format("parquet")
        .option("path", archive)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(archive).selectExpr("count(*) AS archived").show()


if __name__ == "__main__":
    main(*sys.argv[1:])
