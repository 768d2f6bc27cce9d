"""What Spark needs of the machine."""

from pathlib import Path

import pytest

from popwheel_spark.session import NoJavaError, check_java


def test_without_java_the_one_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoJavaError, match="apt-get install openjdk-17-jre-headless"):
        check_java()


def test_java_is_where_java_home_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(NoJavaError, match="where there is no bin/java"):
        check_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    check_java()
