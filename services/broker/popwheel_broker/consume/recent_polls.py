"""Clients that have popped recently, for an operator who is about to move a group under its consumers."""

from collections import OrderedDict
from typing import Final

from popwheel_common.contract.polls import WHILE_S

_WHILE_MS: Final = 1000 * WHILE_S
POLLS_MAX: Final = 10_000
"""Limit of clients of groups and topics that are remembered. Beyond it the first ones are forgotten."""


class RecentPolls:
    """The clients that have popped within the last moments."""

    def __init__(self) -> None:
        self._polls: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """Time of the last pop by group, topic and client. The oldest stands first."""

    def __len__(self) -> int:
        return len(self._polls)

    def record(self, group: str, topic: str, client_id: str, now_ms: int) -> None:
        """Remember a pop, and forget one that is too long ago."""
        polls = self._polls
        key = (group, topic, client_id)
        polls[key] = now_ms
        polls.move_to_end(key)
        oldest = next(iter(polls))
        if len(polls) > POLLS_MAX or polls[oldest] + _WHILE_MS < now_ms:
            del polls[oldest]

    def count(self, group: str, topic: str, now_ms: int) -> int:
        """Return the number of clients that have popped recently for a group in a topic."""
        found = 0
        for (of_group, of_topic, _), at_ms in reversed(self._polls.items()):
            if at_ms + _WHILE_MS < now_ms:
                break
            found += of_group == group and of_topic == topic
        return found
