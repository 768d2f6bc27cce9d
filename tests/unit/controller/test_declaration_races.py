"""Two controllers that both believe to lead, users, and an API server that loses answers, makes changes twice and ends
watches: nothing goes that nobody gave up, and in the end all is as it is declared.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Topic, TopicType
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.context import ControllerContext
from popwheel_controller.cluster.state_writer import Decision
from popwheel_controller.kubernetes.api import TOPICS, ApiAwayError, ApiConflictError
from popwheel_controller.kubernetes.declaration import SHOWN, declaration_of, is_refused
from popwheel_controller.kubernetes.declared_kind import DECLARED_TOPICS
from popwheel_controller.kubernetes.reconciler import DeclarationMetrics, Reconciler
from popwheel_controller.options import ControllerOptions, ResourceOptions
from tests.unit.controller.changes import fresh_state
from tests.unit.controller.memory_api import MemoryApi
from tests.unit.controller.memory_store import MemoryStore

NAMES = ["one", "Two", "three"]
RESOURCES = ["a", "b", "c", "d"]


class Keeper:
    """What stands for a controller's `StateWriter`: it sees the cluster as it was when it last changed it."""

    def __init__(self, here: "Scenery") -> None:
        self._here = here
        self.state = here.state

    async def change(self, decision: Decision) -> ClusterUpdate | None:
        await asyncio.sleep(0)
        self.state = self._here.state
        update = decision(self.state)
        if update is not None:
            self._here.state = self.state = self.state.after(update)
        if self._here.random.random() < self._here.lost_share:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, "it is not known whether the change was saved")
        return update


class Scenery:
    """The cluster, the API server, and who does what."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.api = MemoryApi()
        self.state: ClusterState = fresh_state()
        self.lost_share = 0.1
        self.options = ControllerOptions(
            topics_max=3, resources=ResourceOptions(shown_max=self.random.choice([0, 1, 5]), declared_max=10)
        )
        self.given_up: set[int] = set()
        """Ids of topics that somebody deleted by an admin call, or by a resource that has this policy."""
        self.deleted: set[str] = set()
        """Uids of resources that users deleted."""
        self.controllers = [self.controller(), self.controller()]

    def controller(self) -> Reconciler[Topic]:
        state_writer: Any = Keeper(self)
        metrics = DeclarationMetrics(CollectorRegistry())

        async def agree(state: ClusterState, update: ClusterUpdate) -> None:
            """No broker is against a change."""

        clock = SystemClock()
        changes = ChangeLog(MemoryStore(), clock, CollectorRegistry())
        context = ControllerContext(self.options, clock, CollectorRegistry(), changes, lambda: None)
        return Reconciler(context, DECLARED_TOPICS, self.api, state_writer, metrics, agree)

    async def user_acts(self) -> None:
        for _ in range(self.random.randrange(12)):  # at some point of what controllers do
            await asyncio.sleep(0)
        topic, name = self.random.choice(NAMES), self.random.choice([*RESOURCES, *self.there() * 3])
        whole = self.api.objects.get(("topics", name))
        action = self.random.randrange(7)
        kind = self.random.choice(["NORMAL", "FIFO"])
        if action == 0 and whole is None:
            await self.api.create(TOPICS, {"metadata": {"name": name}, "spec": {"topicName": topic, "type": kind}})
        elif action == 1 and whole is not None:
            self.deleted.add(whole["metadata"]["uid"])
            await self.api.delete(TOPICS, name, whole["metadata"]["resourceVersion"])
        elif action in (2, 3) and whole is not None:
            policy = self.random.choice(["Retain", "Delete", "Delete", "Delete"])
            await self.api.patch(TOPICS, name, {"spec": {"deletionPolicy": policy}})
        elif action == 4 and whole is not None:
            await self.api.patch(TOPICS, name, {"metadata": {"labels": {SHOWN: None}}})
        elif action == 5 and topic not in self.state.topics and len(self.state.topics) < 3:
            self.state = self.state.after(self.state.create_topic(self.options, topic, TopicType.Value(kind)))
        elif action == 6 and topic in self.state.topics:
            self.given_up.add(self.state.topics[topic].id)
            self.state = self.state.after(self.state.delete_topic(topic))

    def there(self) -> list[str]:
        return sorted(name for plural, name in self.api.objects if plural == "topics")

    def strike(self) -> None:
        """Something goes wrong."""
        self.note_what_is_given_up()
        self.api.lost_answers = self.random.choice([0, 0, 1])
        self.api.repeated_changes = self.random.choice([0, 0, 1])
        if self.random.random() < 0.3:
            self.api.end_watches(forget=self.random.random() < 0.5)

    async def restart(self) -> None:
        """One controller ends, another one begins."""
        await self.controllers.pop(0).stop()
        self.controllers.append(self.controller())

    async def together(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Let them run side by side; what fails for a reason is tried again by the next round."""
        for outcome in await asyncio.gather(*(work() for work in works), return_exceptions=True):
            if outcome is not None and not isinstance(outcome, (ApiAwayError, ApiConflictError, StatusError)):
                raise outcome

    def note_what_is_given_up(self) -> None:
        """Look through what the API server still remembers."""
        for _, _, whole, _ in self.api.events:
            if whole["metadata"]["uid"] in self.deleted and whole["spec"].get("deletionPolicy") == "Delete":
                self.given_up.add(whole.get("status", {}).get("id"))

    def check_losses(self, before: ClusterState) -> None:
        """What is gone, somebody gave up."""
        self.note_what_is_given_up()
        gone = {topic.id for topic in before.topics.values()} - {topic.id for topic in self.state.topics.values()}
        assert gone <= self.given_up

    async def come_to_rest(self) -> None:
        self.api.lost_answers = self.api.repeated_changes = 0
        self.lost_share = 0.0
        quiet = 0
        for _ in range(200):
            events, state = len(self.api.events), self.state
            for controller in self.controllers:
                controller._state_writer.state = self.state
                await self.together(controller._round)
            for _ in range(30):
                await asyncio.sleep(0)
            quiet = quiet + 1 if (events, state) == (len(self.api.events), self.state) else 0
            if quiet == 3:
                return
        raise AssertionError("it does not come to rest")

    def check_rest(self) -> None:
        wholes = [whole for (plural, _), whole in self.api.objects.items() if plural == "topics"]
        said = [declaration_of(DECLARED_TOPICS, whole) for whole in wholes]
        assert not [each for each in said if each.leaving]
        assert sum(each.shown for each in said) <= self.options.resources.shown_max
        for each in said:
            found = self.state.topics.get(each.name)
            assert (found is not None and found.id == each.id) or is_refused(each.whole)
            assert each.has_finalizer == (each.deletes and each.id is not None)
        declared = {each.name for each in said if not each.shown}
        assert not [each for each in said if each.shown and each.name in declared]
        stood_for = [each.id for each in said if each.id is not None]
        assert len(set(stood_for)) == len(stood_for)


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_goes_wrong_nothing_is_lost_that_nobody_gave_up(seed: int) -> None:
    here = Scenery(seed)
    try:
        for _ in range(150):
            before = here.state
            if here.random.random() < 0.5:
                here.strike()
            rounds = [each._round for each in here.controllers if here.random.random() < 0.6]
            acts = [here.user_acts for _ in range(here.random.randrange(5))]
            works = [*rounds, *acts]
            await here.together(*here.random.sample(works, len(works)))
            for _ in range(here.random.choice([0, 30])):  # the watches may tell what is new, or be behind
                await asyncio.sleep(0)
            here.check_losses(before)
            if here.random.random() < 0.1:
                await here.restart()
            if here.random.random() < 0.2:
                await here.come_to_rest()
                here.check_rest()
                here.lost_share = 0.1
    finally:
        for each in here.controllers:
            await each.stop()
