"""Positions in queues, and their JSON: `{"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}` (pure)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

EARLIEST: Final = -2
"""Offset in JSON of the first message that the queue still has (earliest)."""
LATEST: Final = -1
"""Offset in JSON behind the last message (latest)."""
START: Final = 0
"""Offset of a queue that has never had a message, as far as is known.

Its first message may get a higher offset, as new queues continue behind those of deleted topics. The offset is recorded
when the first messages are planned, so that a later loss of some of them is seen (`nested`).
"""


class Queue(NamedTuple):
    """A queue of a topic at a broker group."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"queue {self.number} of {self.topic} at {self.broker}"


@dataclass(frozen=True)
class Instant:
    """The first message that was stored then or later.

    Args:
        ms: since 1970.
    """

    ms: int


Mark = int | Instant
"""A place in one queue: an offset, `EARLIEST`, `LATEST` or a time."""

Offsets = dict[Queue, int]
"""Offset of the next message to be read, by queue."""


def nested(offsets: Mapping[Queue, int], beginnings: Mapping[Queue, int] | None = None) -> dict[str, Any]:
    """Return offsets for JSON, always in the same order, as Spark compares the texts.

    Args:
        offsets: of the end of a micro-batch, say.
        beginnings: where queues begin in it that were at `START` before: `[BEGINNING, OFFSET]` instead of an offset.
    """
    result: dict[str, Any] = {}
    for queue in sorted(offsets):
        begin = (beginnings or {}).get(queue)
        place = offsets[queue] if begin is None else [begin, offsets[queue]]
        result.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = place
    return result


def flat(tree: Any, beginnings: Offsets | None = None) -> Offsets:
    """Return the offsets of a JSON value.

    Args:
        tree: as `nested` makes it.
        beginnings: are added to these; None: there may be none.

    Raises:
        ValueError: it is of another form; the text says where.
    """
    if not isinstance(tree, dict):
        raise ValueError('offsets are {"TOPIC": {"BROKER": {"QUEUE": OFFSET}}}')
    result: Offsets = {}
    for topic, brokers in tree.items():
        if not isinstance(brokers, dict):
            raise ValueError(f"under the topic {topic!r} there must be brokers: {{BROKER: {{QUEUE: OFFSET}}}}")
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(f"under {topic!r}, {broker!r} there must be queues: {{QUEUE: OFFSET}}")
            for number, offset in queues.items():
                if not (number.isascii() and number.isdigit()):
                    raise ValueError(f"{number!r} under {topic!r}, {broker!r} is not the number of a queue")
                queue = Queue(topic, broker, int(number))
                if beginnings is not None and isinstance(offset, list):
                    beginnings[queue], offset = offset
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                    raise ValueError(f"{offset!r} is not an offset: a number from 0 on, -1 (latest) or -2 (earliest)")
                result[queue] = offset
    return result


def parse(text: str) -> Offsets:
    """Return the offsets of a JSON text.

    Raises:
        ValueError: it is not JSON, or of another form.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    return flat(tree)
