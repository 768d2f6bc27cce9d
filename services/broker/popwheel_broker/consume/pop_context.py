"""The parts that pops, acks and expiry share."""

from dataclasses import dataclass

from popwheel_broker.consume.pop_clock import PopClock
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.topics.system_topics import SystemTopics
from popwheel_common.contract.cluster_view import ClusterView


@dataclass(frozen=True, slots=True)
class PopContext:
    """Store, state and names that deliveries need, made once.

    Args:
        store: the messages.
        state: messages in flight.
        view: topics, groups, and the key of receipt handles.
        topics: where delivery and ACK records stand, and copies.
        clock: for pop and due times.
        broker_name: goes into receipt handles.
        quarantine: takes poison messages.
    """

    store: MessageStore
    state: PopState
    view: ClusterView
    topics: SystemTopics
    clock: PopClock
    broker_name: str
    quarantine: Quarantine
