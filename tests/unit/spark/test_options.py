"""The one table of options: what is made of it agrees with it."""

import pytest
from pyspark.sql.types import StructType

from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.jobs.cluster import Cluster
from popwheel_spark.options import OPTIONS, Kind, Side
from popwheel_spark.sink import write_options
from popwheel_spark.source import admin_reader, read_options
from popwheel_spark.source.readers import stream_reader

READS = {"endpoints": "h:1", "topic": "t"}


def taken(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The options that are asked for from now on, parse by parse."""
    found: list[set[str]] = []

    class Noting(GivenOptions):
        def check_all_taken(self) -> None:
            found.append(set(self._known))

    for module in (admin_reader, read_options, write_options):
        monkeypatch.setattr(module, "GivenOptions", Noting)
    return found


def test_each_side_asks_for_its_options_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = taken(monkeypatch)
    read_options.read_options(READS)
    read_options.read_options({"endpoints": "h:1", "table": "dlq", "group": "g"})
    for table in ("timers", "inflight"):
        admin_reader.admin_read_options(READS | {"table": table, "admin": "http://h:1"})
    write_options.write_options(READS)
    read, dead, timers, in_flight, sink = found

    def of(*sides: Side) -> set[str]:
        return {row.name for row in OPTIONS.values() if {Side.ALL, *sides} & set(row.sides)}

    assert read | dead == of(Side.READ, Side.BATCH, Side.STREAM)
    assert timers | in_flight == of(Side.LIST)
    assert sink == of(Side.SINK)


def test_defaults_are_of_their_kind() -> None:
    for row in OPTIONS.values():
        given = GivenOptions({})
        if row.kind is Kind.NUMBER:
            assert given.number(row.name) >= row.least
        elif row.kind is Kind.FLAG:
            given.flag(row.name)
        elif row.kind is Kind.CHOICE:
            assert given.choice(row.name) == row.default
        assert row.help and "\n" not in row.help


CREDENTIALS = {"accessKey": "spark", "secretKey": "long enough", "adminToken": "a-token-of-the-tests"}


def test_what_says_how_the_cluster_is_reached_goes_wherever_a_job_goes() -> None:
    cluster = Cluster({"ENDPOINTS": "h:1", "minPartitions": "4", "requestsAtOnce": "2"} | CREDENTIALS)
    for options in (cluster.of(), cluster.of(Side.SINK), cluster.of(Side.READ)):
        connection = ConnectionOptions.take(GivenOptions(options))
        assert (connection.credentials.access_key, connection.credentials.secret) == ("spark", "long enough")
        assert connection.token == "a-token-of-the-tests"
    assert set(cluster.of(Side.SINK)) == {"ENDPOINTS", "requestsAtOnce", *CREDENTIALS}
    assert set(cluster.of(Side.READ)) == {"ENDPOINTS", "minPartitions", *CREDENTIALS}
    assert set(cluster.of()) == {"ENDPOINTS", *CREDENTIALS}


def test_options_of_the_sink_are_for_jobs_that_send() -> None:
    cluster = Cluster({"endpoints": "h:1", "requestsAtOnce": "2"})
    cluster.check(sends=True)
    with pytest.raises(OptionError, match="option requestsatonce: there is no such option here"):
        cluster.check(sends=False)
    with pytest.raises(OptionError, match="'0' is not a whole number from 1 on"):
        Cluster({"endpoints": "h:1", "requestsAtOnce": "0"}).check(sends=True)


@pytest.mark.parametrize("name", ["endingOffsets", "endingtimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=r"^option ending\w*: a stream has no end"):
        stream_reader(READS | {name: "1"}, StructType())
    with pytest.raises(OptionError, match=r"^option ending\w*: a stream has no end"):
        Cluster({"endpoints": "h:1", name: "1"}).check_stream()
