"""What is asked of a group that is well again: that waiting polls are woken (L1), that it knows how it is (C3)."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import MessageType
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim.checker import Verdict
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.programs import ControllerProgram
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.history import History
from tests.sim.producers import Producer
from tests.sim.replicas.swarm import GroupSwarm
from tests.sim.replicas.world import GROUP, GroupWorld

_PATIENT = Manners(batch_max=16, invisible_ms=(2000, 2000), wait_s=(10.0,), think_s_max=0.0)
_END_S = 1.5
_WAKE_S = 2.0
_WAYS = 10
_SYNCS = 10
_POLL_S = 0.05
_SILENT_S = 2.0
_AGE_SLACK_S = 0.2
_HANGING_S = 11.0
"""A call may hang until a keep-alive ends its connection, which was half open."""
_AGE = "popwheel_controller_checkpoint_age_seconds"


class Probes:
    """Asks a group that nothing is wrong with.

    Args:
        world: where it is.
        swarm: what was drawn.
        history: what clients see.
        verdict: what does not hold goes there.
    """

    def __init__(self, world: GroupWorld, swarm: GroupSwarm, history: History, verdict: Verdict) -> None:
        self._world = world
        self._swarm = swarm
        self._history = history
        self._verdict = verdict
        self._chance: random.Random = swarm.random("replicas probes")

    async def wake(self, producer: Producer, consumers: Sequence[Consumer]) -> None:
        """L1: a new message comes soon to each group of which a poll waits."""
        for consumer in consumers:
            consumer.manners = _PATIENT
        hanging_s = self._world.network.half_open_until_s - self._world.loop.time()
        await asyncio.sleep(max(0.0, hanging_s) + _END_S + self._chance.random())
        for topic, kind in self._swarm.types.items():
            if kind not in (TopicType.DELAY, TopicType.FIFO):
                await self._wake(producer, topic)

    async def _wake(self, producer: Producer, topic: str) -> None:
        message = producer.message(topic)
        message.system_properties.ClearField("delivery_timestamp")
        message.system_properties.message_type = MessageType.NORMAL
        message_id = message.system_properties.message_id
        await producer.send([message])
        if self._history.sent[message_id].outcome != "ok":
            said = self._history.sent[message_id].said
            self._verdict.broke("L2", f"{message_id} was not taken, though nothing is wrong any more: {said}")
            return
        swarm, loop = self._swarm, self._world.loop
        wanted = {each for each in swarm.subscriptions if each.topic == topic and each.wants(message)}
        bound_s = _WAKE_S + _WAYS * swarm.delay_s_max + _SYNCS * swarm.sync_s_max
        until_s = loop.time() + bound_s
        while wanted and loop.time() < until_s:
            await asyncio.sleep(_POLL_S)
            wanted -= {self._of(each.group, each.topic) for each in self._newest() if each.message_id == message_id}
        for each in wanted:
            self._verdict.broke("L1", f"{message_id} did not come to {each.group} within {bound_s:.2f} s")

    def _newest(self) -> Iterable[Any]:
        return self._history.deliveries[-1000:]

    def _of(self, group: str, topic: str) -> Subscription:
        return next(each for each in self._swarm.subscriptions if (each.group, each.topic) == (group, topic))

    async def report_the_age(self) -> None:
        """C3: the age of checkpoints is small while they are made, and grows with a slave that stands still."""
        interval_s = self._swarm.options.controller.replication.checkpoint_interval_ms / 1000
        # A slave that was wiped refuses the first difference that it is given, and has the whole by the next.
        await asyncio.sleep(2 * interval_s)
        controller = self._leader()
        slaves = self._world.slaves()
        if controller is None or not slaves:
            return
        slow_s = _WAYS * self._swarm.delay_s_max + _SYNCS * self._swarm.sync_s_max
        for machine in slaves:
            age_s = self._age(controller, machine)
            if age_s is None or age_s > 2 * interval_s + slow_s + _HANGING_S:
                self._verdict.broke("C3", f"the checkpoint of {machine.name} is said to be {age_s} s old")
        machine = self._chance.choice(slaves)
        machine.pause()
        await asyncio.sleep(_SILENT_S)
        age_s = self._age(controller, machine)
        machine.resume()
        # None: it counts as dead by now, and of the dead nothing is told.
        if age_s is not None and age_s < _SILENT_S - _AGE_SLACK_S:
            self._verdict.broke(
                "C3",
                f"the checkpoint of {machine.name}, which stood still for {_SILENT_S} s, is said to be {age_s} s old",
            )

    def _leader(self) -> Machine[ControllerProgram] | None:
        app = self._world.leader
        machines = self._world.controllers.values()
        return next((each for each in machines if each.program is not None and each.program.app is app), None)

    def _age(self, controller: Machine[ControllerProgram], machine: Machine[Any]) -> float | None:
        number = next(number for number, each in self._world.replicas.items() if each is machine)
        assert controller.program is not None
        registry = controller.program.registry
        return registry.get_sample_value(_AGE, {"broker": GROUP, "replica": str(number)})
