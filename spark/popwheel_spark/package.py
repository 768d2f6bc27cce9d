"""This package as a zip file, which spark-submit takes along to the workers of a cluster (docs/spark.md).

`python -m popwheel_spark.package FILE`
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_PACKAGES = ("popwheel_spark", "popwheel_common", "popwheel_rpc", "popwheel_proxy")
_ENDING = ".zip"
"""Spark puts files of other names, such as wheels, on no worker's path."""


def write_package(file: Path) -> None:
    """Write the code that workers need, beside protobuf, NumPy and PyArrow, into a zip file.

    Args:
        file: is made, or made anew.

    Raises:
        ValueError: it has another ending than `.zip`.
    """
    if file.suffix != _ENDING:
        raise ValueError(f"{file}: Spark wants a name that ends in {_ENDING}")
    with ZipFile(file, "w", ZIP_DEFLATED) as zipped:
        for package in _PACKAGES:
            spec = find_spec(package)
            assert spec is not None and spec.origin is not None, f"{package} is a part of this distribution"
            folder = Path(spec.origin).parent
            for module in sorted(folder.rglob("*.py")):
                zipped.write(module, module.relative_to(folder.parent))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which file: python -m popwheel_spark.package popwheel.zip")
    try:
        write_package(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"cannot write it: {error}")
