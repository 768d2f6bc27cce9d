"""The zip file for the workers of a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from popwheel_spark.package import write_package


def test_python_imports_from_the_zip(tmp_path: Path) -> None:
    file = tmp_path / "popwheel.zip"
    write_package(file)
    code = "import popwheel_spark.wire.offsets as one, popwheel_rpc.limits as two; print(one.__file__, two.__file__)"
    code = f"import sys; sys.path.insert(0, {str(file)!r}); {code}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [f"{file}/popwheel_spark/wire/offsets.py", f"{file}/popwheel_rpc/limits.py"]


def test_a_name_that_spark_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.zip"):
        write_package(tmp_path / "popwheel.whl")
