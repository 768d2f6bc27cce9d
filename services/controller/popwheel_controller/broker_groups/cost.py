"""Cost of an operation that may lose messages, as an operator is shown it before (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """A loss that may come of what was asked for.

    Args:
        replicas: numbers of those that would be forgotten, or of the one that would become the master.
        sentence: says what may be lost.
        word: an operator says it to show that this is known.
    """

    replicas: Sequence[int]
    sentence: str
    word: str
