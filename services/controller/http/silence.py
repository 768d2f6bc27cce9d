"""How the admin API names the brokers that did not answer it."""

from collections.abc import Mapping

from pydantic import BaseModel


class Silence(BaseModel):
    """A broker that did not answer: what it knows is missing."""

    broker: str
    reason: str


def silences(missing: Mapping[str, str]) -> list[Silence]:
    """Those brokers, in the order of their names.

    Args:
        missing: why there is no answer, by the broker's name.
    """
    return [Silence(broker=name, reason=reason) for name, reason in missing.items()]
