"""Proxies that wait for the same: as many of them are told as messages come, the others only if that did not help.

Were all told of each message, all would pop and all but one in vain. So members are told in turn. One without a poll
that waits hands the word on, to the next. A member that hangs or dies says nothing; so a while later, if older messages
than those of that while still wait, all are told. Each message is thus either taken, or known to all members after two
such whiles at the latest while no others come; while others do, each of them has a member pop, which brings the truth.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.broker.notification import Interest

WHILE_S = 0.02
"""How long those who were told have for taking the messages."""

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds."""


class Audience:
    """The interests of several proxies in the same topic, group and filter.

    Args:
        topic: what they wait for.
        wanted: tag hashes, None for all.
        later: how the while is waited for; None: all are told of everything at once.
        waiting: how many messages wait for an interest.

    Attributes:
        members: the next to be told first.
    """

    __slots__ = ("_fresh", "_hand_ons", "_is_open", "_later", "_waiting", "members", "topic", "wanted")

    def __init__(
        self,
        topic: str,
        wanted: frozenset[int] | None,
        later: Later | None,
        waiting: "Callable[[Interest], int]",
    ) -> None:
        self.topic = topic
        self.wanted = wanted
        self.members: list[Interest] = []
        self._later = later
        self._waiting = waiting
        self._is_open = False
        self._fresh = 0
        self._hand_ons = 0

    def tell(self, messages: int) -> None:
        """Messages have come: tell as many members, in turn, and look later whether they were taken."""
        count = len(self.members)
        if self._later is None or count == 1:
            for interest in self.members:
                interest.subscriber.tell(interest.id, messages)
            return
        told = min(count, messages)
        share, more = divmod(messages, told)
        for index in range(told):
            self._tell_next(share + (index < more))
        self._fresh += messages
        self._hand_ons = count - 1
        self._open()

    def hand_on(self) -> None:
        """A member has no poll for what it was told: tell the next, unless the word has gone round."""
        if self._hand_ons and self.members and self._waiting(self.members[0]):
            self._hand_ons -= 1
            self._tell_next(1)

    def _tell_next(self, messages: int) -> None:
        interest = self.members.pop(0)
        self.members.append(interest)
        interest.subscriber.tell(interest.id, messages)

    def _open(self) -> None:
        if not self._is_open and self._later is not None:
            self._is_open = True
            self._later(WHILE_S, self._look)

    def _look(self) -> None:
        """The while is over."""
        self._is_open = False
        fresh, self._fresh = self._fresh, 0
        waiting = self._waiting(self.members[0]) if self.members else 0
        if waiting > fresh:
            self._hand_ons = 0
            for interest in self.members:
                interest.subscriber.tell(interest.id, waiting)
        elif waiting:
            self._open()
