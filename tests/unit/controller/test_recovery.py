"""What topics and groups come back by what brokers have in their logs, after the controllers' store was lost."""

from dataclasses import replace
from typing import Any

import pytest

from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE as LIFE
from popwheel_common.contract.cluster_view import ClusterView, store_id_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ListedName, SeenStore
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Group, Topic, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.recovery import VERSIONS_LEFT_OUT, BrokerNames, RecoveryPlan, plan_recovery
from popwheel_controller.cluster.watchers import Watcher, Watchers
from popwheel_controller.options import ControllerOptions
from tests.unit.controller.changes import KEY, contents

LOST = 3 * LIFE
NOW = 9 * LIFE
"""Of the state that was made anew; a smaller store_id follows as well as a larger one."""
OPTIONS = ControllerOptions(topics_max=6, groups_max=6)
FIFO = Topic(type=TopicType.FIFO, queues=4)
SLOW = Group(max_attempts=9, backoff_ms=[5])


def anew(begin: int = NOW) -> ClusterState:
    """A state that was just made, with the cluster's id taken over."""
    state = ClusterState("test", KEY, begin, named=begin)
    state = state.after(state.register_broker(BrokerInfo(name="b-0", address="one:1")))
    identified = state.identify("test-00000000000000aa")
    assert identified is not None
    return state.after(identified)


def listed(*ids: int, settings: Topic | Group | None = None, queues: int = 0, lite: bool = False) -> ListedName:
    text = None if settings is None else settings.SerializeToString()
    return ListedName(ids=ids, settings=text, queues=queues, has_lite_topics=lite)


def broker(
    topics: dict[str, ListedName], groups: dict[str, ListedName] | None = None, learned: int = LOST + 9, now: int = NOW
) -> BrokerNames:
    states = [SeenStore(version=learned, applied_version=learned), SeenStore(version=now, applied_version=now)]
    return BrokerNames(topics, groups or {}, states)


def plan(*brokers: BrokerNames, state: ClusterState | None = None, **how: Any) -> RecoveryPlan:
    known = {f"b-{number}": each for number, each in enumerate(brokers)}
    return plan_recovery(state or anew(), how.pop("options", OPTIONS), known, **how)


def after(state: ClusterState, of: RecoveryPlan) -> ClusterState:
    update = of.decide(state)
    assert update is not None
    return state.after(update)


def said(of: RecoveryPlan) -> dict[str, str]:
    return {each.name: each.what for each in of.findings}


@pytest.mark.parametrize("begin", [NOW, LIFE])
def test_all_is_as_it_was_and_versions_go_on_behind_the_lost_ones(begin: int) -> None:
    state = anew(begin)
    known = broker({"t": listed(LOST + 2, settings=FIFO, queues=4)}, {"g": listed(LOST + 3, settings=SLOW)}, now=begin)
    found = plan(known, state=state)
    assert found.topics == [Topic(name="t", type=TopicType.FIFO, queues=4, id=LOST + 2)]
    assert found.groups == [Group(name="g", max_attempts=9, backoff_ms=[5], id=LOST + 3)]
    assert not found.findings and state.topics == {}
    recovered = after(state, found)
    assert dict(recovered.topics) == {"t": found.topics[0]} and dict(recovered.groups) == {"g": found.groups[0]}
    assert recovered.version == recovered.named > LOST + 9 + VERSIONS_LEFT_OUT
    assert store_id_of(recovered.version) == store_id_of(LOST)
    assert (recovered.id, recovered.receipt_key, dict(recovered.brokers)) == (state.id, KEY, dict(state.brokers))


def test_who_watches_is_notified_the_whole_state_though_its_versions_go_back() -> None:
    state, view, watchers = anew(), ClusterView(), Watchers()
    watcher = Watcher(9, lambda: watchers.parts(state, 9), lambda: None)
    watchers.add(watcher)
    for each in watcher.take():
        view.apply(each)
    update = plan(broker({"t": listed(LOST + 2, settings=FIFO)}), state=state).decide(state)
    assert update is not None
    state = state.after(update)
    watchers.publish(update)
    created = state.create_topic(OPTIONS, "new", TopicType.NORMAL)
    state = state.after(created)
    watchers.publish(created)
    for each in watcher.take():
        view.apply(each)
    assert contents(view) == contents(state) and view.store_id == store_id_of(LOST)


def test_where_nothing_was_lost_nothing_is_done() -> None:
    state = anew()
    state = state.after(state.create_topic(OPTIONS, "t", TopicType.NORMAL))
    there = BrokerNames(
        {"t": listed(state.named)}, {"gone": listed(NOW + 1)}, [SeenStore(version=NOW, applied_version=NOW)]
    )
    for found in (plan(there, state=state), plan(BrokerNames(), state=state), plan(state=state)):
        assert found.decide(state) is None and not found.findings


def test_a_second_recovery_finds_nothing_to_do() -> None:
    """The logs know the ids of the state in between, too; it is not taken for a lost one."""
    first = plan(broker({"t": listed(LOST + 2, NOW + 8, settings=FIFO)}, {"g": listed(LOST + 3)}))
    state = after(anew(), first)
    again = [SeenStore(version=version, applied_version=version) for version in (LOST + 9, NOW + 8, state.named)]
    known = BrokerNames({"t": listed(NOW + 8, LOST + 2)}, {"g": listed(LOST + 3)}, again)
    assert plan(known, state=state).decide(state) is None
    lost_again = plan(replace(known, states=[*again, SeenStore(version=5 * LIFE)]), state=anew(5 * LIFE))
    assert [each.id for each in lost_again.topics] == [LOST + 2]
    assert lost_again.version > state.version


def test_brokers_that_have_not_learned_of_the_new_state_yet_are_as_good() -> None:
    known = BrokerNames(
        {"t": listed(LOST + 2, settings=FIFO)}, states=[SeenStore(version=LOST + 2, applied_version=LOST + 2)]
    )
    assert [each.id for each in plan(known).topics] == [LOST + 2]


def test_of_several_ids_the_highest_counts_and_so_do_the_settings_of_who_has_learned_most() -> None:
    older, newer = listed(LOST + 2, settings=FIFO), listed(LOST + 7, settings=Topic(type=TopicType.MIXED, queues=8))
    found = plan(broker({"t": older}, learned=LOST + 5), broker({"t": newer}))
    assert found.topics == [Topic(name="t", type=TopicType.MIXED, queues=8, id=LOST + 7)]
    assert [each.what for each in found.findings] == [
        f"brokers know it by several ids (b-0: {LOST + 2}, b-1: {LOST + 7}); the highest counts",
        "brokers know other settings of it; those of b-1 count",
    ]


def test_what_was_deleted_while_a_broker_was_away_stays_deleted() -> None:
    behind = broker({"t": listed(LOST + 2), "u": listed(LOST + 7, settings=FIFO)}, learned=LOST + 7)
    found = plan(behind, broker({}, learned=LOST + 5), broker({}, learned=0))
    assert [each.name for each in found.topics] == ["u"], "b-1 can't know of it, and b-2 is new"
    assert said(found) == {
        "'t'": "it was deleted: b-1 had seen a later state without it; b-0 had not",
    }
    found = plan(broker({"t": listed(LOST + 2)}), broker({}))
    assert found.decide(anew()) is None and len(found.findings) == 1


def test_what_no_log_says_is_taken_from_the_queues_and_from_the_options() -> None:
    topics = {
        "plain": listed(LOST + 1, queues=12),
        "empty": listed(LOST + 2),
        "lite": listed(LOST + 3, lite=True),
        "torn": ListedName(ids=[LOST + 4], settings=b"\xff", queues=3),
    }
    groups = {"g": listed(LOST + 5)}
    found = plan(broker(topics, groups), broker({**topics, "plain": listed(LOST + 1, queues=5)}, groups))
    assert {each.name: (each.type, each.queues) for each in found.topics} == {
        "plain": (TopicType.NORMAL, 12),
        "empty": (TopicType.NORMAL, OPTIONS.topic.queues),
        "lite": (TopicType.LITE, 1),
        "torn": (TopicType.NORMAL, 3),
    }
    default = Group(name="g", max_attempts=OPTIONS.group.max_attempts, backoff_ms=OPTIONS.group.backoff_ms)
    default.id = LOST + 5
    assert found.groups == [default]
    assert said(found)["empty"] == (
        "no log has its settings: it is of type NORMAL now, and has 8 queues, which is the default; change what was "
        "otherwise"
    )
    assert said(found).keys() == {*topics, "g"}


def test_a_broker_with_more_queues_than_the_settings_say_keeps_them() -> None:
    assert plan(broker({"t": listed(LOST + 2, settings=FIFO, queues=7)})).topics[0].queues == 7


def test_what_has_no_id_or_one_of_another_state_gets_a_new_one() -> None:
    """Of logs of older releases, which forgot the ids of groups; and of a state in between, with little in it."""
    known = broker({"t": listed(LOST + 2), "u": listed(LOST + 3), "x": listed(5 * LIFE + 1)}, {"g": listed()})
    found = plan(known)
    state = after(anew(), found)
    assert state.topics["x"].id == LOST + 9 + VERSIONS_LEFT_OUT + 1
    assert state.groups["g"].id == LOST + 9 + VERSIONS_LEFT_OUT + 2 < state.named
    assert "nobody knows the id" in " ".join(each.what for each in found.findings if each.name == "g")
    state = after(anew(), plan(BrokerNames({}, {"g": listed()}, [SeenStore(version=NOW, applied_version=NOW)])))
    assert (state.groups["g"].id, state.named) == (anew().version + 1, anew().version + 2)


def test_what_is_there_under_another_id_is_refused_or_adopted() -> None:
    state = anew()
    state = state.after(state.create_topic(OPTIONS, "t", TopicType.MIXED, 2))
    made = state.named
    state = state.after(state.create_group(OPTIONS, "new"))
    known = broker({"t": listed(LOST + 2, made, settings=FIFO), "u": listed(LOST + 3)}, {"new": listed(state.named)})
    with pytest.raises(StatusError) as refused:
        plan(known, state=state)
    assert refused.value.code == Code.PRECONDITION_FAILED
    assert refused.value.message.startswith("topic t is there already under another id than before the store was lost")
    found = plan(known, state=state, adopt=True)
    assert [each.name for each in found.topics] == ["u"]
    assert found.recreated_topics == [Topic(name="t", type=TopicType.MIXED, queues=2, id=LOST + 2)]
    assert "was made again since, and gets its former id" in said(found)["t"]
    recovered = after(state, found)
    assert {*recovered.topics} == {"t", "u"}
    assert recovered.groups["new"].id > LOST + 9 + VERSIONS_LEFT_OUT, "as of the state that came back"


def test_a_group_that_a_first_use_made_gets_its_former_settings_and_one_made_by_hand_keeps_its_own() -> None:
    state = anew()
    for name, attempts in (("first", None), ("hand", 5), ("ordered", None), ("torn", None)):
        state = state.after(state.create_group(OPTIONS, name, attempts))
    now = {name: each.id for name, each in state.groups.items()}
    before = {name: LOST + 2 + number for number, name in enumerate(now)}

    def known(name: str, former: bytes) -> ListedName:
        return ListedName(ids=[before[name], now[name]], settings=b"", former_settings=former)

    ordered = Group(max_attempts=9, backoff_ms=[5], fifo=True)
    texts = {"first": SLOW, "hand": SLOW, "ordered": ordered}
    logs = {name: known(name, each.SerializeToString()) for name, each in texts.items()}
    found = plan(broker({}, {**logs, "torn": known("torn", b"\xff")}), state=state, adopt=True)
    kept = {each.name: each for each in found.recreated_groups}
    assert kept["first"] == Group(name="first", max_attempts=9, backoff_ms=[5], id=before["first"])
    assert kept["ordered"] == Group(name="ordered", max_attempts=9, backoff_ms=[5], id=before["ordered"])
    assert (kept["hand"].max_attempts, kept["torn"].max_attempts) == (5, OPTIONS.group.max_attempts)
    assert [each.name for each in found.findings if "its order was another one" in each.what] == ["ordered"]


def test_a_topic_that_was_made_again_with_fewer_queues_gets_all_that_have_messages() -> None:
    state = anew()
    state = state.after(state.create_topic(OPTIONS, "t", TopicType.FIFO, 2))
    (kept,) = plan(broker({"t": listed(LOST + 2, state.named, queues=4)}), state=state, adopt=True).recreated_topics
    assert (kept.queues, kept.message_group_queues, kept.id) == (4, 2, LOST + 2)


def test_a_topic_that_was_deleted_since_stays_so() -> None:
    state = anew()
    state = state.after(state.create_topic(OPTIONS, "t", TopicType.MIXED))
    made = state.named
    state = state.after(state.delete_topic("t"))
    found = plan(broker({"t": listed(LOST + 2, made), "u": listed(LOST + 3)}), state=state)
    assert [each.name for each in found.topics] == ["u"]
    recovered = after(state, found)
    assert recovered.deleted_topics == state.deleted_topics
    assert recovered.deleted_topics.resting("t", 0) is None


def test_names_that_can_not_be_used_and_too_many_names() -> None:
    found = plan(broker({"no blanks": listed(LOST + 2), "t": listed(LOST + 3)}))
    assert [each.name for each in found.topics] == ["t"]
    assert said(found)["'no blanks'"] == "its name can't be used; its messages stay in the log"
    many = broker({f"t{number}": listed(LOST + number) for number in range(1, 8)})
    with pytest.raises(StatusError, match=r"7 topics, more than controller.topics_max allows \(6\)") as refused:
        plan(many)
    assert refused.value.code == Code.TOO_MANY_REQUESTS


def test_a_plan_is_void_when_topics_have_changed_since() -> None:
    state = anew()
    found = plan(broker({"t": listed(LOST + 2)}), state=state)
    routes = state.after(state.register_broker(BrokerInfo(name="b-9", address="two:2")))
    assert found.decide(routes) is not None
    with pytest.raises(StatusError, match="try again"):
        found.decide(state.after(state.create_topic(OPTIONS, "u", TopicType.NORMAL)))


def test_logs_of_a_release_that_knew_no_cluster_ids_come_back_too() -> None:
    known = BrokerNames({"t": listed(17)}, states=[SeenStore(version=NOW, applied_version=NOW)])
    state = after(anew(), plan(known))
    assert state.topics["t"].id == 17 and state.version == 17 + VERSIONS_LEFT_OUT + 1
