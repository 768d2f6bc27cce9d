"""Install the package for Spark as users would, in clean environments, and run the quick start of docs/use/spark.md.

It is installed twice: as popwheel-spark, where Spark is and no servers are, and as `popwheel[spark]`. A server of the
second one serves both.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.clean_install import ROOT, CleanInstall, InstallError, Step

QUICK_START = ROOT / "demo" / "spark_quick_start.py"
ROWS = 1000
"""Rows that it sends, each time."""
FOREIGN = ("fastapi", "popwheel", "pydantic", "redis", "uvicorn")
"""Distributions that only servers need."""

_LOCK = ROOT / "requirements.lock"
_LIST = "from importlib.metadata import distributions as all; print(*sorted(each.name.lower() for each in all()))"
_RUN_S_MAX = 600.0


def try_spark(spark: Path, servers: Path, folder: Path, python: str, pyspark: str = "pyspark") -> list[Step]:
    """Install the package in both ways and see that it works; how long each step took.

    Args:
        spark: the wheel of popwheel-spark.
        servers: that of popwheel.
        folder: is made; it must not be there.
        python: the interpreter.
        pyspark: which PySpark the package is tried with where it is installed alone; the locked one if not given.

    Raises:
        InstallError: something failed.
    """
    lock = ["--constraint", str(_LOCK)]
    alone = CleanInstall(folder / "alone", python)
    alone.install([str(spark.resolve()), *lock])
    check_alone(alone.run(["python", "-c", _LIST], _RUN_S_MAX).split())
    if "delivery-report" not in alone.run(["popwheel-spark", "--help"], _RUN_S_MAX):
        raise InstallError("popwheel-spark --help does not name its jobs where PySpark is not installed")
    both = CleanInstall(folder / "both", python)
    both.install([f"popwheel[spark] @ {servers.resolve().as_uri()}", *lock])
    both.run(["python", "-m", "pip", "check"], _RUN_S_MAX)
    if not has_java():
        print("Java is not on this machine: the quick start of Spark is not run", flush=True)
        return [*alone.steps, *both.steps]
    alone.install([pyspark, *(lock if pyspark == "pyspark" else [])])
    archive = folder / "archive"
    archive.mkdir()
    with both.server(["standalone"]) as port:
        for runs, installed in enumerate((alone, both), 1):
            said = installed.run(["python", str(QUICK_START), f"127.0.0.1:{port}", str(archive)], _RUN_S_MAX)
            if f"|{runs * ROWS:8}|" not in said:
                raise InstallError(f"the quick start did not archive {runs * ROWS} rows:\n{said[-3000:]}")
    return [*alone.steps, *both.steps]


def check_alone(names: Sequence[str]) -> None:
    """See that nothing of the servers came along.

    Args:
        names: of the distributions that are installed.

    Raises:
        InstallError: something did.
    """
    foreign = sorted({*FOREIGN} & {*names})
    if foreign:
        raise InstallError(f"popwheel-spark brings {', '.join(foreign)}, which it does not need")


def has_java() -> bool:
    """Return whether Spark finds a Java runtime here."""
    return bool(os.environ.get("JAVA_HOME") or shutil.which("java"))


def main(words: Sequence[str] | None = None) -> int:
    """Try both wheels; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spark", type=Path, help="the wheel of popwheel-spark")
    parser.add_argument("servers", type=Path, help="the wheel of popwheel")
    parser.add_argument("--python", default=sys.executable, help="the interpreter; this one if not given")
    parser.add_argument("--pyspark", default="pyspark", help="another PySpark than the locked one: pyspark==4.1.4")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(*try_spark(given.spark, given.servers, Path(folder) / "clean", given.python, given.pyspark), sep="\n")
        except InstallError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
