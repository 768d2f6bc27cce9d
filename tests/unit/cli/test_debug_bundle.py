"""`popwheel admin debug bundle`: what is in the file, and what is said to be missing."""

import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.unit.cli.fake_admin_api import STATUS, FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

KEY = "proxy/127.0.0.1:8081/0"


def page_at(process: str, page: str) -> str:
    return f"GET /debug/page?{urlencode({'process': process, 'page': page})}"


def answers() -> dict[str, tuple[int, Any]]:
    processes = [
        {"key": "controller", "pages": ["settings", "log"]},
        {"key": KEY, "pages": ["metrics"]},
        {"key": "broker/b/0", "pages": []},
    ]
    entry = {"step": "answer", "topic": "t", "reason": "BODY of a message"}
    silent = {"code": "PROXY_TIMEOUT", "message": "it did not answer within 3 s; ask again"}
    return {
        "GET /debug/processes": (200, {"processes": processes}),
        "GET /cluster": (200, {"name": "popwheel", "topics": 3}),
        "GET /cluster/status": (200, STATUS),
        "GET /timers/stats": (200, {"pending": 1}),
        "GET /quarantine": (200, {"entries": [entry, entry], "total": 2, "unanswered": []}),
        "GET /clients?limit=500": (200, {"clients": [], "unanswered": [], "next": None}),
        page_at("controller", "settings"): (200, {"text": "{}"}),
        page_at("controller", "log"): (200, {"text": "a line\n"}),
        page_at(KEY, "metrics"): (504, silent),
    }


def test_a_bundle(tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    with FakeAdminApi(answers()) as api:
        result = call("admin", "--server", api.url, "debug", "bundle", "-f", str(file))
        again = call("admin", "--server", api.url, "debug", "bundle", "-f", str(file))
        as_zip = call("admin", "--server", api.url, "debug", "bundle", "--file", str(tmp_path / "b.zip"))
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        found = {each.name.removeprefix("popwheel-debug/"): archive.extractfile(each) for each in archive.getmembers()}
        texts = {name: b"" if part is None else part.read() for name, part in found.items()}
    assert texts.keys() == {
        *("cluster.json", "status.json", "timers.json", "quarantine.json", "clients.json", "manifest.json"),
        *("processes/controller/settings.json", "processes/controller/log.txt"),
    }
    assert texts["processes/controller/log.txt"] == b"a line\n"
    assert json.loads(texts["quarantine.json"])["by_step"] == {"answer": 2}
    assert b"BODY" not in b"".join(texts.values())
    missing = json.loads(texts["manifest.json"])["missing"]
    assert missing.keys() == {"broker/b/0", f"metrics of {KEY}"}
    assert "did not answer" in missing[f"metrics of {KEY}"]
    assert "without broker/b/0: it takes no questions" in result.stderr
    assert "is there already" in sentence_of(again)
    assert as_zip.exit_code == 0, as_zip.output
    assert "popwheel-debug/manifest.json" in zipfile.ZipFile(tmp_path / "b.zip").namelist()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with FakeAdminApi(answers()) as api:
        kind = call("admin", "--server", api.url, "debug", "bundle", "-f", str(tmp_path / "b.rar"))
        nowhere = call("admin", "--server", api.url, "debug", "bundle", "-f", str(tmp_path / "none" / "b.zip"))
    assert "must end with .tar.gz or .zip" in sentence_of(kind)
    assert "cannot write" in sentence_of(nowhere)
    assert list(tmp_path.iterdir()) == []
