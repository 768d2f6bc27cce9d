"""Spark session of a job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from popwheel_spark.jobs.outcome import InputError
from popwheel_spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT = "SPARK_REMOTE"


def job_session(job: str) -> SparkSession:
    """Return the session of a job, with a JVM of its own.

    Raises:
        InputError: the environment asks for Spark Connect, by which no job runs.
        NoJavaError: Spark can't start.
    """
    if os.environ.get(_CONNECT):
        raise InputError(
            f"the jobs do not run by Spark Connect, as {_CONNECT} asks for: they use Spark's own JVM. Unset it, and "
            "start the job here or by spark-submit"
        )
    return spark_session(f"popwheel {job}")
