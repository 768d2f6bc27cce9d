"""The command `popwheel-spark`: its jobs, its flags, and what it says to wrong ones."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from popwheel_spark.errors import OptionError
from popwheel_spark.jobs.archive import archive
from popwheel_spark.jobs.cluster import Cluster, Window, cluster_flags, window_flags
from popwheel_spark.jobs.command import group
from popwheel_spark.jobs.outcome import sentence
from popwheel_spark.jobs.time_flags import Moment, Span


def test_each_job_says_what_it_is_for() -> None:
    result = CliRunner().invoke(group(), ["--help"])
    assert result.exit_code == 0
    for name, job in group().commands.items():
        assert re_flow(job.get_short_help_str(45)) in re_flow(result.output)
        helped = CliRunner().invoke(group(), [name, "--help"])
        assert helped.exit_code == 0, helped.output


@pytest.mark.parametrize("name", group().commands)
def test_each_job_has_an_example_that_it_understands(name: str) -> None:
    job = group().commands[name]
    program, first, *words = shlex.split((job.epilog or "").removeprefix("Example: "))
    assert (program, first) == ("popwheel-spark", name)
    job.make_context(name, words)


@pytest.mark.parametrize("name", group().commands)
def test_each_flag_of_a_job_says_what_happens_without_it(name: str) -> None:
    for flag in group().commands[name].params:
        assert isinstance(flag, click.Option) and flag.help
        said = flag.required or flag.is_flag or flag.multiple or flag.show_default
        assert said or flag.name in ("topics", "topic_pattern", "sent", "deliveries"), flag.name


def re_flow(text: str) -> str:
    return " ".join(text.removesuffix("...").split())


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1000", 1000), ("1970-01-01T00:00:02Z", 2000), ("1970-01-01T01:00:02.5+01:00", 2500)],
)
def test_times(text: str, ms: int) -> None:
    assert Moment().convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["yesterday", "2026-01-31T12:00:00", "-1"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time"):
        Moment().convert(text, None, None)


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("2h", 7_200_000), ("1d", 86_400_000)])
def test_spans(text: str, ms: int) -> None:
    assert Span().convert(text, None, None) == ms


@pytest.mark.parametrize("text", ["0s", "90", "1w", ""])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no span"):
        Span().convert(text, None, None)


def test_a_window_is_that_of_the_data_source() -> None:
    assert Window().options == {}
    assert Window(1, 2).options == {
        "startingTimestamp": "1",
        "startingTimestampStrategy": "latest",
        "endingTimestamp": "2",
    }


def test_a_window_is_said_by_flags() -> None:
    seen: list[Window] = []

    @click.command()
    @window_flags
    @cluster_flags
    def command(cluster: Cluster, window: Window) -> None:
        seen.append(window)

    for words in ((), ("--from", "1000", "--until", "1970-01-01T00:00:02Z")):
        assert CliRunner().invoke(command, words).exit_code == 0
    assert seen == [Window(), Window(1000, 2000)]


def options_of(*words: str) -> dict[str, str]:
    seen: list[Cluster] = []

    @click.command()
    @cluster_flags
    def command(cluster: Cluster) -> None:
        seen.append(cluster)

    CliRunner().invoke(command, words, catch_exceptions=False)
    return dict(seen[0].options)


def test_flags_of_the_cluster_are_options_of_the_data_source(tmp_path: Path) -> None:
    here = {"endpoints": "127.0.0.1:8081", "admin": "http://127.0.0.1:8080"}
    assert options_of() == here
    file = tmp_path / "ca.pem"
    file.touch()
    assert options_of("--tls", "--tls-ca-file", str(file), "--option", "minPartitions=4") == here | {
        "tls": "true",
        "tlsCaFile": str(file),
        "minPartitions": "4",
    }
    credentials = ("--access-key", "spark", "--secret", "long enough", "--token", "a-token-of-the-tests")
    assert options_of(*credentials) == here | {
        "accessKey": "spark",
        "secretKey": "long enough",
        "adminToken": "a-token-of-the-tests",
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--option", "minPartition=4"), "option minpartition: there is no such option here; did you mean minPart"),
        (("--option", "minPartitions=many"), "option minPartitions: 'many' is not a whole number"),
        (("--option", "topicPattern=a"), "option topicPattern: the flags of the job choose what is read"),
        (("--endpoints", "here"), "option endpoints: 'here' is not HOST:PORT"),
        (("--tls-ca-file", "ca.pem"), "option tlsCaFile: it has no meaning without tls=true"),
    ],
)
def test_what_is_wrong_is_reported_before_spark_starts(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        options_of(*words)


def test_what_a_job_says_itself_is_not_said_twice() -> None:
    cluster = Cluster({"endpoints": "h:1", "Columns": "body"})
    with pytest.raises(OptionError, match="option Columns: this job sets it itself"):
        cluster.table(None, columns="messageId")  # type: ignore[arg-type]


def test_of_what_spark_has_wrapped_the_sentence_is_reported() -> None:
    wrapped = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when reading:\nTraceback (most recent call last):\n"
        "  raise OptionError\npopwheel_spark.errors.OptionError: option topic: there is no topic t\n\nat org.apache"
    )
    assert sentence(wrapped) == "option topic: there is no topic t"
    assert sentence("[PATH_NOT_FOUND] x") == "[PATH_NOT_FOUND] x"


def test_one_says_what_to_archive() -> None:
    for words in ([], ["--topics", "a", "--topic-pattern", "a.*"]):
        result = CliRunner().invoke(archive, [*words, "--to", "x"])
        assert "one of --topics and --topic-pattern" in result.output
