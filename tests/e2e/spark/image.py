"""What an image for Spark has over the product's own on a test bed: `python -m tests.e2e.spark.image FOLDER`.

Elsewhere one builds spark/Dockerfile (`make spark-image`). There is no registry on a test bed, so this
takes PySpark and PyArrow from the packages of this environment, and this machine's Java runtime.
"""

import shutil
import sys
from importlib import metadata
from pathlib import Path

_PACKAGES = Path("usr/local/lib/python3.11/dist-packages")
_DISTRIBUTIONS = ("pyspark", "py4j", "pyarrow")
_APPLICATION = Path(__file__).with_name("application.py")
_USER = "spark:x:185:185::/tmp:/bin/sh\n"
"""Java has to find a name for its user."""
_ENVIRONMENT = """\
export JAVA_HOME=/opt/java
export PYSPARK_PYTHON=python3
"""
_EXECUTOR = """\
#!/bin/bash
# What a pod runs that the Kubernetes scheduler of Spark has made: it says `executor`, and the rest by variables.
export SPARK_HOME=/opt/spark
. /opt/spark/conf/spark-env.sh
options=()
for name in ${!SPARK_JAVA_OPT_*}; do options+=("${!name}"); done
exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp '/opt/spark/conf:/opt/spark/jars/*' \\
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" \\
    --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \\
    --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \\
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
"""


def make(root: Path) -> None:
    """Put the files together.

    Args:
        root: a folder, which is made anew.
    """
    shutil.rmtree(root, ignore_errors=True)
    packages = root / _PACKAGES
    packages.mkdir(parents=True)
    for name in _DISTRIBUTIONS:
        found = metadata.distribution(name)
        for top in {each.parts[0] for each in found.files or () if each.parts[0] != ".."}:
            shutil.copytree(str(found.locate_file(top)), packages / top, ignore=shutil.ignore_patterns("__pycache__"))
    spark = packages / "pyspark"
    _write(spark / "conf" / "spark-env.sh", _ENVIRONMENT, 0o644)
    java = shutil.which("java")
    assert java is not None, "an image for Spark needs the Java runtime of this machine, and there is none"
    shutil.copytree(Path(java).resolve().parent.parent, root / "opt" / "java", ignore_dangling_symlinks=True)
    (root / "opt" / "spark").symlink_to(Path("/") / _PACKAGES / "pyspark")
    (root / "opt" / "app").mkdir()
    shutil.copy(_APPLICATION, root / "opt" / "app")
    _write(root / "usr" / "local" / "bin" / "executor", _EXECUTOR, 0o755)
    _write(root / "etc" / "passwd", "root:x:0:0::/root:/bin/sh\n" + _USER, 0o644)


def _write(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
