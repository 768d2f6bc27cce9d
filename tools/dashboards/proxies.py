"""Proxies, and how polls wait at them."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Row
from tools.dashboards.query import of, per_second, share_within, total

_POLLS = Row(
    "Long polling",
    [
        Graph(
            "Polls",
            "reqps",
            "Polls that may wait, those whose first pop found messages, and those that waited to be notified by all "
            "brokers: the three counts of the article on stateless consumption.",
            [
                Line(total(per_second("is_long_polling_total")), "is_long_polling"),
                Line(total(per_second("is_short_polling_hit_total")), "is_short_polling_hit"),
                Line(total(per_second("is_pop_with_notify_total")), "is_pop_with_notify"),
            ],
        ),
        Graph(
            "Mode",
            "short",
            "How the polls of groups and topics wait now: notify, plain or sliced "
            "(docs/internals/waiting-polls.md). Each proxy counts for itself.",
            [Line(total(of("popwheel_proxy_poll_mode"), "mode"), "{{mode}}")],
        ),
        Graph(
            "Mode changes",
            "ops",
            "How often the polls of a group and topic began to wait another way.",
            [Line(total(per_second("popwheel_proxy_poll_mode_switches_total"), "to"), "to {{to}}")],
        ),
    ],
)

_WAKES = Row(
    "Wake-ups",
    [
        Graph(
            "Wake-ups",
            "ops",
            "Polls that a notification woke, and those of them that found nothing: another one was faster.",
            [
                Line(total(per_second("popwheel_proxy_poll_wakes_total")), "woken"),
                Line(total(per_second("popwheel_proxy_poll_wakes_without_message_total")), "without a message"),
            ],
        ),
        Graph(
            "From notification to messages",
            "s",
            "How long it takes from a broker's notification to the answer of the pop that it brings about.",
            [
                Line(share_within(share, "popwheel_proxy_notification_round_trip_seconds"), f"{share:.0%} within")
                for share in (0.5, 0.95, 0.99)
            ],
        ),
        Graph(
            "Pops",
            "ops",
            "Pops that proxies sent to brokers, those that failed, and first pops that were not needed.",
            [
                Line(total(per_second("popwheel_proxy_pops_total")), "sent"),
                Line(total(per_second("popwheel_proxy_pop_failures_total")), "failed"),
                Line(total(per_second("popwheel_proxy_first_pops_spared_total")), "spared"),
            ],
        ),
        Graph(
            "Polls now",
            "short",
            "Polls that are being served, and those of them that wait for messages.",
            [
                Line(of("popwheel_proxy_polls"), "{{instance}}, served"),
                Line(of("popwheel_proxy_polls_waiting"), "{{instance}}, waiting"),
            ],
        ),
        Graph(
            "Interests",
            "short",
            "Topics, groups and filters that are polled for, and those that brokers do not notify for, as they have "
            "too many: these are popped in turn.",
            [
                Line(of("popwheel_proxy_interests"), "{{instance}}"),
                Line(of("popwheel_proxy_interests_refused"), "{{instance}}, not notified"),
            ],
        ),
        Graph(
            "Notify streams that broke",
            "ops",
            "Streams of notifications that ended and were opened anew. A failover breaks some.",
            [Line(total(per_second("popwheel_proxy_notify_streams_broken_total"), "instance"), "{{instance}}")],
        ),
    ],
)

_SENDS = Row(
    "Sends and brokers",
    [
        Graph(
            "Sends, by broker group",
            "mps",
            "Sends by the broker group that they went to, and how they ended.",
            [Line(total(per_second("popwheel_proxy_sends_total"), "broker", "outcome"), "{{broker}}: {{outcome}}")],
        ),
        Graph(
            "Tries again",
            "ops",
            "Retried calls to broker groups, by reason, and sends that were moved to another group.",
            [
                Line(total(per_second("popwheel_proxy_call_retries_total"), "reason"), "{{reason}}"),
                Line(total(per_second("popwheel_proxy_sends_moved_total")), "moved to another group"),
            ],
        ),
        Graph(
            "Parked and avoided",
            "short",
            "Calls that wait for a master, and brokers that sends avoid as they are slow or fail.",
            [
                Line(of("popwheel_proxy_parked_calls"), "{{instance}}, parked calls"),
                Line(of("popwheel_proxy_brokers_avoided"), "{{instance}}, brokers avoided"),
                Line(of("popwheel_proxy_brokers_without_master"), "{{instance}}, groups without master"),
            ],
        ),
    ],
)

_CLIENTS = Row(
    "Clients",
    [
        Graph(
            "Connections",
            "short",
            "Connections that are open, and streams of clients' settings.",
            [
                Line(of("popwheel_rpc_connections"), "{{instance}}"),
                Line(of("popwheel_proxy_telemetry_streams"), "{{instance}}, telemetry"),
            ],
        ),
        Graph(
            "Answers not taken yet",
            "bytes",
            "Bytes of answers that clients have not read yet. A slow client makes it grow up to its limit.",
            [Line(of("popwheel_proxy_unsent_bytes"), "{{instance}}")],
        ),
        Graph(
            "Handles that are renewed",
            "short",
            "Receipt handles that proxies renew for push consumers.",
            [Line(of("popwheel_proxy_renewed_handles"), "{{instance}}")],
        ),
    ],
)

PROXIES: Final = Board(
    "proxies",
    "Proxies and long polling",
    "Long polls and wake-ups, sends, and open streams of clients.",
    [_POLLS, _WAKES, _SENDS, _CLIENTS],
)
