"""Caller of the admin API, and its rights (pure)."""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

_KEY: Final = "caller"


class Role(IntEnum):
    """The role of a token or user: each may do what those before it may."""

    NONE = 0
    """Nobody is known yet: a browser that asks for a page of the console, which looks after that itself."""
    READ = 1
    OPERATE = 2
    ADMINISTER = 3


class Rights(NamedTuple):
    """Rights of a caller.

    Args:
        role: of the requests.
        sees_data: may see the bodies and properties of messages.
    """

    role: Role
    sees_data: bool


RIGHTS: Final = {
    "read": Rights(Role.READ, False),
    "read+bodies": Rights(Role.READ, True),
    "operate": Rights(Role.OPERATE, False),
    "operate+bodies": Rights(Role.OPERATE, True),
    "administer": Rights(Role.ADMINISTER, True),
}
"""Rights by their names in files and options."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Pattern of the names of tokens and users."""
RESERVED_NAMES: Final = frozenset(("controller", "resource", "somebody", "token"))
"""Names by which lines of the log of changes say who it was where nobody showed who he is."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of the admin API.

    Args:
        name: of the token or user; the address where neither is demanded.
        role: what it may do.
        sees_data: may see the bodies and properties of messages.
        address: where the call comes from, without the port; empty if that is not known.
    """

    name: str
    role: Role
    sees_data: bool
    address: str


def anybody(address: str) -> Caller:
    """Return the caller where no token is required: everybody may do everything."""
    return Caller(address or "somebody", Role.ADMINISTER, True, address)


def nobody(address: str) -> Caller:
    """Return the caller of a page of the console, which authenticates users itself."""
    return Caller("", Role.NONE, False, address)


def set_caller(state: MutableMapping[str, Any], caller: Caller) -> None:
    """Set the caller in the state of a request."""
    state[_KEY] = caller


def caller_in(state: MutableMapping[str, Any]) -> Caller:
    """Return the caller in the state of a request; where nothing stands before the application, it is anybody."""
    found = state.get(_KEY)
    return found if isinstance(found, Caller) else anybody("")
