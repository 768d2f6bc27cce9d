"""The states of a replica as its master has it, and of a wish to change the sync-state set.

Both tables are those by which `SyncStateSet` goes; the README prints them.
"""

from enum import Enum, auto
from typing import Final

from popwheel_common.transitions import Row, Transitions


class ReplicaState(Enum):
    """State of a replica; its master waits for it in all but the first."""

    FOLLOWS = auto()
    """It takes over the log."""
    JOINS = auto()
    """It is near enough: the watermarks stand still until it has reached them."""
    ASKED_IN = auto()
    """The controller was asked to take it into the set, and may have done so."""
    MEMBER = auto()
    """It is in the set, by the controller's word."""


class WishState(Enum):
    """State of the change that the controller was asked for last."""

    NONE = auto()
    """Nothing is asked for."""
    ASKED = auto()
    """The answer is awaited."""
    UNCERTAIN = auto()
    """There was no answer, or one that leaves open whether a controller has stored it, or ever will."""
    ASKED_AGAIN = auto()
    """Uncertain as UNCERTAIN, and the answer to a later try is awaited: a refusal says nothing of the earlier one."""


REPLICA_STATES: Final = Transitions(
    "replica of a sync-state set",
    Row(
        (ReplicaState.FOLLOWS,),
        ("connected", "progress"),
        ReplicaState.JOINS,
        "it is within `joining_bytes`, and may try",
    ),
    Row((ReplicaState.JOINS,), ("due",), ReplicaState.ASKED_IN, "it has all that is committed"),
    Row((ReplicaState.JOINS,), ("due",), ReplicaState.FOLLOWS, "`joining_ms_max` is over: it pauses"),
    Row((ReplicaState.JOINS,), ("disconnected",), ReplicaState.FOLLOWS, "its stream broke: it pauses"),
    Row(
        (ReplicaState.ASKED_IN,),
        ("failed",),
        ReplicaState.FOLLOWS,
        "certainly no controller has stored the wish, or ever will",
    ),
    Row((ReplicaState.ASKED_IN,), ("decided",), ReplicaState.FOLLOWS, "a newer state is without it"),
    Row(
        (ReplicaState.FOLLOWS, ReplicaState.JOINS, ReplicaState.ASKED_IN),
        ("decided",),
        ReplicaState.MEMBER,
        "a newer state has it",
    ),
    Row((ReplicaState.MEMBER,), ("decided",), ReplicaState.FOLLOWS, "a newer state is without it: it pauses"),
)

WISH_STATES: Final = Transitions(
    "wish for a sync-state set",
    Row((WishState.NONE,), ("due",), WishState.ASKED, "somebody is to come or to leave"),
    Row((WishState.ASKED,), ("failed",), WishState.NONE, "certainly no controller has stored it, or ever will"),
    Row((WishState.ASKED, WishState.ASKED_AGAIN), ("failed",), WishState.UNCERTAIN, "a controller may have stored it"),
    Row((WishState.UNCERTAIN,), ("due",), WishState.ASKED_AGAIN, "the pause is over"),
    Row(tuple(WishState), ("decided",), WishState.NONE, "a newer state: the wish is in it, or will never be stored"),
)
