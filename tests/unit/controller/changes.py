"""Random changes of a cluster's state, for properties that must hold after any of them."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE, ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerInfo,
    ClusterUpdate,
    ExponentialBackoff,
    Group,
    Topic,
    TopicType,
)
from popwheel_controller.cluster.alteration import GroupSettings, TopicSettings, alter_group, alter_topic
from popwheel_controller.cluster.cluster_book import ClusterBook, Entry, cluster_document, cluster_of
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.name_map import NameMap
from popwheel_controller.cluster.watchers import Snapshot
from popwheel_controller.options import ControllerOptions
from popwheel_controller.store.state_store import Document

OPTIONS = ControllerOptions(topics_max=4, groups_max=4)
KEY = bytes(range(32))

Change = Callable[[ClusterState], ClusterUpdate | None]

NAMES = st.sampled_from(["a", "b", "c-1", "D_2", "e", "%RETRY%a", "", "no blanks"])
"""Few, so that the same is made, found and deleted again; some of them illegal."""
TIMES = st.integers(0, 100)
REST_MS = 30
BROKERS = st.sampled_from(["a", "b", "c-1", "D_2"])
"""Of replicas that were let in."""


def _create_topic(name: str, kind: TopicType.ValueType, queues: int | None) -> Change:
    return lambda state: state.create_topic(OPTIONS, name, kind, queues)


def _delete_topic(name: str, now_ms: int) -> Change:
    return lambda state: state.delete_topic(name, now_ms, REST_MS)


def _ensure_topic(name: str, now_ms: int) -> Change:
    return lambda state: state.ensure_topic(OPTIONS, name, TopicType.MIXED, now_ms)


def _create_group(name: str, attempts: int | None, fifo: bool, backoff: list[int] | None, factor: float) -> Change:
    grows = ExponentialBackoff(initial_ms=5, max_ms=500, multiplier=factor) if backoff is None and factor else None
    return lambda state: state.create_group(OPTIONS, name, attempts, fifo, backoff, grows)


def _delete_group(name: str, now_ms: int) -> Change:
    return lambda state: state.delete_group(name, now_ms, REST_MS)


def _ensure_group(name: str, now_ms: int) -> Change:
    return lambda state: state.ensure_group(OPTIONS, name, now_ms)


def _alter_topic(name: str, kind: TopicType.ValueType | None, queues: int | None, expiration_ms: int | None) -> Change:
    others = {} if expiration_ms is None else {"lite_expiration_ms": expiration_ms}
    return lambda state: alter_topic(state, name, TopicSettings(kind, queues, others))


def _alter_group(name: str, attempts: int | None, fifo: bool | None, backoff: list[int] | None) -> Change:
    return lambda state: alter_group(state, name, GroupSettings(attempts, fifo, backoff))


def _identify(cluster_id: str) -> Change:
    return lambda state: state.identify(cluster_id)


def _register(name: str, address: str) -> Change:
    return lambda state: state.register_broker(BrokerInfo(name=name, address=address))


def _dismiss(name: str, is_known: bool) -> Change:
    return lambda state: state.dismiss_broker(name, is_known=is_known)


CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(
        _create_topic,
        NAMES,
        st.sampled_from(TopicType.values()),
        st.none() | st.integers(min_value=-1, max_value=1025),
    ),
    st.builds(_delete_topic, NAMES, TIMES),
    st.builds(_ensure_topic, NAMES, TIMES),
    st.builds(
        _create_group,
        NAMES,
        st.none() | st.integers(min_value=0, max_value=20),
        st.booleans(),
        st.none() | st.lists(st.integers(min_value=-1, max_value=10_000), max_size=4),
        st.sampled_from((0.0, 0.5, 1.0, 1.5)),
    ),
    st.builds(_delete_group, NAMES, TIMES),
    st.builds(_ensure_group, NAMES, TIMES),
    st.builds(
        _alter_topic,
        NAMES,
        st.none() | st.sampled_from(TopicType.values()),
        st.none() | st.integers(min_value=-1, max_value=1025),
        st.sampled_from((None, 0, 1, 5_000)),
    ),
    st.builds(
        _alter_group,
        NAMES,
        st.none() | st.integers(min_value=0, max_value=20),
        st.none() | st.booleans(),
        st.none() | st.lists(st.integers(min_value=-1, max_value=10_000), max_size=4),
    ),
    st.builds(_identify, st.sampled_from(["", "test-00000000000000aa"])),
    st.builds(_register, BROKERS, st.sampled_from(["", "one:1", "two:2"])),
    st.builds(_dismiss, BROKERS, st.booleans()),
)


def fresh_state() -> ClusterState:
    """A cluster with nothing in it."""
    return ClusterState("test", KEY)


def try_change(state: ClusterState, change: Change) -> tuple[ClusterState, ClusterUpdate | None]:
    """The state after a change and the change itself; the same state and None if it was refused or needless."""
    try:
        update = change(state)
    except StatusError:
        return state, None
    return (state, None) if update is None else (state.after(update), update)


def contents(holder: ClusterState | ClusterView) -> tuple[object, ...]:
    """What a state or a view of it holds, to be compared; without the version."""
    brokers = dict(holder.brokers), set(holder.away)
    cluster_id = holder.id if isinstance(holder, ClusterState) else holder.cluster_id
    return dict(holder.topics), dict(holder.groups), *brokers, holder.name, holder.receipt_key, cluster_id


def less_life(found: Any) -> Any:
    """Numbers in an answer without the life of the cluster's state, which is drawn when it is made."""
    if isinstance(found, dict):
        return {key: less_life(value) for key, value in found.items()}
    if isinstance(found, list):
        return [less_life(value) for value in found]
    return found % VERSIONS_PER_STORE if type(found) is int else found


def snapshot_of(state: ClusterState) -> ClusterUpdate:
    """A whole state in one part."""
    (whole,) = Snapshot(state, sys.maxsize).parts()
    return whole


def document_of(state: ClusterState) -> Document:
    """A state as one document, without pages."""
    entries: list[Entry] = [*state.topics.values(), *state.groups.values()]
    return cluster_document(state, ClusterBook(recent={entry.id: entry for entry in entries}))


def state_of(document: Document, source: str) -> ClusterState:
    """The same read back."""
    state, book = cluster_of(document, source)
    assert not book.pages
    entries = book.recent.values()
    return replace(
        state,
        topics=NameMap({entry.name: entry for entry in entries if isinstance(entry, Topic)}),
        groups=NameMap({entry.name: entry for entry in entries if isinstance(entry, Group)}),
    )
