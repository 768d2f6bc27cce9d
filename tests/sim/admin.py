"""Topics and groups as an operator makes them, at whichever controller leads."""

import asyncio
from collections.abc import Callable
from typing import Any

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.app import ControllerApp
from popwheel_controller.cluster.alteration import TopicSettings, alter_topic
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.pause import pause_group
from popwheel_controller.options import ControllerOptions
from tests.sim.workload import OwnTopic

_REST_MS = 7 * 24 * 3600 * 1000
"""For so long nothing but a hand makes a deleted name anew: longer than any run, whatever its clocks do."""
_ANSWER_S = 3.0
_GROWTH_S = 1.0

_Decide = Callable[[ClusterState, int], Any]
"""Decides on a change of a state, at a time in ms."""


class Admin:
    """Makes, changes and deletes topics and groups.

    Methods that return a bool may be called at any time: True if topic or group is then as asked, for certain.

    Args:
        leader: the controller that leads now; None if none does.
        options: its settings.
    """

    def __init__(self, leader: Callable[[], ControllerApp | None], options: ControllerOptions) -> None:
        self._leader = leader
        self._options = options

    async def make_topic(self, name: str, topic: OwnTopic) -> None:
        """Make a topic, at a controller that is there."""
        await self._change(lambda state, _: self._new_topic(state, name, topic))

    async def make_group(self, name: str, attempts: int, *, is_ordered: bool = False) -> None:
        """Make a group, at a controller that is there."""
        await self._change(lambda state, _: state.create_group(self._options, name, attempts, is_ordered))

    async def grow_topic(self, name: str, more: int) -> bool:
        """Give a topic more queues. One of type FIFO becomes MIXED, as it keeps its queues else."""

        def decide(state: ClusterState, _: int) -> Any:
            topic = state.topic(name)
            kind = TopicType.MIXED if topic.type == TopicType.FIFO else topic.type
            return alter_topic(state, name, TopicSettings(kind, topic.queues + more))

        return await self._is_so(lambda _: False, decide, _GROWTH_S)

    async def ensure_topic(self, name: str, topic: OwnTopic) -> bool:
        """Make a topic unless it is there."""
        return await self._is_so(
            lambda state: name in state.topics, lambda state, _: self._new_topic(state, name, topic)
        )

    async def delete_topic(self, name: str) -> bool:
        """Delete a topic if it is there."""
        return await self._is_so(
            lambda state: name not in state.topics, lambda state, now_ms: state.delete_topic(name, now_ms, _REST_MS)
        )

    async def ensure_group(self, name: str, attempts: int) -> bool:
        """Make a group unless it is there."""
        return await self._is_so(
            lambda state: name in state.groups, lambda state, _: state.create_group(self._options, name, attempts)
        )

    async def delete_group(self, name: str) -> bool:
        """Delete a group if it is there."""
        return await self._is_so(
            lambda state: name not in state.groups, lambda state, now_ms: state.delete_group(name, now_ms, _REST_MS)
        )

    async def pause_group(self, name: str, *, paused: bool) -> bool:
        """Pause a group, or resume it; False if it is not there."""
        return await self._is_so(lambda _: False, lambda state, _: pause_group(state, name, int(paused)))

    def _new_topic(self, state: ClusterState, name: str, topic: OwnTopic) -> Any:
        return state.create_topic(self._options, name, topic.kind, topic.queues, topic.settings)

    async def _is_so(
        self, is_so: Callable[[ClusterState], bool], decide: _Decide, timeout_s: float = _ANSWER_S
    ) -> bool:
        """Return whether something is so already, or was made so in time; False leaves it open."""
        leader = self._leader()
        if leader is None:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                if not is_so(leader.state):
                    await self._change(decide)
        except (StatusError, TimeoutError):
            return False
        return True

    async def _change(self, decide: _Decide) -> None:
        leader = self._leader()
        assert leader is not None
        now_ms = leader._clock.wall_ms()
        await leader._state_writer.change(lambda state: decide(state, now_ms))
