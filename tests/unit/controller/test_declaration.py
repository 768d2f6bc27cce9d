"""What is to be done about resources that declare topics and groups, one decision at a time and walked at random."""

import copy
import random
import re
from typing import Any

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff, Group, Topic, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.kubernetes.api import Resource
from popwheel_controller.kubernetes.declaration import (
    FINALIZER,
    SHOWN,
    Change,
    Declaration,
    Drop,
    Make,
    Remove,
    Step,
    change_of,
    declaration_of,
    is_refused,
    next_step,
    owners,
    refused_by,
    showing,
    shown_name,
)
from popwheel_controller.kubernetes.declared_kind import DECLARED_GROUPS, DECLARED_TOPICS
from popwheel_controller.options import ControllerOptions
from tests.unit.controller.changes import fresh_state
from tests.unit.controller.memory_api import merged

OPTIONS = ControllerOptions(topics_max=3, topic_name_length_max=20)
NOW_MS = 1_700_000_000_000


def state_with(*names: str, kind: str = "NORMAL", queues: int = 8) -> ClusterState:
    state = fresh_state()
    for name in names:
        state = state.after(state.create_topic(OPTIONS, name, TopicType.Value(kind), queues))
    return state


def resource(name: str = "orders", made: int = 1, **spec: Any) -> dict[str, Any]:
    at = f"2026-01-01T00:00:{made:02}Z"
    metadata = {"name": name, "resourceVersion": "7", "generation": 1, "creationTimestamp": at}
    return {"kind": "Topic", "metadata": metadata, "spec": spec}


def step_for(state: ClusterState, one: Resource, *others: Resource) -> Step | None:
    declaration = declaration_of(DECLARED_TOPICS, one)
    owner = owners(declaration_of(DECLARED_TOPICS, each) for each in (one, *others)).get(declaration.name)
    return next_step(DECLARED_TOPICS, state, OPTIONS, declaration, owner, NOW_MS)


def taken(one: dict[str, Any], step: Step | None) -> dict[str, Any]:
    """A resource after a change of it."""
    assert isinstance(step, Change)
    assert step.change["metadata"]["resourceVersion"] == one["metadata"]["resourceVersion"]
    changed: dict[str, Any] = merged(one, step.change)
    return changed


def settled(state: ClusterState, one: dict[str, Any], *others: Resource) -> dict[str, Any]:
    """A resource after all changes of it."""
    while (step := step_for(state, one, *others)) is not None:
        one = taken(one, step)
    return one


def ready(one: Resource) -> tuple[str, str, str]:
    ((reported),) = one["status"]["conditions"]
    return reported["status"], reported["reason"], reported["message"]


def leaving(one: dict[str, Any]) -> dict[str, Any]:
    gone: dict[str, Any] = merged(one, {"metadata": {"deletionTimestamp": "2026-01-02T00:00:00Z"}})
    return gone


def test_what_is_declared_is_made_and_reported() -> None:
    one = resource(topicName="Orders", queues=16)
    assert step_for(fresh_state(), one) == Make()
    declaration = declaration_of(DECLARED_TOPICS, one)
    update = change_of(DECLARED_TOPICS, fresh_state(), OPTIONS, declaration, Make(), 0)
    assert update is not None
    (topic,) = update.topics
    assert (topic.name, topic.type, topic.queues) == ("Orders", TopicType.NORMAL, 16)
    state = fresh_state().after(update)
    one = settled(state, one)
    assert ready(one) == ("True", "Exists", "topic Orders is there")
    status = {key: value for key, value in one["status"].items() if key != "conditions"}
    assert status == {"topicName": "Orders", "id": topic.id, "observedGeneration": 1, "type": "NORMAL", "queues": 16}
    assert "finalizers" not in one["metadata"]
    assert change_of(DECLARED_TOPICS, state, OPTIONS, declaration, Make(), 0) is None


def test_a_resource_without_a_spec_declares_a_topic_of_its_own_name() -> None:
    one = {"kind": "Topic", "metadata": resource()["metadata"]}
    assert step_for(fresh_state(), one) == Make()
    assert ready(settled(state_with("orders"), one))[0] == "True"


def test_a_group_is_declared_as_a_topic_is() -> None:
    one = resource("billing", groupName="Billing", maxAttempts=5, fifo=True, backoffMs=[10, 20])
    declaration = declaration_of(DECLARED_GROUPS, one)
    update = change_of(DECLARED_GROUPS, fresh_state(), OPTIONS, declaration, Make(), 0)
    assert update is not None
    (group,) = update.groups
    assert group == Group(name="Billing", max_attempts=5, fifo=True, backoff_ms=[10, 20], id=group.id)
    step = next_step(
        DECLARED_GROUPS, fresh_state().after(update), OPTIONS, declaration, owners([declaration])["Billing"], NOW_MS
    )
    assert ready(taken(one, step)) == ("True", "Exists", "group Billing is there")


def test_a_group_of_which_waits_grow_is_declared_and_shown() -> None:
    grows = {"initialMs": 10, "maxMs": 500, "multiplier": 1.5}
    one = resource("billing", groupName="Billing", exponentialBackoff=grows)
    update = change_of(DECLARED_GROUPS, fresh_state(), OPTIONS, declaration_of(DECLARED_GROUPS, one), Make(), 0)
    assert update is not None
    (group,) = update.groups
    assert group.exponential_backoff == ExponentialBackoff(initial_ms=10, max_ms=500, multiplier=1.5)
    assert showing(DECLARED_GROUPS, group, {})["spec"]["exponentialBackoff"] == grows
    specs: list[dict[str, Any]] = [{"exponentialBackoff": grows}, {}]
    for spec in specs:
        declaration = declaration_of(DECLARED_GROUPS, resource("billing", groupName="Billing", **spec))
        step = next_step(
            DECLARED_GROUPS, fresh_state().after(update), OPTIONS, declaration, owners([declaration])["Billing"], NOW_MS
        )
        assert ready(taken(one, step))[1] == "Exists", spec
    other = declaration_of(DECLARED_GROUPS, resource("billing", groupName="Billing", backoffMs=[1]))
    state = fresh_state().after(update)
    assert next_step(DECLARED_GROUPS, state, OPTIONS, other, other, NOW_MS) == Make()
    altered = change_of(DECLARED_GROUPS, state, OPTIONS, other, Make(), NOW_MS)
    assert altered is not None and altered.groups == [
        Group(name="Billing", max_attempts=17, backoff_ms=[1], id=group.id)
    ]


def test_what_is_there_is_changed_where_it_may_be_and_else_the_resource_shows_why() -> None:
    state = state_with("orders")
    one = resource(type="MIXED", queues=9)
    declaration = declaration_of(DECLARED_TOPICS, one)
    assert step_for(state, one) == Make()
    altered = change_of(DECLARED_TOPICS, state, OPTIONS, declaration, Make(), NOW_MS)
    assert altered is not None and (altered.topics[0].queues, altered.topics[0].id) == (9, 1)
    state = state.after(altered)
    assert settled(state, one)["status"]["queues"] == 9
    refused = settled(state, resource(type="MIXED", queues=4))
    assert ready(refused)[:2] == ("False", "Differs")
    assert "queues 9, not 4; it is left as it is: topic orders has 9 queues and can't get 4" in ready(refused)[2]
    lite = settled(state, resource(type="MIXED", liteExpirationMs=0))
    assert ready(lite)[1:] and "no liteExpirationMs" in ready(lite)[2]
    reported = refused_by(DECLARED_TOPICS, state, declaration, StatusError(Code.HA_NOT_AVAILABLE, "no broker"), NOW_MS)
    assert "it is left as it is: no broker." in ready(taken(one, reported))[2]


@pytest.mark.parametrize(
    ("spec", "reason", "part"),
    [
        ({"topicName": "rmq_sys_mine"}, "ILLEGAL_TOPIC", "is a topic of the system"),
        ({"topicName": "no blanks"}, "ILLEGAL_TOPIC", "is not a name for a topic"),
        ({"topicName": "longer-than-twenty-letters"}, "ILLEGAL_TOPIC", "controller.topic_name_length_max"),
        ({"type": "ODD"}, "BAD_REQUEST", "must be one of NORMAL"),
        ({"queues": 5000}, "BAD_REQUEST", "from 1 to 1024"),
        ({}, "TOO_MANY_REQUESTS", "as many as controller.topics_max allows"),
    ],
)
def test_what_an_admin_call_would_be_refused_is_refused_with_the_same_words(
    spec: dict[str, Any], reason: str, part: str
) -> None:
    state = fresh_state() if spec else state_with("a", "b", "c")
    one = settled(state, resource(**spec))
    assert ready(one)[:2] == ("False", reason)
    assert part in ready(one)[2] and is_refused(one)
    assert "id" not in one["status"]


def test_what_is_there_otherwise_is_left_as_it_is_until_one_of_the_two_gives_way() -> None:
    state = state_with("orders", kind="FIFO", queues=4)
    one = settled(state, resource(queues=8, deletionPolicy="Delete"))
    assert ready(one)[:2] == ("False", "Differs")
    assert "is there with type FIFO, not NORMAL, queues 4, not 8; it is left as it is" in ready(one)[2]
    assert step_for(state, leaving(one)) is None  # nothing holds it
    one["spec"] = {"type": "FIFO"}
    one = settled(state, one)
    assert ready(one)[0] == "True" and one["status"]["queues"] == 4
    one["spec"] = {"type": "NORMAL"}  # a definition without rules lets it
    assert settled(state, one)["status"].keys() == {"topicName", "observedGeneration", "conditions"}


def test_what_is_deleted_otherwise_is_made_again() -> None:
    one = settled(state_with("orders"), resource())
    assert step_for(fresh_state(), one) == Make()


def test_of_two_that_declare_the_same_the_older_counts_and_a_shown_one_never_does() -> None:
    state = state_with("orders")
    old, young = resource("b", 1, topicName="orders"), resource("a", 2, topicName="orders", deletionPolicy="Delete")
    young = settled(state, young, old)
    assert ready(young)[:2] == ("False", "Taken")
    assert "topics/b declares topic orders already" in ready(young)[2]
    assert "finalizers" not in young["metadata"]
    assert ready(settled(state, old, young))[0] == "True"
    shown = {**showing(DECLARED_TOPICS, state.topics["orders"], {})}
    shown["metadata"] = {**resource(made=0)["metadata"], **shown["metadata"]}
    assert step_for(state, shown, young) == Drop()
    assert step_for(state, shown) == Change(
        {"metadata": {"resourceVersion": "7"}, "status": settled(state, shown)["status"]}, status=True
    )


def test_with_the_resource_alone_nothing_goes() -> None:
    one = settled(state_with("orders"), resource())
    assert step_for(state_with("orders"), leaving(one)) is None


def test_with_the_policy_delete_what_it_stands_for_goes_first() -> None:
    state = state_with("orders")
    one = settled(state, resource(deletionPolicy="Delete"))
    assert one["metadata"]["finalizers"] == [FINALIZER]
    step = step_for(state, leaving(one))
    assert step == Remove(state.topics["orders"].id)
    declaration = declaration_of(DECLARED_TOPICS, one)
    update = change_of(DECLARED_TOPICS, state, OPTIONS, declaration, Remove(state.topics["orders"].id), 0)
    assert update is not None and list(update.deleted_topics) == ["orders"]
    state = state.after(update)
    assert change_of(DECLARED_TOPICS, state, OPTIONS, declaration, Remove(one["status"]["id"]), 0) is None
    one = taken(leaving(one), step_for(state, leaving(one)))
    assert one["metadata"]["finalizers"] == []
    assert step_for(state, one) is None


def test_who_takes_the_policy_back_in_time_keeps_the_topic() -> None:
    state = state_with("orders")
    one = leaving(settled(state, resource(deletionPolicy="Delete")))
    one["spec"]["deletionPolicy"] = "Retain"
    assert taken(one, step_for(state, one))["metadata"]["finalizers"] == []


def test_other_finalizers_stay() -> None:
    state = state_with("orders")
    one = resource(deletionPolicy="Delete")
    one["metadata"]["finalizers"] = ["theirs"]
    one = settled(state, one)
    assert one["metadata"]["finalizers"] == ["theirs", FINALIZER]
    one["spec"] = {"deletionPolicy": "Retain"}
    assert settled(state, one)["metadata"]["finalizers"] == ["theirs"]


def test_a_topic_that_was_made_again_since_is_not_the_one_that_goes() -> None:
    state = state_with("orders")
    one = leaving(settled(state, resource(deletionPolicy="Delete")))
    state = state.after(state.delete_topic("orders"))
    state = state.after(state.create_topic(OPTIONS, "orders", TopicType.NORMAL))
    assert taken(one, step_for(state, one))["metadata"]["finalizers"] == []
    declaration = declaration_of(DECLARED_TOPICS, one)
    assert change_of(DECLARED_TOPICS, state, OPTIONS, declaration, Remove(one["status"]["id"]), 0) is None


def test_a_topic_that_another_resource_declares_stays() -> None:
    state = state_with("orders")
    one = leaving(settled(state, resource("a", topicName="orders", deletionPolicy="Delete")))
    other = resource("b", 2, topicName="orders")
    assert isinstance(step_for(state, one), Remove)
    assert taken(one, step_for(state, one, other))["metadata"]["finalizers"] == []


def test_what_shows_goes_with_what_it_shows_and_takes_nothing_along() -> None:
    state = state_with("orders")
    shown = merged(showing(DECLARED_TOPICS, state.topics["orders"], {}), {"metadata": resource()["metadata"]})
    shown = merged(shown, {"metadata": {"labels": {SHOWN: "true"}}, "spec": {"deletionPolicy": "Delete"}})
    shown = settled(state, shown)
    assert shown["metadata"]["finalizers"] == [FINALIZER]
    younger = resource("younger", 9, topicName="orders")
    shown = taken(shown, step_for(state, shown, younger))
    assert shown["metadata"]["finalizers"] == []
    assert step_for(state, shown, younger) == Drop()
    assert step_for(fresh_state(), shown) == Drop()
    assert step_for(state_with("orders", queues=4), shown) == Drop()


NAMES_OF_ALL_KINDS = ["orders", "Orders", "Orders_EU", "%a%", "___", "-", "A" * 127, "ä".encode().hex(), "a.b"]


def test_names_of_what_shows_are_legal_and_each_its_own() -> None:
    made = [shown_name(name) for name in NAMES_OF_ALL_KINDS]
    assert len(set(made)) == len(made)
    for name in made:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name), name
        assert len(name) <= 253
    assert shown_name("Orders_EU").startswith("orders-eu.")


def test_a_resource_shows_what_is_there_in_full() -> None:
    group = Group(name="g", max_attempts=3, fifo=True, backoff_ms=[5], id=9)
    shown = showing(DECLARED_GROUPS, group, {"of": "us"})
    assert shown["spec"] == {"groupName": "g", "maxAttempts": 3, "fifo": True, "backoffMs": [5]}
    assert shown["metadata"] == {"name": shown_name("g"), "labels": {"of": "us", SHOWN: "true"}}
    assert (shown["apiVersion"], shown["kind"]) == ("popwheel.io/v1", "ConsumerGroup")


class World:
    """A cluster, resources of topics, and users of both who do anything; steps are carried out one at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = fresh_state()
        self.resources: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.writes = 0
        self.may_go: set[int] = set()
        """Ids of topics that a user has allowed to go, by an admin call or a resource."""

    def store(self, one: Resource) -> None:
        self.version += 1
        stored: dict[str, Any] = copy.deepcopy(dict(one))
        metadata = stored["metadata"] = {"creationTimestamp": f"{self.version:09}", "generation": 1, **one["metadata"]}
        metadata["resourceVersion"] = str(self.version)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            del self.resources[metadata["name"]]
        else:
            self.resources[metadata["name"]] = stored

    def declarations(self) -> dict[str, Declaration]:
        return {name: declaration_of(DECLARED_TOPICS, each) for name, each in self.resources.items()}

    def step(self, name: str) -> Step | None:
        found = self.declarations()
        owner = owners(found.values()).get(found[name].name)
        return next_step(DECLARED_TOPICS, self.state, OPTIONS, found[name], owner, NOW_MS)

    def user_acts(self) -> None:
        topic = self.random.choice(["one", "Two", "no name"])
        name = self.random.choice(["a", "b", "c", *self.resources])
        spec = {"topicName": topic, "type": self.random.choice(["NORMAL", "FIFO"])}
        there = self.resources.get(name)
        action = self.random.randrange(6)
        if action == 0 and there is None:
            self.store({"metadata": {"name": name}, "spec": spec})
        elif action == 1 and there is not None:
            self.delete(name)
        elif action == 2 and there is not None:
            policy = self.random.choice(["Retain", "Delete"])
            self.store(merged(there, {"spec": {"deletionPolicy": policy}}))
        elif action == 3 and there is not None:  # a definition without rules lets it
            self.store(merged(there, {"spec": spec}))
        elif action == 4:
            self.decide(lambda state: state.create_topic(OPTIONS, topic, TopicType.FIFO))
        elif action == 5 and topic in self.state.topics:
            self.may_go.add(self.state.topics[topic].id)
            self.decide(lambda state: state.delete_topic(topic))

    def delete(self, name: str) -> None:
        """A user deletes a resource: with it may go what it stands for, if it says so and nobody else declares that."""
        self.store(merged(self.resources[name], {"metadata": {"deletionTimestamp": "now"}}))

    def decide(self, decision: Any) -> None:
        try:
            update = decision(self.state)
        except StatusError:
            return
        if update is not None:
            self.state = self.state.after(update)

    def controller_acts(self) -> bool:
        """One step about one resource; whether there was any to be done."""
        for name in self.random.sample(sorted(self.resources), len(self.resources)):
            step = self.step(name)
            if step is not None:
                self.carry_out(name, step)
                return True
        named = {each.name for each in self.declarations().values()}
        for topic in self.state.topics:
            if topic not in named:
                self.store(showing(DECLARED_TOPICS, self.state.topics[topic], {}))
                return True
        return False

    def carry_out(self, name: str, step: Step) -> None:
        declaration = self.declarations()[name]
        if isinstance(step, Change):
            self.store(merged(self.resources[name], step.change))
        elif isinstance(step, Drop):
            assert FINALIZER not in self.resources[name]["metadata"].get("finalizers", ())
            assert SHOWN in self.resources[name]["metadata"]["labels"], "what a user made is never deleted"
            del self.resources[name]
        else:
            if isinstance(step, Remove):
                whole = self.resources[name]
                assert whole["metadata"]["deletionTimestamp"] and whole["spec"]["deletionPolicy"] == "Delete"
                assert whole["status"]["id"] == self.state.topics[declaration.name].id == step.id
                others = [each for each in self.declarations().values() if each.name == declaration.name]
                assert not [each for each in others if not each.leaving and not each.shown]
                self.may_go.add(step.id)
            self.decide(lambda state: change_of(DECLARED_TOPICS, state, OPTIONS, declaration, step, 0))

    def check_quiet(self) -> None:
        """Nothing is to be done any more."""
        living = [each for each in self.declarations().values() if not each.leaving]
        assert len(living) == len(self.resources)
        for topic in self.state.topics.values():
            ours = [each for each in living if each.name == topic.name]
            assert [each for each in ours if each.id == topic.id] or all(is_refused(each.whole) for each in ours)
            assert len(ours) >= 1
        for each in living:
            found: Topic | None = self.state.topics.get(each.name)
            assert is_refused(each.whole) == (each.id is None)
            assert each.id is None or (found is not None and found.id == each.id)
            assert each.has_finalizer == (each.deletes and each.id is not None)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_users_do_nothing_is_lost_that_nobody_gave_up_and_all_comes_to_rest(seed: int) -> None:
    world = World(seed)
    for _ in range(40):
        for _ in range(world.random.randrange(4)):
            before = {topic.id for topic in world.state.topics.values()}
            world.user_acts()
            world.controller_acts()
            after = {topic.id for topic in world.state.topics.values()}
            assert before - after <= world.may_go
        if world.random.random() < 0.3:
            for _ in range(100):
                if not world.controller_acts():
                    break
            else:
                raise AssertionError("it does not come to rest")
            world.check_quiet()
