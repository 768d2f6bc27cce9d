"""Refusals of the admin API, as its OpenAPI page describes them."""

from typing import Any

from pydantic import BaseModel


class Refusal(BaseModel):
    """Reason for which a request was refused. `leader` is set only if another controller leads; it may be empty."""

    code: str
    message: str
    leader: str | None = None


def refusal(description: str) -> dict[str, Any]:
    """The description of a refusal, to be given with its status."""
    return {"model": Refusal, "description": description}
