"""The admin API's part on the cluster's processes: `/api/v1/cluster/status`."""

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from services.controller.cluster.processes import Member, Processes
from services.controller.cluster.state_keeper import StateKeeper
from services.controller.http.group_routes import BrokerGroupView, GroupViews

_TIMEOUT_S = 2.0  # well below that of `popwheel admin`
_REASON_LENGTH_MAX = 500


class ClusterProcess(BaseModel):
    """A broker or proxy."""

    kind: str = Field(description="broker or proxy.")
    name: str
    address: str = Field(description="host:port at which proxies reach a broker, clients a proxy.")
    pid: int | None = Field(description="Its number, if it runs on the controller's machine.")
    since_ms: int = Field(description="Since when it is registered, in milliseconds since 1970.")
    ready: bool
    reason: str = Field(description="Why it is not ready; empty if it is.")
    replica: int | None = Field(description="Number of a broker within its broker group, whose name it has.")
    role: str = Field(description="master or slave; empty of a proxy, and of a broker that was not given one.")


class ClusterStatus(BaseModel):
    """The cluster and its processes."""

    name: str
    version: int
    processes: list[ClusterProcess]
    broker_groups: list[BrokerGroupView]


def status_router(keeper: StateKeeper, processes: Processes, views: GroupViews) -> APIRouter:
    """The routes about processes.

    Args:
        keeper: knows the cluster.
        processes: who is there.
        views: shows broker groups.
    """
    router = APIRouter(prefix="/cluster", tags=["cluster"])

    @router.get("/status")
    async def cluster_status() -> ClusterStatus:
        """All brokers and proxies; each is asked whether it is ready."""
        import httpx

        state = keeper.state
        members = processes.members(views.registrations())
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
            reasons = await asyncio.gather(*(_reason(client, member) for member in members))
        return ClusterStatus(
            name=state.name,
            version=state.version,
            processes=[
                ClusterProcess(
                    kind=member.kind,
                    name=member.name,
                    address=member.address,
                    pid=member.pid,
                    since_ms=member.since_ms,
                    ready=not reason,
                    reason=reason,
                    replica=member.replica,
                    role=member.role,
                )
                for member, reason in zip(members, reasons, strict=True)
            ],
            broker_groups=views.all(),
        )

    return router


async def _reason(client: Any, member: Member) -> str:
    """Why a process is not ready; empty if it is. One that cannot be asked is taken for ready while it is connected."""
    import httpx

    if member.trouble or not member.health:
        return member.trouble
    try:
        answer = await client.get(f"http://{member.health}/readyz")
        reasons = answer.json()["reasons"]
        return "; ".join(map(str, reasons.values()))[:_REASON_LENGTH_MAX]
    except httpx.TimeoutException:
        return f"it did not say within {_TIMEOUT_S:.0f} s whether it is ready"
    except (httpx.HTTPError, ValueError, KeyError, AttributeError) as error:
        return f"it cannot be asked whether it is ready: {error}"[:_REASON_LENGTH_MAX]
