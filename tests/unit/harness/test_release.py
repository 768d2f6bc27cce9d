"""How drills speak to a release, without a cluster: by a `kubectl` and a `helm` that only note what they are told."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.harness.release import Release, RunningImage

PODS = {
    "items": [
        {
            "metadata": {"name": "broker-a-0"},
            "spec": {"containers": [{"image": "popwheel:0.2.0"}]},
            "status": {"containerStatuses": [{"imageID": "sha256:2"}]},
        }
    ]
}


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What they were told, a line each."""
    said, answer = tmp_path / "told", tmp_path / "answer"
    answer.write_text(json.dumps(PODS))
    for name in ("kubectl", "helm"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {said}\ncat {answer}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return said


def test_a_release_is_rolled_to_another_image(reported: Path) -> None:
    release = Release("messages", "popwheel", "registry:5000/popwheel:0.1.0")
    release.install()
    release.image = "registry:5000/popwheel:0.2.0"
    release.install()
    first, second = reported.read_text().splitlines()
    assert "upgrade --install --create-namespace popwheel" in first
    assert "image.repository=registry:5000/popwheel --set-string image.tag=0.1.0 " in first
    assert second == first.replace("image.tag=0.1.0", "image.tag=0.2.0")


def test_it_is_seen_what_each_pod_runs(reported: Path) -> None:
    images = Release("messages", "popwheel", "popwheel:0.1.0").images()
    assert images == {"broker-a-0": RunningImage("popwheel:0.2.0", "sha256:2")}
    components = {line.partition("component=")[2].split()[0] for line in reported.read_text().splitlines()}
    assert components == {"proxy", "broker", "controller"}


def test_a_failed_roll_out_shows_the_pods_that_are_not_ready(reported: Path) -> None:
    (reported.parent / "helm").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.SubprocessError) as failure:
        Release("messages", "popwheel", "popwheel:0.1.0").install()
    (note,) = failure.value.__notes__
    assert "kubectl describe pod broker-a-0\n" in note and "kubectl logs broker-a-0 --tail=60\n" in note
