"""Options for sending rows, of `df.write` and `df.writeStream`."""

from collections.abc import Mapping
from dataclasses import dataclass

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import SPARKS_OWN, GivenOptions

_WRITE_ID_LENGTH_MAX = 200


@dataclass(frozen=True)
class WriteOptions:
    """Options of writes, of batches and streams.

    Args:
        connection: where the cluster is.
        topic: of all rows; empty: the column `topic` says it.
        requests_at_once: limit of one task's requests in flight; two with a message group in common are never in
            flight together.
        write_id: what the keys of all rows begin with; empty: with something new.
        of_table: rows go to a SQL table, and have the columns that only reads have, too.
    """

    connection: ConnectionOptions
    topic: str
    requests_at_once: int
    write_id: str
    of_table: bool = False


def write_options(options: Mapping[str, str], *, of_table: bool = False) -> WriteOptions:
    """Parse all options of a write.

    Args:
        options: as Spark hands them over.
        of_table: as in `WriteOptions`.

    Raises:
        OptionError: one is unknown, missing or impossible.
    """
    given = GivenOptions(options, SPARKS_OWN)
    parsed = WriteOptions(
        ConnectionOptions.take(given),
        given.text("topic"),
        given.number("requestsAtOnce"),
        given.text("writeId"),
        of_table,
    )
    given.check_all_taken()
    if len(parsed.write_id) > _WRITE_ID_LENGTH_MAX or not parsed.write_id.isprintable():
        raise OptionError("writeId", f"at most {_WRITE_ID_LENGTH_MAX} characters without line breaks and the like")
    if parsed.topic:
        try:
            names.topic(parsed.topic, names.Use.SEND)
        except StatusError as error:
            raise OptionError("topic", error.message) from None
    return parsed
