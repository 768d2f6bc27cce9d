"""The admin API's part on what is gone for good: `/api/v1/brokers/{group}/forget`."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from services.controller.broker_groups.decommission import Decommission
from services.controller.broker_groups.replicas import NUMBER_MAX
from services.controller.http.admin import Refusal


class Gone(BaseModel):
    """What is to be forgotten."""

    model_config = ConfigDict(extra="forbid", strict=True)

    replica: int | None = Field(default=None, ge=0, le=NUMBER_MAX, description="The whole group if left out.")
    word: str = Field(default="", description="For a whole group: that you know what may be lost; a refusal names it.")


class Left(BaseModel):
    """What is left of a broker group."""

    name: str
    replicas: list[int] = Field(description="The numbers of those that are not forgotten; none if the group is.")


def forget_router(decommission: Decommission) -> APIRouter:
    """The route of the admin API that removes.

    Args:
        decommission: does it.
    """
    router = APIRouter(prefix="/brokers", tags=["brokers"])

    @router.post("/{group}/forget", responses={400: _WORD, 404: _NOT_FOUND, 409: _NOT_NOW})
    async def forget(group: str, gone: Gone) -> Left:
        """Forget a replica, or a whole broker group, that will not come back."""
        if gone.replica is None:
            await decommission.of_group(group, gone.word)
            return Left(name=group, replicas=[])
        state = await decommission.of_replica(group, gone.replica)
        return Left(name=group, replicas=sorted(state.replicas))

    return router


_NOT_FOUND: dict[str, Any] = {"model": Refusal, "description": "There is no such broker group or replica."}
_NOT_NOW: dict[str, Any] = {"model": Refusal, "description": "It lives, or is needed; the message says why."}
_WORD: dict[str, Any] = {"model": Refusal, "description": "Not the right word; the message says what may be lost."}
