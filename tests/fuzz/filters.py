"""Filters and properties that are in order and yet costly, or odd: for each other."""

import asyncio
import random
from collections.abc import Sequence

from google.protobuf.message import Message

from popwheel_common.filter.lexer import LENGTH_MAX, TOKENS_MAX
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_proxy.protocol.client_methods import SERVICE
from tests.fuzz.memory_socket import MemoryClient
from tests.fuzz.subject import FoundError, Subject
from tests.harness.client import duration, make_message

_NAMES = ("a", "b", "TAGS", "KEYS", "BORN_TIMESTAMP", "TIMER_DELIVER_MS", "UNIQ_KEY")
_SIGNS = ("=", "<>", "<", "<=", ">", ">=")
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH", "NOT CONTAINS", "NOT ENDSWITH")
_NUMBERS = ("0", "1", "7", "9223372036854775807", "1234567890123456789", "2.5", "9223372036854775807.5", "1e300", ".1")
_EXPONENTS_END = 10**20
_NESTING_MAX = 6
_TERMS_MAX = TOKENS_MAX // 4 - 1
_VALUE_LENGTH_MAX = 16_000
_TAGS_MAX = 2_000
_ANSWERED_S = 10.0


class Filters:
    """Makes expressions, and values of properties.

    Args:
        dice: decides.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def tags(self) -> str:
        """A filter of tags, now and then of very many."""
        count = self._dice.choice((1, 2, 5, _TAGS_MAX))
        return "||".join(f"{self._dice.choice('abc')}{number if number > 2 else ''}" for number in range(count))

    def sql(self) -> str:
        """An SQL92 filter: a tree of all that there is, or one comparison again and again, up to the limits."""
        dice = self._dice
        if dice.random() < 0.5:
            return self._tree(dice.randrange(_NESTING_MAX))
        term = self._comparison() if dice.random() < 0.5 else f"a<{dice.randrange(1000)}"
        count = min(dice.choice((2, 20, _TERMS_MAX)), LENGTH_MAX // (len(term) + 5) or 1)
        return dice.choice((" OR ", " AND ")).join([term] * count)

    def value(self) -> str:
        """A property's value: short, or long and made to keep whoever reads or searches it busy."""
        dice = self._dice
        length = dice.choice((dice.choice((0, 1, 18, 19, 20, 63, 64, 65, 1_000)), _VALUE_LENGTH_MAX))
        match dice.randrange(8):
            case 0:
                return dice.choice(("7", "x", "it's", "true", "NaN", "", *_NUMBERS))
            case 1:
                return dice.choice("19") * length + dice.choice(("", "x", ".", "e", "e5", "e99999"))
            case 2:
                return dice.choice(("-", "+", ".", "1e", "1.")) + "0" * length
            case 3:
                return "a" * length + dice.choice("ab")
            case 4:
                return ("ab" * length)[:length]
            case 5:
                return dice.choice("ü😀K\u0130") * (length // 4)
            case 6:
                return " " * length + "1"
        return dice.choice(_NUMBERS)

    def _tree(self, depth: int) -> str:
        dice = self._dice
        if not depth or dice.random() < 0.2:
            return self._comparison()
        inner = self._tree(depth - 1)
        match dice.randrange(4):
            case 0:
                return f"NOT ({inner})"
            case 1:
                return f"({inner}) IS {dice.choice(('', 'NOT '))}NULL"
            case 2:
                return f"({inner})"
        word = dice.choice((" AND ", " OR "))
        return word.join(f"({self._tree(depth - 1)})" for _ in range(dice.randrange(2, 4)))

    def _comparison(self) -> str:
        dice = self._dice
        name = dice.choice(_NAMES)
        match dice.randrange(6):
            case 0:
                return f"{name} {dice.choice(_SIGNS)} {dice.choice((*_NUMBERS, *_NAMES, self._small()))}"
            case 1:
                low, high = sorted(dice.sample(_NUMBERS, 2), key=float)
                return f"{name} {dice.choice(('', 'NOT '))}BETWEEN {low} AND {high}"
            case 2:
                return f"{name} {dice.choice(_SEARCHES)} '{self._needle()}'"
            case 3:
                return f"{name} {dice.choice(('', 'NOT '))}IN ('a', '{self._needle()}')"
            case 4:
                return f"{name} = {dice.choice(('TRUE', 'FALSE', '- 7', chr(39) + 'x' + chr(39)))}"
        return f"{name} IS NOT NULL"

    def _small(self) -> str:
        """A number near zero: its exponent has up to 20 digits, and none is large enough to hold it."""
        dice = self._dice
        return f"{dice.choice(('0', '1', '.5'))}e-{dice.randrange(dice.choice((1000, _EXPONENTS_END)))}"

    def _needle(self) -> str:
        dice = self._dice
        half = dice.choice((0, 1, 2, 49, 200, 900))
        return "a" * half + dice.choice(("b", "a", "ü", "''")) + "a" * half


class FilterFuzzer:
    """Polls with filters, and sends what they have to look at: before, while and after the polls wait.

    Args:
        subject: what is called.
        dice: decides.
    """

    def __init__(self, subject: Subject, dice: random.Random) -> None:
        self._subject = subject
        self._dice = dice
        self._filters = Filters(dice)
        self.last = "nothing yet"
        """The last filter or value, for the report of what was found."""

    async def run(self, topics: Sequence[str], groups: Sequence[str], calls: int) -> None:
        """Make a number of calls at once.

        Raises:
            FoundError: one was not answered, or a turn of the loop was too long.
        """
        client = MemoryClient(self._subject.server)
        await client.begin()
        headers = self._subject.headers("fuzz-filters")
        streams = []
        for _ in range(calls):
            topic = self._dice.choice(topics)
            if self._dice.random() < 0.5:
                name, request = "SendMessage", self._send(topic)
            else:
                name, request = "ReceiveMessage", self._receive(topic, self._dice.choice(groups))
            stream_id = await client.open(f"/{SERVICE}/{name}", headers, b"5S")
            await client.send(stream_id, request.SerializeToString())
            streams.append(stream_id)
            self._subject.check_turns()
        async with asyncio.timeout(_ANSWERED_S):
            for stream_id in streams:
                answer = await client.answer(stream_id)
                if answer.grpc_status:
                    raise FoundError(f"{answer.grpc_status}: {answer.grpc_message}")
        self._subject.check_turns()
        await client.gone()

    def _send(self, topic: str) -> Message:
        value = self._filters.value()
        self.last = f"a = {value!r}"
        messages = []
        for _ in range(self._dice.choice((1, 8))):
            made = make_message(topic, b"body", tag="a")
            made.user_properties["a"] = value
            messages.append(made)
        return pb.SendMessageRequest(messages=messages)

    def _receive(self, topic: str, group: str) -> Message:
        text = self._filters.sql()
        self.last = text
        return pb.ReceiveMessageRequest(
            group=d.Resource(name=group),
            message_queue=d.MessageQueue(topic=d.Resource(name=topic), id=-1),
            filter_expression=d.FilterExpression(type=d.SQL, expression=text),
            batch_size=4,
            invisible_duration=duration(3600),
            long_polling_timeout=duration(self._dice.choice((0, 0.01))),
        )
