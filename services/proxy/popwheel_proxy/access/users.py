"""Users and their rights (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Right(StrEnum):
    """Right on a topic or a group."""

    PUBLISH = "publish"
    """Send to a topic."""
    SUBSCRIBE = "subscribe"
    """Receive from a topic, in a group."""
    ADMIN = "admin"
    """Every right, and creation on first use."""


class Sort(StrEnum):
    """Sort of thing that a rule is about."""

    TOPIC = "topic"
    GROUP = "group"


class NameSet(NamedTuple):
    """Set of names given by patterns.

    Args:
        exact: names.
        prefixes: with which names begin; the empty one stands for all.
    """

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    def covers(self, name: str) -> bool:
        """Return whether one of the patterns matches a name."""
        return name in self.exact or name.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class User:
    """User that may call.

    Args:
        access_key: the name.
        secret: with which its calls are signed.
        allowed: the names of each right, those of ADMIN included in the others'; no entry for a right to none.
    """

    access_key: str
    secret: bytes = field(repr=False)
    allowed: Mapping[tuple[Sort, Right], NameSet]

    def may(self, right: Right, sort: Sort, name: str) -> bool:
        """Return whether the user has a right on a topic or a group."""
        names = self.allowed.get((sort, right))
        return names is not None and names.covers(name)


Users = Mapping[str, User]
"""Users by access key."""
