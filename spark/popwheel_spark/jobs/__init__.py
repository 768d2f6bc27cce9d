"""Jobs on Popwheel's topics: `popwheel-spark JOB`, or each file for spark-submit (docs/use/spark-jobs.md)."""
