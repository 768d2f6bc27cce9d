"""Spark session with `popwheel`: on the cluster that spark-submit names, or on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from popwheel_spark.errors import PopwheelSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NoJavaError(PopwheelSparkError):
    """Missing Java runtime, which Spark needs."""


def check_java() -> None:
    """Check that Spark will find Java: by JAVA_HOME, or on the PATH.

    Raises:
        NoJavaError: it will not; the text says the one command.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise NoJavaError(
                f"JAVA_HOME is {home}, where there is no bin/java; let it name a Java 17 or 21, or unset it"
            )
    elif not shutil.which("java"):
        raise NoJavaError(
            "Spark needs Java 17 or 21 and finds none. On Debian: apt-get install openjdk-17-jre-headless; "
            "without root: unpack one, and let JAVA_HOME name its folder"
        )


def spark_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, with the data source registered.

    Args:
        name: of the application, for Spark's pages and logs.
        settings: of Spark, on top of what spark-submit says.

    Raises:
        NoJavaError: Spark can't start.
    """
    from pyspark.sql import SparkSession

    from popwheel_spark.data_source import PopwheelDataSource

    check_java()
    builder = SparkSession.builder.appName(name)
    if "SPARK_ENV_LOADED" not in os.environ:  # spark-submit sets it, and says the master
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whichever python is on the PATH
        builder = builder.master("local[*]")
    for key, value in (settings or {}).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.dataSource.register(PopwheelDataSource)
    return session
