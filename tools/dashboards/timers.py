"""Delayed messages."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Row
from tools.dashboards.query import of_masters, per_second, share_within, total

_DUE = Row(
    "Due",
    [
        Graph(
            "Accepted and fired",
            "mps",
            "Delayed messages that were accepted, that were put into their topics as they came due, and that were "
            "recalled, in a second.",
            [
                Line(total(per_second("rocketmq_timer_enqueue_total")), "accepted"),
                Line(total(per_second("rocketmq_timer_dequeue_total")), "fired"),
                Line(total(per_second("popwheel_timer_recalls_total")), "recalled"),
            ],
        ),
        Graph(
            "Pending, by topic",
            "short",
            "Delayed messages that are not due yet.",
            [Line(total(of_masters("rocketmq_timing_messages"), "topic"), "{{topic}}")],
        ),
        Graph(
            "Room for timers",
            "percentunit",
            "Share of broker.timer.timers_max that is in use. Past it delayed messages are refused.",
            [
                Line(
                    f"{of_masters('popwheel_timers_pending')} / {of_masters('popwheel_timers_max')}",
                    "{{instance}}",
                )
            ],
            bound=0.9,
        ),
    ],
)

_LATENESS = Row(
    "Lateness",
    [
        Graph(
            "Late by",
            "s",
            "How much later than it was due a delayed message was put into its topic.",
            [
                Line(share_within(share, "popwheel_timer_lateness_seconds"), f"{share:.0%} within")
                for share in (0.5, 0.95, 0.99)
            ],
        ),
        Graph(
            "Behind by",
            "ms",
            "By how much the oldest message that is due and not put yet is late. It stays near zero.",
            [Line(of_masters("rocketmq_timer_dequeue_latency"), "{{instance}}")],
            bound=5_000,
        ),
        Graph(
            "Due and not put yet",
            "short",
            "Messages that are due and not put, and records of the timer queue that are not in the wheel yet.",
            [
                Line(of_masters("rocketmq_timer_dequeue_lag"), "{{instance}}, due"),
                Line(of_masters("rocketmq_timer_enqueue_lag"), "{{instance}}, not in the wheel"),
            ],
        ),
    ],
)

_STAGES = Row(
    "Inside",
    [
        Graph(
            "Between the stages",
            "short",
            "Entries that wait between two stages, each of broker.timer.stage_entries_max.",
            [
                Line(
                    total(of_masters("popwheel_timer_stage_entries"), "instance", "queue"),
                    "{{instance}}: {{queue}}",
                )
            ],
        ),
        Graph(
            "Slots that are open",
            "short",
            "Seconds of the wheel that are begun and not done, and entries of those that are being read.",
            [
                Line(of_masters("popwheel_timer_open_slots"), "{{instance}}, slots"),
                Line(of_masters("popwheel_timer_slot_entries"), "{{instance}}, entries"),
            ],
        ),
        Graph(
            "Timer log",
            "bytes",
            "Size of the timer log, and of the messages that wait for the last stage, of 64 MiB.",
            [
                Line(of_masters("popwheel_timer_log_bytes"), "{{instance}}, timer log"),
                Line(of_masters("popwheel_timer_put_bytes"), "{{instance}}, waiting to be put"),
            ],
        ),
    ],
)

TIMERS: Final = Board(
    "timers",
    "Timers",
    "Delayed messages: how many are pending, how late they come, and whether the timer falls behind.",
    [_DUE, _LATENESS, _STAGES],
)
