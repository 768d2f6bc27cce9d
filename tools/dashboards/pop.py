"""Dashboard of deliveries, redeliveries and poison messages."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Row
from tools.dashboards.query import largest, of, of_masters, per_second, total

_IN_FLIGHT = Row(
    "In flight",
    [
        Graph(
            "Messages delivered",
            "mps",
            "Messages that brokers delivered per second, by group.",
            [Line(total(per_second("rocketmq_messages_out_total"), "consumer_group"), "{{consumer_group}}")],
        ),
        Graph(
            "Messages in flight",
            "short",
            "Messages in flight, by broker, and those of the group that has most. The limit is "
            "broker.pop.open_messages_max.",
            [
                Line(of_masters("popwheel_pop_open_messages"), "{{instance}}"),
                Line(of_masters("popwheel_pop_open_messages_largest_share"), "{{instance}}, largest group"),
            ],
        ),
        Graph(
            "Deliveries",
            "short",
            "Pops of which a message is not acknowledged yet, and those of them that delay a committed offset.",
            [
                Line(of_masters("popwheel_pop_open_deliveries"), "{{instance}}, open"),
                Line(of_masters("rocketmq_pop_checkpoint_buffer_size"), "{{instance}}, in the merge buffer"),
            ],
        ),
    ],
)

_REVIVE = Row(
    "Revive: messages not acknowledged in time",
    [
        Graph(
            "Revived",
            "mps",
            "Messages that came due without an acknowledgement and went into their retry topic, in a second.",
            [Line(total(per_second("rocketmq_pop_revive_retry_messages_total"), "instance"), "{{instance}}")],
        ),
        Graph(
            "Revive is late by",
            "ms",
            "By how much the most overdue message is late. A healthy broker revives within some milliseconds.",
            [Line(of_masters("rocketmq_pop_revive_latency"), "{{instance}}")],
            bound=10_000,
        ),
        Graph(
            "Revive lag",
            "short",
            "Records since the oldest open delivery. A restart reads these again; slow consumers make more.",
            [Line(largest(of_masters("rocketmq_pop_revive_lag"), "instance"), "{{instance}}, longest queue")],
        ),
    ],
)

_IN_ORDER = Row(
    "FIFO groups and transactions",
    [
        Graph(
            "Messages that stand in line",
            "short",
            "Messages of FIFO groups that are read and wait for one before them. The limit is "
            "broker.pop.held_messages_max.",
            [Line(of_masters("popwheel_pop_blocked_messages"), "{{instance}}")],
        ),
        Graph(
            "Read no further",
            "short",
            "Pairs of a FIFO group and a topic for which no more is read, as too much stands in line. Above zero for "
            "long a message group is stuck.",
            [Line(of_masters("popwheel_pop_paused"), "{{instance}}")],
            bound=1,
        ),
        Graph(
            "Open transactions",
            "short",
            "Half messages that are neither committed nor rolled back. The limit is broker.transaction.open_max.",
            [Line(of_masters("popwheel_transactions_open"), "{{instance}}")],
        ),
        Graph(
            "Oldest transaction",
            "s",
            "How old the oldest half message is. Senders that say nothing are asked after 6 s and every 30 s then.",
            [Line(of_masters("popwheel_transactions_oldest_seconds"), "{{instance}}")],
            bound=180,
        ),
        Graph(
            "Transactions ended",
            "ops",
            "Transactions that ended, in a second, by how. Expired ones were rolled back as nobody ended them.",
            [Line(total(per_second("popwheel_transactions_ended_total"), "resolution"), "{{resolution}}")],
        ),
        Graph(
            "Senders asked",
            "ops",
            "How often senders were to be asked about a half message, in a second. Senders that end theirs are not.",
            [Line(total(per_second("popwheel_transactions_checks_total"), "instance"), "{{instance}}")],
        ),
    ],
)

_ASIDE = Row(
    "Moved aside",
    [
        Graph(
            "Dead letters",
            "short",
            "Messages in dead letter queues, by group: they used up their attempts.",
            [
                Line(
                    total(of_masters("rocketmq_send_to_dlq_messages_total"), "consumer_group"),
                    "{{consumer_group}}",
                )
            ],
        ),
        Graph(
            "Quarantine",
            "short",
            "Poison messages, by the step that failed. Above zero an operator has to act (docs/operate/messages.md).",
            [Line(total(of_masters("popwheel_quarantined_messages"), "instance", "step"), "{{instance}}: {{step}}")],
            bound=1,
        ),
        Graph(
            "Standing still",
            "short",
            "Queues and delayed messages that stand still at a damaged record until another replica repairs it.",
            [
                Line(of_masters("popwheel_damaged_queues"), "{{instance}}, queues"),
                Line(of_masters("popwheel_timer_damaged"), "{{instance}}, delayed messages"),
            ],
            bound=1,
        ),
        Graph(
            "Different filters in a group",
            "short",
            "Groups and topics whose consumers ask with different filters, and the messages a second that a filter "
            "passed over meanwhile: some may reach nobody (docs/use/filters.md).",
            [
                Line(of_masters("popwheel_groups_with_different_filters"), "{{instance}}, groups and topics"),
                Line(
                    total(per_second("popwheel_group_filter_passed_over_messages_total"), "instance"),
                    "{{instance}}, messages passed over",
                ),
            ],
            bound=1,
        ),
    ],
)

_READS = Row(
    "Reads",
    [
        Graph(
            "Read from the device",
            "Bps",
            "Bytes that were not in memory. Groups that are far behind make it high.",
            [Line(total(per_second("popwheel_storage_cold_read_bytes_total"), "instance"), "{{instance}}")],
        ),
        Graph(
            "Calls that wait for the device",
            "short",
            "Calls that wait until what they read is in memory. The device is read for eight at once.",
            [Line(of("popwheel_storage_cold_calls"), "{{instance}}")],
        ),
        Graph(
            "Pairs of group and queue",
            "short",
            "Of how many pairs the progress is kept. The limit is broker.pop.progress_max.",
            [Line(of_masters("popwheel_pop_progress"), "{{instance}}")],
        ),
    ],
)

POP: Final = Board(
    "pop",
    "Pop and revive",
    "Messages in flight, redeliveries, and poison messages.",
    [_IN_FLIGHT, _REVIVE, _IN_ORDER, _ASIDE, _READS],
)
