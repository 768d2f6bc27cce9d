"""Settings of a process for display, without secrets (pure)."""

import re
from typing import Any, Final

from pydantic import BaseModel

HIDDEN: Final = "(set, not shown)"
_SECRET_NAME: Final = re.compile(r"secret|token|password|passphrase|credential|(^|[_.])keys?($|[_.])", re.IGNORECASE)
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in an address."""


def shown_settings(options: BaseModel) -> dict[str, Any]:
    """Return all settings of a model with their values. A value whose name says that it is secret is replaced, also
    where it is but the name of a file; so are a user and a password in an address.
    """
    return {name: _shown(name, value) for name, value in options.model_dump(mode="json").items()}


def without_passwords(text: str) -> str:
    """Return a text in which no address has a user and a password."""
    return _IN_ADDRESS.sub("***", text)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {str(each): _shown(f"{name}.{each}", inner) for each, inner in value.items()}
    if isinstance(value, list):
        return [_shown(name, each) for each in value]
    if isinstance(value, str) and value and _SECRET_NAME.search(name):
        return HIDDEN
    return without_passwords(value) if isinstance(value, str) else value
