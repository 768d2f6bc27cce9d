"""The list of a broker's features, over which its core iterates.

A feature is a folder with its state, its decisions and its calls. This list says where they meet the others: what
follows the log, what retention waits for, what a checkpoint has, what ends a message at its delivery, what is measured.
So whoever adds a feature writes its folder and one entry here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import Metric

from popwheel_broker.consume.acks import Acks
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.consume.pops import Ending
from popwheel_broker.consume.quarantine import Quarantine
from popwheel_broker.consume.quarantine_metrics import quarantine_metrics
from popwheel_broker.core.expiry import NeedsRecords
from popwheel_broker.delay.message_timer import MessageTimer
from popwheel_broker.lite.lite_topics import LiteTopics
from popwheel_broker.lite.metrics import lite_metrics
from popwheel_broker.log.fold import Fold
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.time_to_live.time_to_live import TimeToLive, time_to_live_metrics
from popwheel_broker.topics.topic_registry import TopicRegistry
from popwheel_broker.topics.topic_rows import TopicRows
from popwheel_broker.transactions.coordinator import Coordinator
from popwheel_broker.transactions.metrics import transaction_metrics
from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView

Rows = Iterable[tuple[Any, ...]]


def _nothing() -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Wing:
    """A feature: whatever it does not have is left out.

    Args:
        name: its name.
        fold: its state, which follows the log.
        needs: its state that needs records of the log, so that retention waits for them.
        rows: returns all its rows of a checkpoint.
        changed_rows: returns those that have changed since the last call.
        ending: decides which messages end as they are to be delivered.
        metrics: returns its metrics.
    """

    name: str
    fold: Fold | None = None
    needs: NeedsRecords | None = None
    rows: Callable[[], Rows] = _nothing
    changed_rows: Callable[[], Rows] = _nothing
    ending: Ending | None = None
    metrics: Callable[[], Iterable[Metric]] = _nothing


def wings_of(
    *,
    store: MessageStore,
    state: PopState,
    names: TopicRegistry,
    quarantine: Quarantine,
    timer: MessageTimer,
    transactions: Coordinator,
    lite: LiteTopics,
    view: ClusterView,
    acks: Acks,
    clock: Clock,
) -> Sequence[Wing]:
    """Return the features, in the order in which their state follows the log: the timer looks up the quarantine first.

    Args:
        store, state, names, quarantine, timer, transactions, lite, view, acks: the parts of a core.
        clock: the time.
    """
    topic_rows = TopicRows(names)
    half_messages = transactions.table
    time_to_live = TimeToLive(view, acks)
    return (
        Wing("delay", fold=timer, needs=timer),
        Wing("consume", fold=state),
        Wing("topics", fold=names, rows=topic_rows.rows, changed_rows=topic_rows.changed_rows),
        Wing(
            "quarantine",
            fold=quarantine.table,
            needs=quarantine.table,
            metrics=lambda: quarantine_metrics(quarantine),
        ),
        Wing(
            "transactions",
            fold=half_messages,
            needs=half_messages,
            rows=half_messages.checkpoint_rows,
            changed_rows=half_messages.changed_rows,
            metrics=lambda: transaction_metrics(transactions, clock),
        ),
        Wing("lite", metrics=lambda: lite_metrics(lite, store.queues)),
        Wing("time_to_live", ending=time_to_live, metrics=lambda: time_to_live_metrics(time_to_live.ended_messages)),
    )
