"""Marks requests that this process makes to itself: they are part of one that the gate has let in already (pure)."""

from collections.abc import MutableMapping
from typing import Any, Final

_KEY: Final = "popwheel.within"


def mark_within(scope: MutableMapping[str, Any]) -> None:
    """Mark a request. Nothing that comes over a socket can have the mark."""
    scope[_KEY] = True


def is_within(scope: MutableMapping[str, Any]) -> bool:
    """Return whether a request was made by this process."""
    return scope.get(_KEY) is True
