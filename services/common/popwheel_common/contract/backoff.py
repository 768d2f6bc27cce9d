"""Backoff of a group's policy: the time before a message that a consumer failed on is redelivered."""

from collections.abc import Sequence
from typing import Final

from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff, Group

_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60 * _SECOND_MS

RETRY_LADDER_MS: Final = (
    *(seconds * _SECOND_MS for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""The delays of RocketMQ's retry levels: what a group has that says nothing else."""


def wait_ms(group: Group | None, attempt: int) -> int:
    """Return the wait after a failed attempt, in milliseconds.

    Args:
        group: whose policy counts; None where it is not known: then it is the default one.
        attempt: which one failed, from 1 on.
    """
    attempt = max(1, attempt)
    if group is not None and group.HasField("exponential_backoff"):
        return _grown_ms(group.exponential_backoff, attempt)
    steps = steps_ms(group)
    return steps[min(attempt, len(steps)) - 1]


def steps_ms(group: Group | None) -> Sequence[int]:
    """Return the waits of a group that lists them, after its 1st, 2nd ... failed attempt, in milliseconds."""
    return RETRY_LADDER_MS if group is None or not group.backoff_ms else group.backoff_ms


def _grown_ms(policy: ExponentialBackoff, attempt: int) -> int:
    try:
        grown = policy.initial_ms * policy.multiplier ** (attempt - 1)
    except OverflowError:
        return policy.max_ms
    return int(min(grown, policy.max_ms))
