"""Routes of the admin API for a debug bundle: `/api/v1/debug/processes`, and `/api/v1/debug/page` on each of them:
settings in force, last lines of its log, metrics.

No page holds a secret or a message's body. All the same these are for administrators alone.
"""

from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectQuestion
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.inspections import Inspections
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.http.group_routes import GroupViews
from popwheel_controller.http.refusal import refusal

OWN = "controller"
_PAGES_AT_ONCE = 2
"""Pages may have some megabytes."""


class DebugProcess(BaseModel):
    """A process."""

    key: str = Field(description="To ask for its pages: `controller`, `proxy/NAME`, `broker/NAME/REPLICA`.")
    pages: list[str] = Field(
        description="Of `settings`, `log`, `metrics` those that it has; none if it takes no questions."
    )


class DebugProcesses(BaseModel):
    """The processes of the cluster, without other controllers that do not lead."""

    processes: list[DebugProcess] = Field(description="The processes of the cluster.")


class DebugPage(BaseModel):
    """A page on a process. It holds no secret and no message's body."""

    process: str = Field(description="Key of the process.")
    page: str = Field(description="`settings`, `log` or `metrics`.")
    text: str = Field(
        description="`settings`: JSON with the versions of libraries, and the settings in force; what is secret is "
        "replaced. `log`: the last 500 lines. `metrics`: as Prometheus reads them. At most 16 MiB."
    )


_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("There is no such process or page.")}


def debug_router(
    inspections: Inspections,
    processes: Processes,
    views: GroupViews,
    own_pages: Mapping[str, Callable[[], Awaitable[bytes]]],
) -> Routes:
    """Return the routes.

    Args:
        inspections: processes that can be asked.
        processes: those that there are.
        views: knows the registered brokers.
        own_pages: of this process.
    """
    router = Routes(prefix="/debug", tags=["debug"])
    at_once = Semaphore(_PAGES_AT_ONCE)

    @router.get("/processes")
    async def list_processes() -> DebugProcesses:
        """List all processes with the pages that each has."""
        found: dict[str, list[str]] = {OWN: list(own_pages)}
        for member in processes.members(views.registrations()):
            if member.is_within:
                continue
            suffix = "" if member.replica is None else f"/{member.replica}"
            found[f"{member.kind}/{member.name}{suffix}"] = []
        found |= {each.key: list(each.pages) for each in inspections.all if each.pages}
        return DebugProcesses(processes=[DebugProcess(key=key, pages=pages) for key, pages in found.items()])

    @router.get("/page", responses=_NOT_FOUND)
    async def read_page(
        process: str = Query(max_length=300, description="Its `key`."),
        page: str = Query(max_length=32, description="`settings`, `log` or `metrics`."),
    ) -> DebugPage:
        """Return a page of a process: its settings in force, the last lines of its log, or its metrics."""
        async with at_once:
            if process == OWN:
                make = own_pages.get(page)
                if make is None:
                    raise _no_page(process, page)
                return DebugPage(process=process, page=page, text=(await make()).decode(errors="replace"))
            inspected = inspections.get(process)
            if inspected is None or page not in inspected.pages:
                raise _no_page(process, page)
            answer = await inspections.ask(inspected, InspectQuestion(page=page))
            return DebugPage(process=process, page=page, text=answer.page.decode(errors="replace"))

    return router


def _no_page(process: str, page: str) -> StatusError:
    return StatusError(Code.NOT_FOUND, f"{process} has no page {page}, or takes no questions now")
