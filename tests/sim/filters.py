"""SQL92 filters that groups use, each beside what it means, and the properties that they ask for."""

import random
from collections.abc import Callable

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d

FILTERING = "SQL92 filters"
"""One subscription is by such a filter. It is drawn by itself, and goes on all the time."""
SHARE = 0.2

_KINDS = ("alpha", "beta", "it's")
_PROPERTIES_MAX = 100
"""So that those of a message at the edge of what is taken do not become too many."""


def _number(message: d.Message) -> float | None:
    text = message.user_properties.get("n", "many")
    return None if text == "many" else float(text)


def _kind(message: d.Message) -> str:
    return message.user_properties.get("kind", "")


CONDITIONS: dict[str, Callable[[d.Message], bool]] = {
    "n >= 5": lambda message: (_number(message) or 0) >= 5,
    "n = 3": lambda message: _number(message) == 3,
    "n BETWEEN 2 AND 4.5 AND kind <> 'beta'": lambda message: (
        2 <= (_number(message) or 0) <= 4.5 and _kind(message) not in ("beta", "")
    ),
    "kind IN ('beta', 'it''s')": lambda message: _kind(message) in ("beta", "it's"),
    "kind IS NULL OR TAGS = 'red'": lambda message: not _kind(message) or message.system_properties.tag == "red",
    "NOT (kind STARTSWITH 'al') AND UNIQ_KEY CONTAINS '-'": lambda message: not _kind(message).startswith("al"),
}
"""Expression -> whether a message passes, found out in another way."""


def describe(message: d.Message, chance: random.Random) -> None:
    """Give a message properties that the conditions ask for."""
    number, kind = chance.choice((*range(10), 4.5, None, "many")), chance.choice((*_KINDS, None))
    if len(message.user_properties) > _PROPERTIES_MAX:
        return
    if number is not None:
        message.user_properties["n"] = str(number)
    if kind is not None:
        message.user_properties["kind"] = kind
