"""What the controllers' word changes is found without going through all names, as going through all would find it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.topics import topic_registry
from popwheel_broker.topics.known_ids import NOT_PLACED
from popwheel_broker.topics.topic_registry import Names, SavedNames, TopicRegistry
from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE, ClusterView
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate, Group, Topic
from tests.harness import names_in_log

KINDS = [
    "create",
    "create",
    "delete",
    "snapshot",
    "half",
    "settle",
    "settle",
    "log",
    "forget",
    "restart",
    "back",
    "life",
]
STEPS = st.lists(st.tuples(st.sampled_from([*KINDS, "life"]), st.integers(0, 5), st.booleans()), max_size=40)


class Both:
    """Controllers' state, a view of it that may lag, and what a log knows."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.names = TopicRegistry(self.view)
        self.version = VERSIONS_PER_STORE
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.learn(self.snapshot(1000)[0])

    def learn(self, update: ClusterUpdate) -> None:
        self.names.stage(update)
        self.view.apply(update)
        if not update.more:
            self.names.view_changed(update)

    def snapshot(self, names_max: int) -> list[ClusterUpdate]:
        every: list[Any] = [*self.topics.values(), *self.groups.values()]
        parts = [every[first : first + names_max] for first in range(0, len(every), names_max)] or [[]]
        return [
            ClusterUpdate(
                version=self.version,
                snapshot=True,
                cluster=None if number else Cluster(name="test", receipt_key=b"key"),
                topics=[each for each in part if isinstance(each, Topic)],
                groups=[each for each in part if isinstance(each, Group)],
                more=number < len(parts) - 1,
            )
            for number, part in enumerate(parts)
        ]

    def change(self, number: int, there: bool, learned: bool) -> None:
        self.version += 1
        name = f"n{number}"
        kind, of = (self.topics, "topics") if number % 2 else (self.groups, "groups")
        update = ClusterUpdate(version=self.version)
        if there:
            kind[name] = (Topic if number % 2 else Group)(name=name, id=self.version)  # type: ignore[assignment]
            getattr(update, of).append(kind[name])
        elif kind.pop(name, None) is not None:
            getattr(update, f"deleted_{of}").append(name)
        if learned:
            self.learn(update)

    def settle(self) -> None:
        anew = self.names.new_store()
        if anew is not None:
            names_in_log.record(self.names, anew)
        self.check()
        changes = self.names.changes()
        learned = self.view.named if self.names.knows_all_of_view else self.names.applied_version
        if changes.gone_topics or changes.gone_groups:
            names_in_log.record(self.names, Names(applied_version=self.view.named))
        for name in changes.gone_topics:
            names_in_log.forget_topic(self.names, name)
        for name in changes.gone_groups:
            names_in_log.forget_group(self.names, name)
        if changes.new_topics or changes.new_groups:
            names_in_log.record(self.names, Names(changes.new_topics, changes.new_groups, learned))
        self.names.applied()

    def check(self) -> None:
        """What is found is what going through all names finds."""
        names, view = self.names, self.view
        changes = names.changes()
        topics = names._topics, view.topics, names._dropped_up_to, changes.gone_topics, changes.new_topics
        groups = names._groups, view.groups, -1, changes.gone_groups, changes.new_groups
        for known, held, dropped, gone, new in (topics, groups):
            blocked_ids = {name: each.id for name, each in held.items()}
            all_gone = {
                name
                for name, id_ in known.ids.items()
                if (
                    NOT_PLACED < id_ < blocked_ids[name]
                    if name in blocked_ids
                    else names._deleted(known.deleted.get(name, 0)) > id_
                )
            }
            assert set(gone) <= all_gone
            assert set(gone) == all_gone or not names.knows_all_of_view
            all_new = {name: id_ for name, id_ in blocked_ids.items() if id_ > max(known.ids.get(name, -1), dropped)}
            assert new.items() <= all_new.items()
            assert new == all_new or not names.knows_all_of_view


def restart(both: Both) -> None:
    """The log is folded anew, from a checkpoint."""
    before = both.names
    former = {topic: before.former_ids(topic) for topic in before.topic_ids if before.former_ids(topic)}
    saved = SavedNames(dict(before.topic_ids), dict(before.group_ids), former, before.applied_version)
    both.names = TopicRegistry(both.view)
    both.names.restore(saved)


def go(both: Both, steps: list[tuple[str, int, bool]]) -> None:
    for what, number, learned in steps:
        if what in ("create", "delete"):
            both.change(number, what == "create", learned)
        elif what == "snapshot":
            for part in both.snapshot(number + 1):
                both.learn(part)
                if learned:
                    both.check()
                if learned and part.more and number in (1, 2):
                    restart(both)
        elif what == "half":
            both.learn(both.snapshot(1)[0])
        elif what == "log":  # a slave folds what its master has written
            older = int(number > 3)  # than what the view tells
            some = both.topics.values() if number % 2 else both.groups.values()
            ids = {each.name: each.id - older for each in some}
            names_in_log.record(
                both.names, Names(ids if number % 2 else {}, {} if number % 2 else ids, both.version if learned else 0)
            )
        elif what == "forget":
            names_in_log.forget_topic(both.names, f"n{number}")
        elif what == "restart":
            restart(both)
        elif what == "back":  # the controllers know less than they told
            both.version = max(VERSIONS_PER_STORE, both.version - number)
            both.learn(both.snapshot(1000)[0])
        elif what == "life":
            both.version += VERSIONS_PER_STORE
            both.learn(both.snapshot(1000)[0])
        else:
            both.settle()
        both.check()


@given(steps=STEPS)
def test_what_changes_is_what_going_through_all_names_finds(steps: list[tuple[str, int, bool]]) -> None:
    go(Both(), steps)


@given(steps=STEPS)
def test_where_many_are_new_or_gone_some_are_dealt_with_at_a_time(steps: list[tuple[str, int, bool]]) -> None:
    """In the end all are known, and not before are the controllers' changes said to be dealt with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_registry, "_NEW_AT_ONCE", 1)
        patch.setattr(topic_registry, "_DELETED_AT_ONCE", 1)
        both = Both()
        go(both, steps)
        for part in both.snapshot(2):
            both.learn(part)
        for _ in range(20):
            both.settle()
        assert not both.names.has_pending_changes
        if both.view.named >= both.names.known_version:
            for ids, held in ((both.names.topic_ids, both.topics), (both.names.group_ids, both.groups)):
                assert {name: each.id for name, each in held.items()} == {name: ids[name] for name in held}


def test_what_a_call_needs_does_not_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_registry, "_NEW_AT_ONCE", 2)
    both = Both()
    for number in range(1, 19, 2):
        both.change(number, there=True, learned=True)
    changes = both.names.changes(["n17"], [])
    assert list(changes.new_topics) == ["n17", "n1", "n3"]
    assert not both.names.knows_all_of_view
    names_in_log.record(both.names, Names(changes.new_topics))
    both.names.applied()
    assert both.names.has_pending_changes
    assert list(both.names.changes().new_topics) == ["n5", "n7"]


def test_where_many_are_gone_some_are_dropped_at_a_time_and_what_a_call_needs_at_once() -> None:
    both = Both()
    for number in range(22):
        both.change(number, there=True, learned=True)
    both.settle()
    for number in range(22):
        both.change(number, there=False, learned=True)
    for number in range(14):  # made again, before that was dealt with
        both.change(number, there=True, learned=True)
    needed = both.names.changes(["n17"], ["n0", "n2"])
    assert (needed.gone_topics, needed.gone_groups) == (["n17"], ["n0", "n2"])
    assert (list(needed.new_topics), list(needed.new_groups)) == ([], ["n0", "n2"])
    assert not both.names.knows_all_of_view
    left = []
    while both.names.has_pending_changes:
        changes = both.names.changes()
        left.append((len(changes.gone_topics), len(changes.gone_groups)))
        both.settle()
    assert left == [(4, 4), (4, 4), (3, 3)]
    assert dict(both.names.topic_ids) == {name: each.id for name, each in both.topics.items()}
    assert dict(both.names.group_ids) == {name: each.id for name, each in both.groups.items()}


def test_names_that_agree_are_not_looked_at() -> None:
    both = Both()
    for number in range(20):
        both.change(number, there=True, learned=True)
    both.settle()
    for part in both.snapshot(3):
        both.learn(part)
    assert both.names.knows_all_of_view and not both.names._topics._differing
    both.change(3, there=True, learned=True)
    assert list(both.names._topics._differing) == ["n3"]


def test_a_log_that_is_folded_anew_between_two_parts_of_a_snapshot_misses_nothing_of_the_first() -> None:
    both = Both()
    for number in (1, 3):
        both.change(number, there=True, learned=False)
    first, second = both.snapshot(1)
    both.learn(first)
    restart(both)
    both.learn(second)
    assert sorted(both.names.changes().new_topics) == ["n1", "n3"]
