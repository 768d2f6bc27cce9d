"""How the admin API refuses, as its OpenAPI page describes it."""

from typing import Any

from pydantic import BaseModel


class Refusal(BaseModel):
    """Why a request was refused; `leader` is there, perhaps empty, if only because another controller leads."""

    code: str
    message: str
    leader: str | None = None


def refusal(description: str) -> dict[str, Any]:
    """The description of a refusal, to be given with its status."""
    return {"model": Refusal, "description": description}
