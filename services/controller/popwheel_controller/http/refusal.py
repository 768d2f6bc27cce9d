"""Refusals of the admin API, as its OpenAPI page describes them."""

from typing import Any

from pydantic import BaseModel, Field


class Refusal(BaseModel):
    """Reason for which a request was refused. `leader` is set only if another controller leads; it may be empty."""

    code: str = Field(description="Status by name: `TOPIC_NOT_FOUND`.")
    message: str = Field(description="Why, and what to do, in a sentence.")
    leader: str | None = Field(default=None, description="host:port of the controller that leads.")


def refusal(description: str) -> dict[str, Any]:
    """The description of a refusal, to be given with its status."""
    return {"model": Refusal, "description": description}
