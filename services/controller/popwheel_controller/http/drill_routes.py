"""Routes of the admin API about failure drills: `/api/v1/brokers/{group}/kill-master` (docs/operate/failures.md)."""

from collections.abc import Callable

from pydantic import BaseModel, Field

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.http.group_routes import GroupViews
from popwheel_controller.http.guard import DryRun, RecordedChange
from popwheel_controller.http.path_parts import BrokerName
from popwheel_controller.http.refusal import refusal

KillReplica = Callable[[int, str, int], None]
"""Kills a process of this machine, by its number, if it is this replica of this group; else raises StatusError."""

_ELSEWHERE = (
    "this API kills masters of `popwheel cluster` alone; on Kubernetes delete the pod, see docs/operate/failures.md"
)


class Killed(BaseModel):
    """A master that was killed, or would be."""

    name: str = Field(description="The broker group.")
    replica: int = Field(description="Number of the replica that was master.")
    pid: int = Field(description="Number of its process.")
    killed: bool = Field(description="False: nothing was done, that was a dry run.")


def drill_router(views: GroupViews, processes: Processes, kill: KillReplica | None) -> Routes:
    """Return the routes.

    Args:
        views: shows broker groups.
        processes: knows the numbers of processes.
        kill: kills one; None: nobody may.
    """
    router = Routes(prefix="/brokers", tags=["brokers"])

    @router.post(
        "/{group}/kill-master",
        responses={
            404: refusal("There is no broker group of that name."),
            409: refusal("Not here, or not now; the message says why."),
        },
    )
    async def kill_master(group: BrokerName, change_record: RecordedChange, dry_run: DryRun) -> Killed:
        """Kill the process of a master as kill -9 does, to see its group fail over. `popwheel cluster` starts it again.

        Groups of one replica are away until then.
        """
        view = views.one(names.broker_group(group))
        if kill is None:
            raise StatusError(Code.PRECONDITION_FAILED, _ELSEWHERE)
        if view.master is None:
            raise StatusError(Code.PRECONDITION_FAILED, f"{group} has no master now: {view.trouble}")
        of_master = (
            each
            for each in processes.members(views.registrations())
            if (each.kind, each.name, each.replica) == ("broker", group, view.master)
        )
        pid = next((each.pid for each in of_master), None)
        if pid is None:
            raise StatusError(Code.PRECONDITION_FAILED, f"the process of replica {view.master} of {group} is not here")
        change_record.before = views.in_short(group)
        if not dry_run:
            kill(pid, group, view.master)
        return Killed(name=group, replica=view.master, pid=pid, killed=not dry_run)

    return router
