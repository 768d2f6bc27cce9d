"""Definitions of a whole cluster: exported, brought to another one, and exported again without a difference."""

import asyncio
import json
import time
from pathlib import Path

import httpx
from click.testing import CliRunner, Result

from popwheel_cli.admin.definition_file import written
from popwheel_cli.main import main
from tests.harness.standalone import StandaloneProcess

KINDS = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")
COUNT = 1_000
SECONDS_MAX = 60.0
"""For one command on a loaded machine of two cores; alone it takes two or three."""


async def admin(server: StandaloneProcess, *words: str) -> Result:
    began = time.monotonic()
    done = await asyncio.to_thread(CliRunner().invoke, main, ["admin", "--server", server.http_url, *words])
    assert time.monotonic() - began < SECONDS_MAX, words
    return done


def version(server: StandaloneProcess) -> int:
    found: int = httpx.get(f"{server.http_url}/api/v1/cluster").json()["version"]
    return found


async def test_what_is_exported_and_brought_to_another_cluster_is_the_same_to_the_byte(tmp_path: Path) -> None:
    wanted, first, second = (tmp_path / name for name in ("wanted.yaml", "first.yaml", "second.yaml"))
    topics = [
        {
            "name": f"topic-{number:04}",
            "type": (kind := KINDS[number % len(KINDS)]),
            "queues": 1 if kind == "LITE" else 1 + number % 16,
            **({"lite_expiration_ms": 1_000 * number} if kind == "LITE" else {}),
        }
        for number in range(COUNT)
    ]
    waits: tuple[dict[str, object], ...] = (
        {},
        {"backoff_ms": [10, 20]},
        {"exponential_backoff": {"initial_ms": 10, "max_ms": 500, "multiplier": 1.5}},
    )
    groups = [
        {"name": f"%group-{number}", "fifo": number % 2 == 0, "max_attempts": 1 + number % 20, **waits[number % 3]}
        for number in range(COUNT)
    ]
    wanted.write_text(written(topics, groups))
    with StandaloneProcess(tmp_path / "one") as server:
        made = await admin(server, "apply", "-f", str(wanted))
        assert made.exit_code == 0, made.stderr
        assert made.stderr.strip() == f"{2 * COUNT} created, 0 changed, 0 unchanged"
        before = version(server)
        again = await admin(server, "apply", "-f", str(wanted))
        assert (again.exit_code, again.stdout) == (0, "")
        assert again.stderr.strip() == f"0 created, 0 changed, {2 * COUNT} unchanged"
        assert version(server) == before
        assert (await admin(server, "export", "-f", str(first))).exit_code == 0
    with StandaloneProcess(tmp_path / "other") as server:
        assert (await admin(server, "import", str(first))).exit_code == 0
        assert (await admin(server, "export", "-f", str(second))).exit_code == 0
        shown = await admin(server, "export")
        again = await admin(server, "apply", "-f", str(second))
        assert again.stderr.strip() == f"0 created, 0 changed, {2 * COUNT} unchanged"
    assert first.read_bytes() == second.read_bytes() == shown.stdout.encode()
    assert first.read_text().startswith("version: 1\ntopics:\n- {name: topic-0000, type: NORMAL, queues: 1}\n")


async def test_what_is_applied_is_shown_and_a_refusal_of_one_keeps_all_as_they_are(
    server: StandaloneProcess, tmp_path: Path
) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("topics:\n- {name: D1, queues: 4}\n- {name: D2, type: FIFO}\ngroups:\n- {name: d1, fifo: true}\n")
    dry = await admin(server, "apply", "-f", str(file), "--dry-run")
    assert dry.stdout.splitlines() == [
        "+ topic D1: type NORMAL, queues 4",
        "+ topic D2: type FIFO, queues 8",
        dry.stdout.splitlines()[2],
    ]
    assert dry.stderr.strip() == "nothing was changed; it would be: 3 created, 0 changed, 0 unchanged"
    before = version(server)
    assert (await admin(server, "apply", "-f", str(file))).exit_code == 0
    assert version(server) == before + 3
    file.write_text("topics:\n- {name: D1, queues: 9}\n- {name: D2, queues: 9}\n- {name: D3, queues: 9000}\n")
    refused = await admin(server, "apply", "-f", str(file))
    assert refused.exit_code == 1
    assert "~ topic D1: queues 4 -> 9" in refused.stdout
    assert "! topic D2: PRECONDITION_FAILED: topic D2 has 8 queues and can't get 9" in refused.stderr
    assert "! topic D3: BAD_REQUEST: a topic must have from 1 to 1024 queues, not 9000" in refused.stderr
    assert "2 of 3 topics and groups are refused; nothing was changed" in refused.stderr
    assert version(server) == before + 3
    file.write_text('{"topics": [{"name": "D1", "queues": 9}], "groups": [{"name": "d1", "max_attempts": 3}]}')
    done = await admin(server, "apply", "-f", str(file), "-o", "json")
    shown = json.loads(done.stdout)
    assert (shown["changed"], shown["done"]) == (2, True)
    assert shown["outcomes"][1]["changes"] == [{"field": "max_attempts", "before": 17, "after": 3}]


async def test_files_of_rocketmq_are_imported_and_what_has_no_counterpart_is_named(
    server: StandaloneProcess, tmp_path: Path
) -> None:
    topics, groups = tmp_path / "topics.json", tmp_path / "subscriptionGroup.json"
    config = {"topicName": "R1", "perm": 6, "readQueueNums": 4, "writeQueueNums": 8}
    topics.write_text(
        json.dumps(
            {
                "dataVersion": {"counter": 1},
                "topicConfigTable": {
                    "R1": {**config, "attributes": {"+message.type": "FIFO"}},
                    "%RETRY%r": config,
                    "read|only": config,
                },
            }
        )
    )
    groups.write_text(json.dumps({"subscriptionGroupTable": {"r": {"retryMaxTimes": 3}, "TOOLS_CONSUMER": {}}}))
    done = await admin(server, "import", str(topics), str(groups))
    assert done.exit_code == 0, done.stderr
    assert "+ topic R1: type FIFO, queues 8" in done.stdout
    assert "+ group r: max_attempts 4, fifo no" in done.stdout
    assert "- topic read|only is left out: 'read|only' is not a name for a topic" in done.stderr
    assert "2 of RocketMQ's own topics and groups are left out" in done.stderr
    assert "2 created, 0 changed, 0 unchanged" in done.stderr


def test_a_call_takes_some_definitions_and_each_name_once(server: StandaloneProcess) -> None:
    url = f"{server.http_url}/api/v1/definitions"
    before = version(server)
    for body, part in (
        ({"topics": [{"name": f"M{number}"} for number in range(51)]}, "51 topics and groups are more than the 50"),
        ({"topics": [{"name": "M1"}, {"name": "M1"}]}, "the topic M1 is defined twice"),
        ({"topics": [{"name": "M1"}, {"name": "rmq_sys_M"}]}, "topic rmq_sys_M: 'rmq_sys_M'"),
        ({"groups": [{"name": "m", "colour": 1}]}, "groups.0.colour"),
        ({"groups": [{"name": "m", "max_attempts": 0}]}, "max_attempts"),
    ):
        answer = httpx.post(url, json=body)
        assert answer.status_code == 400 and part in answer.json()["message"], answer.text
    assert version(server) == before
    twice = httpx.post(url, json={"topics": [{"name": "M1"}], "groups": [{"name": "M1"}]})
    assert [each["outcome"] for each in twice.json()["outcomes"]] == ["created"] * 2
