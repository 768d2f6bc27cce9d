"""Zip file of this package, which spark-submit ships to the workers of a cluster (docs/use/spark.md).

`python -m popwheel_spark.package FILE`
"""

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

_OWN = "popwheel_spark"
_OURS = "popwheel_"
"""The beginning of the names of all our packages."""
_ENDING = ".zip"
"""Suffix that Spark puts on the workers' path; it ignores others, such as wheels."""


def needed_files() -> dict[str, Path]:
    """Return the files of this package and of our modules that it imports: path in site-packages -> file.

    It reads sources, also where compiled modules or servers are installed.
    """
    found: dict[str, Path] = {}
    left = {file: folder for folder in [_folder(_OWN)] for file in folder.rglob("*.py")}
    while left:
        file, folder = left.popitem()
        found[file.relative_to(folder.parent).as_posix()] = file
        for name in _imported(file):
            top = _folder(name.partition(".")[0])
            parts = name.split(".")
            # Each package on the way is imported, too; the last part may be a name within a module.
            places = [top.parent.joinpath(*parts[: length + 1]) for length in range(len(parts))]
            files = [each for place in places for each in (place / "__init__.py", place.with_suffix(".py"))]
            left |= {
                each: top for each in files if each.exists() and each.relative_to(top.parent).as_posix() not in found
            }
    return dict(sorted(found.items()))


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is installed with this package"
    return Path(spec.origin).parent


def _imported(file: Path) -> Iterator[str]:
    """Yield the imports of our packages in a file: modules, and names that may be modules."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith(_OURS))
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(_OURS):
            yield from (f"{node.module}.{each.name}" for each in node.names)


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
        for name, source in needed_files().items():
            zipped.write(source, name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which file: python -m popwheel_spark.package popwheel.zip")
    try:
        write_package(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"cannot write it: {error}")
