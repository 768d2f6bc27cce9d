"""The package for Spark needs its own dependencies: nothing of the servers is loaded or imported."""

import ast
import re
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

from popwheel_spark.package import needed_files
from tests.harness.standalone import ROOT

SPARK, SERVERS = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("spark", "."))
MODULES = {"click", "google", "matplotlib", "numpy", "pyarrow", "pyspark", "py4j"}
"""Import names of what popwheel-spark asks for; py4j is PySpark's own."""
NAMES = {"protobuf": "google", "pyyaml": "yaml"}
"""Of distributions that are imported by another name."""
OURS = ("broker", "cli", "console", "controller", "proxy", "testing")

PROGRAM = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # an import of it fails
import popwheel_spark
for module in pkgutil.walk_packages(popwheel_spark.__path__, "popwheel_spark."):
    importlib.import_module(module.name)
print(*sorted(name for name, module in sys.modules.items() if module is not None and name.startswith("popwheel_")))
"""


def names(texts: list[str]) -> set[str]:
    """The import names of distributions."""
    return {NAMES.get(name, name.replace("-", "_")) for name in (Requirement(text).name for text in texts)}


def foreign() -> set[str]:
    """Return the needs of servers, from fastapi to uvicorn, and their own packages."""
    extras = SERVERS["project"]["optional-dependencies"]
    asked = names([*SERVERS["project"]["dependencies"], *extras["redis"], *extras["kubernetes"], *extras["grpcio"]])
    return (asked | {"starlette", "grpc", *(f"popwheel_{name}" for name in OURS)}) - MODULES


def test_every_module_is_imported_where_nothing_of_the_servers_is() -> None:
    assert {"fastapi", "uvicorn", "redis", "pydantic", "structlog", "cryptography"} <= foreign()
    words = [sys.executable, "-c", PROGRAM, *sorted(foreign())]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    # Compiled modules share a library, which the package for Spark has no need of.
    loaded = {name.replace(".", "/") for name in ended.stdout.split() if not name.endswith("__mypyc")}
    files = {file.removesuffix(".py").removesuffix("/__init__") for file in needed_files()}
    assert loaded <= files, "the zip for workers lacks these"


def test_what_is_imported_now_or_later_is_asked_for() -> None:
    imported = set()
    for file in needed_files().values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module.partition(".")[0])
    libraries = {name for name in imported - sys.stdlib_module_names if not name.startswith("popwheel_")}
    assert libraries == MODULES
    extras = SPARK["project"]["optional-dependencies"]
    asked = [*SPARK["project"]["dependencies"], *extras["pyspark"], *extras["report"]]
    assert names(asked) == MODULES - {"py4j"}


def test_the_wheel_has_what_it_imports_of_the_services_and_that_imports_nothing_else() -> None:
    named = SPARK["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all(source == f"../services/{source.split('/')[2]}/{name}" for source, name in named.items())
    places = [ROOT / "spark" / source for source in named]
    files = {file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))}
    had = {file.relative_to(ROOT / "spark/../services").as_posix().partition("/")[2] for file in files}
    assert {name for name in needed_files() if not name.startswith("popwheel_spark/")} <= had
    for file in files:
        for name in re.findall(r"^\s*from (popwheel_[\w.]+) import", file.read_text(), re.MULTILINE):
            path = name.replace(".", "/")
            assert had & {f"{path}.py", f"{path}/__init__.py"}, f"{file.name} imports {name}"
