"""Jobs as one calls them, on topics of a server."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import DELAY, Message
from popwheel_spark.errors import RefusedError
from popwheel_spark.jobs.archive import archive
from popwheel_spark.jobs.archive_folder import ArchiveFolder
from popwheel_spark.jobs.audit import audit
from popwheel_spark.jobs.compaction import compaction
from popwheel_spark.jobs.dead_letter_report import dead_letter_report
from popwheel_spark.jobs.delivery_report import delivery_report
from popwheel_spark.jobs.outcome import Exit, InputError, JobError
from popwheel_spark.jobs.replay import replay
from popwheel_spark.jobs.timer_forecast import timer_forecast
from tests.harness.client import MessagingClient
from tests.spark.topics import Topics
from tests.unit.spark.test_report_page import NETWORK


class Jobs:
    """Runs jobs.

    Args:
        topics: of the server that they work on.
    """

    def __init__(self, topics: Topics) -> None:
        self._flags = ["--endpoints", topics.address, "--admin", topics.admin]

    def run(self, job: click.Command, *words: str, cluster: bool = True, code: int = 0) -> str:
        """Run one that ends with this code; what it has printed."""
        given: Sequence[str] = [*words, *(self._flags if cluster else [])]
        result = CliRunner().invoke(job, given, catch_exceptions=False, standalone_mode=False)
        assert (result.return_value or 0) == code, result.output
        return result.output


@pytest.fixture
def jobs(spark: SparkSession, topics: Topics) -> Jobs:
    return Jobs(topics)


def test_an_archive_goes_on_where_it_was(spark: SparkSession, topics: Topics, jobs: Jobs, tmp_path: Path) -> None:
    topic, folder = topics.make("Archived"), str(tmp_path / "archive")
    first = topics.fill(topic, 300)
    assert "archived 300 messages" in jobs.run(archive, "--topics", topic, "--to", folder, "--until-now")
    second = topics.fill(topic, 200)
    assert "archived 200 messages" in jobs.run(archive, "--topics", topic, "--to", folder, "--until-now")
    assert "replaced" in jobs.run(compaction, "--archive", folder, cluster=False)
    ids = [row["messageId"] for row in ArchiveFolder(spark, folder).table().select("messageId").collect()]
    assert len(ids) == 500
    assert set(ids) == first | second
    other = topics.make("Archived-other")
    with pytest.raises(JobError, match="the stream has read queue 0 of Archived at") as caught:
        jobs.run(archive, "--topics", other, "--to", folder, "--until-now")
    assert "is gone" not in str(caught.value) and caught.value.code is Exit.INPUT


def test_a_report_is_a_page_and_tables(spark: SparkSession, topics: Topics, jobs: Jobs, tmp_path: Path) -> None:
    topic, folder = topics.make("Reported"), tmp_path / "report"
    ids = sorted(topics.fill(topic, 50))
    noted = [
        {"group": "g", "messageId": each, "attempt": 1, "deliveredTimestamp": "2100-01-01T00:00:00Z"}
        for each in ids[1:]
    ]
    record = tmp_path / "deliveries.jsonl"
    record.write_text("".join(f"{json.dumps(each)}\n" for each in noted))
    words = ("--topics", topic, "--groups", "g", "--deliveries", str(record), "--to", str(folder))
    assert f"report: file:{folder}/report.html" in jobs.run(delivery_report, *words)
    html = (folder / "report.html").read_text()
    assert ids[0] in html
    assert "<svg" in html
    assert NETWORK.search(html) is None
    (row,) = spark.read.parquet(str(folder / "groups")).collect()
    assert (row["messages"], row["delivered"], row["gaps"], row["deadLetters"]) == (50, 49, 1, 0)


def test_what_is_sent_once_more_bears_its_key(spark: SparkSession, topics: Topics, jobs: Jobs) -> None:
    topic, into = topics.make("Old"), topics.make("New")
    ids = topics.fill(topic, 200)
    words = ("--topic", topic, "--into", into, "--name", "again", "--rate", "1000")
    assert "sent 200 messages" in jobs.run(replay, *words)
    sent = spark.read.format("popwheel").options(**topics.options, topic=into).load().select("keys", "body").collect()
    assert sorted(bytes(row["body"]) for row in sent) == [b"%08d" % number for number in range(200)]
    keys = [key for row in sent for key in row["keys"] if key.startswith("replay/")]
    assert sorted(keys) == sorted(f"replay/again/{each}" for each in ids)


def test_an_archive_is_sent_once_more_when_the_topic_is_gone(
    spark: SparkSession, topics: Topics, jobs: Jobs, tmp_path: Path
) -> None:
    def dress(message: Message, number: int) -> None:
        message.system_properties.tag = "ab"[number % 2]
        message.user_properties["number"] = str(number)

    topic, other, into, folder = topics.make("Gone"), topics.make("Other"), topics.make("Back"), str(tmp_path)
    ids = topics.fill(topic, 200, dress)
    topics.fill(other, 20)
    jobs.run(archive, "--topics", topic, "--to", folder, "--until-now")
    ids |= topics.fill(topic, 100, dress)
    jobs.run(archive, "--topics", topic, "--to", folder, "--until-now")
    jobs.run(compaction, "--archive", folder, cluster=False)
    topics.delete(topic)
    words = ("--topic", topic, "--archive", folder, "--into", into, "--name", "back")
    assert "sent 300 messages" in jobs.run(replay, *words)
    sent = spark.read.format("popwheel").options(**topics.options, topic=into).load().collect()
    assert sorted(row["keys"][0] for row in sent) == sorted(f"replay/back/{each}" for each in ids)
    found = sorted((bytes(row["body"]), row["tag"], row["properties"]["number"]) for row in sent)
    wanted = [(b"%08d" % number, "ab"[number % 2], str(number)) for number in (*range(200), *range(100))]
    assert found == sorted(wanted)


def test_a_forecast_names_peaks(spark: SparkSession, topics: Topics, jobs: Jobs, tmp_path: Path) -> None:
    topic = topics.make("Later", kind="DELAY")
    due_s = int(time.time()) // 60 * 60 + 7200

    def delay(message: Message, number: int) -> None:
        message.system_properties.message_type = DELAY
        message.system_properties.delivery_timestamp.FromSeconds(due_s + (number if number < 50 else 3600))

    topics.fill(topic, 60, delay)
    words = ("--topics", topic, "--days", "1", "--peak-least", "20", "--to", str(tmp_path))
    output = jobs.run(timer_forecast, *words)
    assert "due: 60; overdue: 0; peaks: 1" in output
    totals = spark.read.parquet(str(tmp_path / "totals")).orderBy("minute").collect()
    assert [(row["count"], row["peak"]) for row in totals] == [(50, True), (10, False)]


def test_an_audit_names_what_is_lost(topics: Topics, jobs: Jobs, tmp_path: Path) -> None:
    topic, group = topics.make("Audited", queues=1), topics.make_group("auditors-friend")
    ids = topics.fill(topic, 12)
    sent, folder = tmp_path / "sent.jsonl", str(tmp_path / "audit")
    sent.write_text("".join(f'{{"messageId": "{each}"}}\n' for each in ids))
    words = ("--topics", topic, "--group", group, "--sent", str(sent), "--to", folder)
    assert "12 of 12 messages are open" in jobs.run(audit, *words)

    async def consume(count: int) -> None:
        async with MessagingClient(topics.address) as client:
            await client.ack(group, topic, await client.receive_all(group, topic, count))

    asyncio.run(consume(12))
    assert "PROVED: all that the sender's record has is there; each of 12 messages" in jobs.run(audit, *words)
    sent.write_text(sent.read_text() + '{"messageId": "never-stored"}\n')
    output = jobs.run(audit, *words, code=Exit.LOST)
    assert "NOT PROVED: 1 lost" in output
    assert "lost: never-stored" in output
    sent.write_text("id,topic\n")
    with pytest.raises(InputError, match=r"sent\.jsonl line 1: it is not JSON"):
        jobs.run(audit, *words)
    with pytest.raises(InputError, match=r"there is no topic Audite$"):
        jobs.run(audit, "--topics", "Audite", *words[2:4], "--to", folder)


def test_dead_letters_are_reported_by_cause_and_key(
    spark: SparkSession, topics: Topics, jobs: Jobs, tmp_path: Path
) -> None:
    def dress(message: Message, number: int) -> None:
        message.system_properties.keys.append(f"customer-{number % 2}")

    topic, folder = topics.make("Buried", queues=1), tmp_path / "report"
    group = topics.make_group("buriers", max_attempts=2, backoff_ms=[10])
    topics.fill(topic, 6, dress)

    async def fail() -> None:
        """Five messages fail twice; the consumer gives the sixth up at its first try."""
        async with MessagingClient(topics.address) as client:
            given = await client.receive_all(group, topic, 6)
            await client.forward_to_dead_letters(group, topic, given[5])
            for _ in range(2):
                for message in given[:5]:
                    await client.change_invisible(group, topic, message, None)
                given = await client.receive_all(group, topic, 5, patience_s=3.0)

    asyncio.run(fail())
    found = json.loads(jobs.run(dead_letter_report, "--groups", group, "--output", "json", "--to", str(folder)))
    assert (found["letters"], found["open"]) == (6, 6)
    assert [(row["originTopic"], row["cause"], row["attempts"], row["letters"]) for row in found["causes"]] == [
        (topic, "limit", 2, 5),
        (topic, "unknown", None, 1),
    ]
    assert sum(row["letters"] for row in found["ages"]) == 6
    assert {(row["kind"], row["value"], row["letters"]) for row in found["tops"]} == {
        ("key", "customer-0", 3),
        ("key", "customer-1", 3),
    }
    html = (folder / "report.html").read_text()
    assert "customer-1" in html and "<svg" in html and NETWORK.search(html) is None
    assert spark.read.parquet(str(folder / "letters")).count() == 6

    async def receive_them() -> None:
        dead = f"%DLQ%{group}"
        async with MessagingClient(topics.address) as client:
            await client.ack(group, dead, await client.receive_all(group, dead, 6))

    asyncio.run(receive_them())
    output = jobs.run(dead_letter_report, "--groups", group)
    assert "dead letters: 6; open: 0" in output
    assert "Consumers do not report to brokers why they failed." in output
    idle = topics.make_group("idle-group")
    assert "dead letters: 0; open: 0" in jobs.run(dead_letter_report, "--groups", idle)
    assert "dead letters: 6" in jobs.run(dead_letter_report)
    with pytest.raises(RefusedError, match="no-such-group"):
        jobs.run(dead_letter_report, "--groups", "no-such-group")


def test_an_audit_of_nothing_proves_nothing(topics: Topics, jobs: Jobs, tmp_path: Path) -> None:
    topic, group = topics.make("Silent", queues=1), topics.make_group("silent-group")
    words = ("--topics", topic, "--group", group, "--to", str(tmp_path))
    assert "NOTHING TO PROVE" in jobs.run(audit, *words)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ("replay", "--topic", "gone", "--into", "b", "--name", "c", "--archive", "/nowhere"),
            2,
            "there is no archive",
        ),
        (("archive", "--topics", "any", "--to", "{folder}", "--until-now"), 3, "has failed for 0 s (timeoutMs) with"),
    ],
)
def test_a_job_that_fails_says_why_in_one_line(words: Sequence[str], code: int, sentence: str, tmp_path: Path) -> None:
    given = [word.format(folder=tmp_path) for word in words]
    away = ("--endpoints", "127.0.0.1:1", "--option", "timeoutMs=100")
    done = subprocess.run(
        [sys.executable, "-c", "from popwheel_spark.jobs.command import main; main()", *given, *away],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("popwheel-spark: ") and sentence in last
