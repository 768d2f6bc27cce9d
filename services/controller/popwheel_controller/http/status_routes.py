"""Routes of the admin API about the cluster's processes: `/api/v1/cluster/status`."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from popwheel_common.web.routes import Routes
from popwheel_common.web.shared_work import SharedWork
from popwheel_controller.cluster.processes import Member, Processes
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http.group_routes import BrokerGroupView, GroupViews

_TIMEOUT_S = 2.0  # well below that of `popwheel admin`
_AT_ONCE = 32
_REASON_LENGTH_MAX = 500


class ClusterProcess(BaseModel):
    """A broker or proxy."""

    kind: str = Field(description="broker or proxy.")
    name: str = Field(description="Name of the broker group or proxy.")
    address: str = Field(description="host:port at which proxies reach a broker, clients a proxy.")
    pid: int | None = Field(description="Its number, if it runs on the controller's machine.")
    since_ms: int = Field(description="Since when it is registered, in milliseconds since 1970.")
    ready: bool = Field(description="The process can serve.")
    reason: str = Field(description="Why it is not ready; empty if it is.")
    replica: int | None = Field(description="Number of a broker within its broker group, whose name it has.")
    role: str = Field(description="master or slave; empty of a proxy, and of a broker without a role.")


class ClusterStatus(BaseModel):
    """The cluster and its processes."""

    name: str = Field(description="Name of the cluster.")
    version: int = Field(description="Increases with each change of topics, groups or brokers.")
    processes: list[ClusterProcess] = Field(description="The brokers and proxies.")
    broker_groups: list[BrokerGroupView] = Field(description="The broker groups, by name.")


def shared_status(state_writer: StateWriter, processes: Processes, views: GroupViews) -> SharedWork[ClusterStatus]:
    """Return the status of all processes; concurrent requests share one round of readiness checks.

    Args:
        state_writer: knows the cluster.
        processes: list of the processes.
        views: of broker groups.
    """

    async def read() -> ClusterStatus:
        state = state_writer.state
        members = processes.members(views.registrations())
        reasons = await _reasons(members)
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

    return SharedWork(read)


def status_router(status: SharedWork[ClusterStatus]) -> Routes:
    """The routes about processes.

    Args:
        status: of all processes.
    """
    router = Routes(prefix="/cluster", tags=["cluster"])

    @router.get("/status")
    async def cluster_status() -> ClusterStatus:
        """List all brokers and proxies with their readiness; callers at the same time share one check."""
        return await status.result()

    return router


async def _reasons(members: Sequence[Member]) -> list[str]:
    """Return for each member why it is not ready; empty if it is."""
    if not any(each.health for each in members):  # standalone: an unused client would cost 10 ms
        return [each.trouble for each in members]
    import httpx

    at_once = asyncio.Semaphore(_AT_ONCE)
    # Loading the public authorities takes long, and no check uses TLS.
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S, verify=False) as client:
        return await asyncio.gather(*(_reason(client, member, at_once) for member in members))


async def _reason(client: Any, member: Member, at_once: asyncio.Semaphore) -> str:
    """Return why a process is not ready; empty if it is.

    One that cannot be asked counts as ready while it is connected.
    """
    import httpx

    if member.trouble or not member.health:
        return member.trouble
    try:
        async with at_once:
            answer = await client.get(f"http://{member.health}/readyz")
        reasons = answer.json()["reasons"]
        return "; ".join(map(str, reasons.values()))[:_REASON_LENGTH_MAX]
    except httpx.TimeoutException:
        return f"it did not say within {_TIMEOUT_S:.0f} s whether it is ready"
    except (httpx.HTTPError, ValueError, KeyError, AttributeError) as error:
        return f"it cannot be asked whether it is ready: {error}"[:_REASON_LENGTH_MAX]
