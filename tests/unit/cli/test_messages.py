"""Messages made for a command line, and shown on it; queues read in order of time."""

import io
from collections.abc import Sequence
from typing import Any, cast

import pytest
from click.testing import CliRunner

from popwheel_cli.admin import message_send
from popwheel_cli.errors import CommandError
from popwheel_cli.main import main
from popwheel_cli.messages import queue_reader
from popwheel_cli.messages.client import MessageClient, Pulled
from popwheel_cli.messages.message_draft import MessageDraft
from popwheel_cli.messages.queue_reader import Place, Tail, Wanted, browse
from popwheel_cli.messages.shown import line_of, row_of, text_of
from popwheel_common.contract.message_id import message_ids
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, QueryOffsetPolicy


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, d.NORMAL),
        ({"due_ms": 2_000}, d.DELAY),
        ({"group": "g"}, d.FIFO),
        ({"priority": 0}, d.PRIORITY),
        ({"lite_topic": "l"}, d.LITE),
    ],
)
def test_a_message_is_of_the_type_that_its_options_say(fields: dict[str, Any], kind: int) -> None:
    draft = MessageDraft("orders", {"a": "b"}, ("k",), "t", **fields)
    made = draft.message(b"body", "id", 1_000, "host")
    system = made.system_properties
    assert (made.topic.name, made.body, dict(made.user_properties)) == ("orders", b"body", {"a": "b"})
    assert (system.message_type, system.message_id, list(system.keys), system.tag) == (kind, "id", ["k"], "t")
    assert system.delivery_timestamp.ToMilliseconds() == fields.get("due_ms", 0)
    assert (system.message_group, system.lite_topic) == (fields.get("group", ""), fields.get("lite_topic", ""))


def test_a_message_is_of_one_type() -> None:
    with pytest.raises(CommandError, match="--delay or --at and --group"):
        MessageDraft("orders", due_ms=1, group="g")


def test_ids_are_like_those_of_official_clients() -> None:
    ids = message_ids(1_609_459_201_000, "0123456789abcdef")
    assert [next(ids), next(ids)] == [f"010123456789ABCDEF00000001{number:08X}" for number in range(2)]


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (b"", []),
        (b"a\r\n\nb\nc", [[b"a", b"b"], [b"c"]]),
        (b"x" * 200_000 + b"\ny\n", [[b"x" * 200_000, b"y"]]),
        (b"z\n" * 150, [[b"z"] * 100, [b"z"] * 50]),
    ],
)
def test_lines_are_bodies(data: bytes, bodies: list[list[bytes]]) -> None:
    assert list(message_send._lines_of(io.BufferedReader(cast("Any", io.BytesIO(data))))) == bodies


def test_what_is_too_long_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_send, "BODY_BYTES_MAX", 10)
    with pytest.raises(CommandError, match="at most 10 bytes"):
        message_send._whole(io.BytesIO(b"x" * 11))
    with pytest.raises(CommandError, match="a line has more than 10 bytes"):
        list(message_send._lines_of(io.BufferedReader(cast("Any", io.BytesIO(b"x" * 11)))))


def stored(body: bytes, offset: int = 0, at_ms: int = 0, queue_id: int = 0, key: str = "k") -> d.Message:
    message = MessageDraft("orders", keys=(key,)).message(body, f"id{body.decode('latin-1')}", 0, "host")
    system = message.system_properties
    system.store_host, system.queue_id, system.queue_offset = "b", queue_id, offset
    system.store_timestamp.FromMilliseconds(at_ms)
    return message


def test_bodies_are_shown_as_text_where_they_are_text() -> None:
    assert row_of(stored("größer\n".encode()))["body"] == "größer\n"
    assert row_of(stored(b"\xff"))["body_base64"] == "/w=="
    assert (text_of(b"a\0"), text_of(b"\xff"), text_of(b"")) == (None, None, "")


def test_a_line_fits_the_terminal_and_steers_it_not() -> None:
    line = line_of(stored(b"\x1b[31m" + b"x" * 200), "now", 99)
    assert (len(line), line[-1], "\x1b" in line, "\\x1b[31m" in line) == (99, "…", False, True)
    assert line_of(stored(b"\xff"), "now", None).endswith("(1 bytes)")
    assert line_of(stored(b"a\nb"), "now", None).endswith(r"a\nb")


class FakeClient:
    """Queues in memory, two messages at each pull.

    Args:
        queues: messages by queue, their offsets in a row.
    """

    def __init__(self, *queues: list[d.Message]) -> None:
        self.by_queue = list(queues)
        self.refusals: list[Exception] = []
        self.pulled = 0

    async def queues(self, topic: str) -> list[d.MessageQueue]:
        return [d.MessageQueue(id=number, broker=d.Broker(name="b")) for number in range(len(self.by_queue))]

    async def offset(self, queue: d.MessageQueue, policy: int, time_ms: int = 0) -> int:
        messages = self.by_queue[queue.id]
        first = messages[0].system_properties.queue_offset if messages else 0
        if policy == QueryOffsetPolicy.BEGINNING:
            return first
        later = [one for one in messages if one.system_properties.store_timestamp.ToMilliseconds() >= time_ms]
        return first + len(messages) - (len(later) if policy == QueryOffsetPolicy.TIMESTAMP else 0)

    async def pull(self, queue: d.MessageQueue, offset: int, tags: str, wait_s: float) -> Pulled:
        self.pulled += 1
        if self.refusals:
            raise self.refusals.pop()
        found = [one for one in self.by_queue[queue.id] if one.system_properties.queue_offset >= offset][:2]
        if wait_s and not found and self.pulled > 3:
            self.by_queue[queue.id].append(stored(b"new", offset))
        return Pulled(found, offset + len(found))


def queue_of(queue_id: int, first: int, *times_ms: int) -> list[d.Message]:
    return [
        stored(b"%d" % at_ms, first + number, at_ms, queue_id, key=f"k{at_ms % 2}")
        for number, at_ms in enumerate(times_ms)
    ]


async def browsed(place: Place, limit: int = 100, wanted: Wanted | None = None) -> Sequence[int]:
    client = cast("MessageClient", FakeClient(queue_of(0, 5, 1, 4, 6, 7), [], queue_of(2, 0, 2, 3, 5)))
    return [int(message.body) async for message in browse(client, wanted or Wanted("orders"), place, limit)]


async def test_queues_are_merged_by_time() -> None:
    assert await browsed(Place("earliest")) == [1, 2, 3, 4, 5, 6, 7]
    assert await browsed(Place("earliest"), limit=3) == [1, 2, 3]
    assert await browsed(Place("latest"), limit=3) == [5, 6, 7]
    assert await browsed(Place("time", 4)) == [4, 5, 6, 7]
    assert await browsed(Place("offset", 2)) == [1, 4, 5, 6, 7]  # the first queue begins at 5
    assert await browsed(Place("offset", 99)) == []
    assert await browsed(Place("earliest"), wanted=Wanted("orders", key="k0")) == [2, 4, 6]
    assert await browsed(Place("earliest"), wanted=Wanted("orders", queue="2")) == [2, 3, 5]
    assert await browsed(Place("earliest"), wanted=Wanted("orders", queue="b/0")) == [1, 4, 6, 7]
    with pytest.raises(CommandError, match="no queue 9"):
        await browsed(Place("earliest"), wanted=Wanted("orders", queue="9"))


async def test_a_tail_begins_at_the_end_and_outlives_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "_PAUSE_S", 0.001)
    fake = FakeClient(queue_of(0, 5, 1, 2))
    fake.refusals = [StatusError(Code.HA_NOT_AVAILABLE, "no master")] * 2
    seen: list[bytes] = []
    begun: list[bool] = []

    def show(message: d.Message) -> bool:
        seen.append(message.body)
        return len(seen) < 2

    await Tail(cast("MessageClient", fake), Wanted("orders"), show, lambda: begun.append(True)).run()
    assert (seen, begun) == ([b"new", b"new"], [True])


async def test_a_tail_ends_where_it_is_refused() -> None:
    fake = FakeClient(queue_of(0, 5, 1, 2))
    fake.refusals = [StatusError(Code.TOPIC_NOT_FOUND, "gone")]
    with pytest.raises(StatusError, match="gone"):
        await Tail(cast("MessageClient", fake), Wanted("orders"), lambda _: True, lambda: None).run()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("send", "Orders", "x", "--file", "y"), "choose one of BODY and --file"),
        (("send", "Orders", "x", "--property", "=x"), "NAME=VALUE"),
        (("send", "Orders", "x", "--delay", "0s"), "not a span of time"),
        (("receive", "Orders", "--group", "g", "--count", "0"), "0 is not in the range"),
        (("browse", "Orders", "--from", "offset:x"), "earliest, latest"),
        (("browse", "Orders", "--limit", "10001"), "10001 is not in the range"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_asked(words: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(main, ["--server", "http://127.0.0.1:1", "message", *words])
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, says in line) == (2, True), line


def test_a_topic_of_too_many_queues_is_read_one_by_one() -> None:
    queues = [d.MessageQueue(id=number, broker=d.Broker(name="b")) for number in range(1_025)]
    with pytest.raises(CommandError, match="choose one with --queue"):
        Wanted("orders").of(queues)
    assert [one.id for one in Wanted("orders", queue="7").of(queues)] == [7]
