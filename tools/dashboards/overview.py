"""Overview dashboard."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Number, Row
from tools.dashboards.query import TARGETS_DOWN, largest, of, of_masters, per_second, share_within, total

_GROUP = "{{consumer_group}}"
_MASTER = 'role="master"'
_SEND = ('request_code="SendMessage"',)

DISK_DAYS: Final = (
    f"clamp_max(min(({of('popwheel_disk_full_share')} - {of('popwheel_disk_used_share')})"
    f" / clamp_min(deriv({of('popwheel_disk_used_share')}[6h]), 1e-12) / 86400), 365)"
)

_WELL = Row(
    "Is all well?",
    [
        Number(
            "In",
            "mps",
            "Messages that were stored, in a second. Delayed messages count when they are accepted.",
            total(f"{per_second('rocketmq_messages_in_total')}")
            + f" + (sum ({per_second('rocketmq_timer_enqueue_total')}) or vector(0))",
        ),
        Number(
            "Out",
            "mps",
            "Messages delivered per second. Each group counts for itself, and so does each delivery.",
            total(per_second("rocketmq_messages_out_total")),
        ),
        Number(
            "Oldest message not acknowledged",
            "ms",
            "Age of the oldest message that a group has not acknowledged. It grows if consumers do not keep up.",
            f"{largest(of_masters('rocketmq_consumer_lag_latency'))} or vector(0)",
            bad_from=600_000,
        ),
        Number(
            "Not acknowledged",
            "short",
            "Messages that wait for a group, and messages in flight.",
            total(of_masters("rocketmq_consumer_lag_messages")),
        ),
        Number(
            "Groups without master",
            "short",
            "Broker groups without a living master. Sends go to the others, their messages wait.",
            total(of("popwheel_controller_groups_without_master")),
            bad_from=1,
        ),
        Number(
            "Disk lasts for",
            "d",
            "Days until the first broker refuses sends, at the pace of the last six hours. 365 means a year or more.",
            DISK_DAYS,
            bad_below=3,
        ),
    ],
)

_THERE = Row(
    "Is everybody there?",
    [
        Number(
            "Proxies",
            "short",
            "Proxies that serve. Without one clients can neither send nor receive.",
            f"{total(of('rocketmq_proxy_up'))} or vector(0)",
            bad_below=1,
        ),
        Number(
            "Controllers",
            "short",
            "Controllers that run. One of them leads, the others wait.",
            f"count({of('popwheel_controller_leads')}) or vector(0)",
            bad_below=1,
        ),
        Number(
            "Controllers that lead",
            "short",
            "It is 1. Without one no master can be replaced.",
            f"{total(of('popwheel_controller_leads'))} or vector(0)",
            bad_below=1,
        ),
        Number(
            "Brokers",
            "short",
            "Brokers that run, masters and slaves.",
            f"count({of('popwheel_replica_role', _MASTER)}) or vector(0)",
            bad_below=1,
        ),
        Number(
            "Targets that are down",
            "short",
            "Processes that Prometheus knew within a day, still asks, and gets no answer from.",
            f"sum ({TARGETS_DOWN}) or vector(0)",
            bad_from=1,
        ),
    ],
)

_TRAFFIC = Row(
    "Traffic",
    [
        Graph(
            "In, by topic",
            "mps",
            "Messages that were stored, in a second. Delayed ones are shown apart, when they are accepted.",
            [
                Line(total(per_second("rocketmq_messages_in_total"), "topic"), "{{topic}}"),
                Line(total(per_second("rocketmq_timer_enqueue_total"), "topic"), "{{topic}}, delayed"),
            ],
        ),
        Graph(
            "Out, by group",
            "mps",
            "Messages delivered per second, including redeliveries.",
            [Line(total(per_second("rocketmq_messages_out_total"), "consumer_group"), _GROUP)],
        ),
        Graph(
            "Bytes",
            "Bps",
            "Bytes of messages stored and delivered.",
            [
                Line(total(per_second("rocketmq_throughput_in_total")), "in"),
                Line(total(per_second("rocketmq_throughput_out_total")), "out"),
            ],
        ),
    ],
)

_LATENCY = Row(
    "Latency",
    [
        Graph(
            "End to end: from store to delivery",
            "s",
            "How long messages wait for their first delivery. It is long if a group is down.",
            [
                Line(share_within(share, "popwheel_pop_queueing_seconds"), f"{share:.0%} within")
                for share in (0.5, 0.95, 0.99)
            ],
        ),
        Graph(
            "Send",
            "ms",
            "How long a send takes at the proxy, from its arrival to its answer: the message is safe then.",
            [
                Line(share_within(share, "rocketmq_rpc_latency", matchers=_SEND), f"{share:.0%} within")
                for share in (0.5, 0.95, 0.99)
            ],
        ),
        Graph(
            "Calls, 99 % within",
            "ms",
            "How long clients' calls take at the proxy. ReceiveMessage waits for messages, so it may take seconds.",
            [Line(share_within(0.99, "rocketmq_rpc_latency", "request_code"), "{{request_code}}")],
        ),
    ],
)

_LAG = Row(
    "Lag",
    [
        Graph(
            "Lag in time",
            "ms",
            "How old the oldest message is that a group has yet to acknowledge, in any topic. No line means no lag.",
            [Line(largest(of_masters("rocketmq_consumer_lag_latency"), "consumer_group"), _GROUP)],
            bound=600_000,
        ),
        Graph(
            "Ready",
            "short",
            "Messages that wait for delivery. It grows when a group receives less than what is sent.",
            [Line(total(of_masters("rocketmq_consumer_ready_messages"), "consumer_group"), _GROUP)],
        ),
        Graph(
            "In flight",
            "short",
            "Messages in flight: delivered and not acknowledged. They are redelivered when their time is over.",
            [Line(total(of_masters("rocketmq_consumer_inflight_messages"), "consumer_group"), _GROUP)],
        ),
        Graph(
            "Lag in time, by topic",
            "ms",
            "How old the oldest message of a topic is that some group has yet to acknowledge.",
            [Line(largest(of_masters("popwheel_topic_lag_latency"), "topic"), "{{topic}}")],
            bound=600_000,
        ),
        Graph(
            "Not acknowledged, by topic",
            "short",
            "Messages of a topic that groups have yet to acknowledge, of all groups together.",
            [Line(total(of_masters("popwheel_topic_lag_messages"), "topic"), "{{topic}}")],
        ),
        Graph(
            "Out, by topic",
            "mps",
            "Messages delivered per second, to all groups.",
            [Line(total(per_second("popwheel_topic_messages_out_total"), "topic"), "{{topic}}")],
        ),
    ],
)

_CALLS = Row(
    "Calls and machines",
    [
        Graph(
            "Calls that fail",
            "reqps",
            "Clients' calls that failed, by call and code. A poll that finds no message is none of them.",
            [
                Line(
                    total(
                        per_second("rocketmq_rpc_latency_count", 'response_code!~"OK|MESSAGE_NOT_FOUND"'),
                        "request_code",
                        "response_code",
                    ),
                    "{{request_code}}: {{response_code}}",
                )
            ],
        ),
        Graph(
            "Limits",
            "ops",
            "How often a client went past a limit, by the setting's name (docs/reference/limits.md).",
            [
                Line(total(per_second("popwheel_proxy_limit_hits_total"), "limit"), "{{limit}}"),
                Line(total(per_second("popwheel_rpc_limit_hits_total"), "limit"), "{{limit}}, of the transport"),
                Line(total(per_second("popwheel_broker_refused_disk_full_total")), "sends refused: disk full"),
            ],
        ),
        Graph(
            "Clients",
            "short",
            "Clients that proxies know now: producers and consumers.",
            [Line(total(of("popwheel_proxy_clients"), "instance"), "{{instance}}")],
        ),
        Graph(
            "Processor",
            "percentunit",
            "Share of a core that each process takes. A process takes one core at the most.",
            [Line(total(per_second("process_cpu_seconds_total"), "instance"), "{{instance}}")],
            bound=0.9,
        ),
        Graph(
            "Turns of the loop",
            "s",
            "How long turns took within a minute, in CPU time: the longest, and what 99 of 100 did not exceed. All "
            "that a process serves waits for a long one.",
            [
                Line(largest(of("popwheel_loop_turn_max_seconds"), "instance"), "{{instance}}, longest"),
                Line(largest(of("popwheel_loop_turn_p99_seconds"), "instance"), "{{instance}}, 99 %"),
            ],
            bound=0.1,
        ),
        Graph(
            "HTTP connections",
            "short",
            "Connections to the HTTP pages of each process. The limit is http.connections_max.",
            [Line(total(of("popwheel_http_connections"), "instance"), "{{instance}}")],
        ),
        Graph(
            "Memory",
            "bytes",
            "What each process has in memory.",
            [Line(total(of("process_resident_memory_bytes"), "instance"), "{{instance}}")],
        ),
        Graph(
            "Disk",
            "percentunit",
            "Share of the disk in use. Sends are refused above broker.disk_full_share, the dashed line by default.",
            [Line(largest(of("popwheel_disk_used_share"), "instance"), "{{instance}}")],
            bound=0.95,
        ),
    ],
)

OVERVIEW: Final = Board(
    "overview",
    "Overview",
    "What goes in and out, how late it is, and whether anything is wrong.",
    [_WELL, _THERE, _TRAFFIC, _LATENCY, _LAG, _CALLS],
)
