"""Routes of the admin API about pauses: `/api/v1/topics/{name}/pause`, `/resume`, and the same of groups."""

from collections.abc import Callable
from typing import Any

from popwheel_common.clock import Clock
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.pause import pause_group, pause_topic
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http.admin import Group, Topic, shown_group, shown_topic
from popwheel_controller.http.guard import DryRun, RecordedChange
from popwheel_controller.http.path_parts import GroupName, TopicName
from popwheel_controller.http.refusal import refusal

_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: refusal("It does not exist.")}

Pause = Callable[[ClusterState, str, int], ClusterUpdate | None]


def pause_router(state_writer: StateWriter, clock: Clock) -> Routes:
    """Return the routes.

    Args:
        state_writer: of the cluster's state.
        clock: of the pauses.
    """
    router = Routes()

    async def set_topic(change_record: RecordedChange, name: str, paused_ms: int, dry_run: bool) -> Topic:
        change_record.before = shown_topic(state_writer.state.topic(name)).model_dump()
        if not dry_run:
            await state_writer.change(lambda state: pause_topic(state, name, paused_ms))
        return shown_topic(state_writer.state.topic(name))

    async def set_group(change_record: RecordedChange, name: str, paused_ms: int, dry_run: bool) -> Group:
        change_record.before = shown_group(state_writer.state.group(name)).model_dump()
        if not dry_run:
            await state_writer.change(lambda state: pause_group(state, name, paused_ms))
        return shown_group(state_writer.state.group(name))

    @router.post("/topics/{name}/pause", tags=["topics"], responses=_NOT_FOUND)
    async def pause_this_topic(change_record: RecordedChange, dry_run: DryRun, name: TopicName) -> Topic:
        """Pause a topic: none of its messages is delivered until it is resumed; sends are stored."""
        return await set_topic(change_record, name, clock.wall_ms(), dry_run)

    @router.post("/topics/{name}/resume", tags=["topics"], responses=_NOT_FOUND)
    async def resume_this_topic(change_record: RecordedChange, dry_run: DryRun, name: TopicName) -> Topic:
        """Resume a paused topic: its messages are delivered to all groups."""
        return await set_topic(change_record, name, 0, dry_run)

    @router.post("/groups/{name}/pause", tags=["groups"], responses=_NOT_FOUND)
    async def pause_this_group(change_record: RecordedChange, dry_run: DryRun, name: GroupName) -> Group:
        """Pause a consumer group: nothing is delivered to it until it is resumed; it may acknowledge what it has."""
        return await set_group(change_record, name, clock.wall_ms(), dry_run)

    @router.post("/groups/{name}/resume", tags=["groups"], responses=_NOT_FOUND)
    async def resume_this_group(change_record: RecordedChange, dry_run: DryRun, name: GroupName) -> Group:
        """Resume a paused consumer group: messages are delivered to it."""
        return await set_group(change_record, name, 0, dry_run)

    return router
