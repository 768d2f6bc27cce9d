"""Cost of an operation that may lose messages, shown to the operator before (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Possible loss of a requested operation.

    Args:
        replicas: numbers of those that would be removed, or of the one that would become the master.
        sentence: description of the possible loss.
        word: that the operator types as confirmation.
    """

    replicas: Sequence[int]
    sentence: str
    word: str
