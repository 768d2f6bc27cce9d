"""Replicas, their masters, and the lag of slaves."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Number, Row
from tools.dashboards.query import largest, of, of_masters, per_second, share_within, total

_REPLICA = "{{broker}}, replica {{replica}}"

_WELL = Row(
    "Is all well?",
    [
        Number(
            "Groups without master",
            "short",
            "Broker groups that have no living master.",
            total(of("popwheel_controller_groups_without_master")),
            bad_from=1,
        ),
        Number(
            "Replicas out of sync",
            "short",
            "Replicas that lack acknowledged messages, or are down. One failure more may stop their group.",
            total(
                f"{of('popwheel_controller_group_replicas')} - {of('popwheel_controller_group_sync_state_set_size')}"
            ),
            bad_from=1,
        ),
        Number(
            "Oldest checkpoint",
            "s",
            "Age of the oldest copy of a master's progress that a slave holds. After a failover, progress younger than "
            "that is read from the log.",
            f"{largest(of('popwheel_controller_checkpoint_age_seconds'))} or vector(0)",
            bad_from=15,
        ),
        Number(
            "Controllers that lead",
            "short",
            "One, while the cluster can change. During a change of the leader it may be none for a moment.",
            total(of("popwheel_controller_leads")),
            bad_below=1,
        ),
    ],
)

_ROLES = Row(
    "Roles",
    [
        Graph(
            "Master",
            "short",
            "1 while a replica leads its group.",
            [Line(of("popwheel_replica_role", 'role="master"'), "{{instance}}")],
        ),
        Graph(
            "Epoch",
            "short",
            "Epoch of each group. Each new master begins the next one.",
            [Line(largest(of("popwheel_controller_group_epoch"), "broker"), "{{broker}}")],
        ),
        Graph(
            "Elections and hand-overs",
            "short",
            "New masters within ten minutes, those that an operator forced, and masters that passed on their role.",
            [
                Line(f"sum (increase({of('popwheel_controller_elections_total')}[10m]))", "elections"),
                Line(f"sum (increase({of('popwheel_controller_unclean_elections_total')}[10m]))", "forced"),
                Line(
                    f"sum by (outcome) (increase({of('popwheel_controller_hand_overs_total')}[10m]))",
                    "hand-over {{outcome}}",
                ),
            ],
        ),
    ],
)

_REPLICAS = Row(
    "Replicas",
    [
        Graph(
            "In sync",
            "short",
            "Replicas that have every acknowledged message, and all replicas of the group.",
            [
                Line(largest(of("popwheel_controller_group_sync_state_set_size"), "broker"), "{{broker}}, in sync"),
                Line(largest(of("popwheel_controller_group_replicas"), "broker"), "{{broker}}, all"),
            ],
        ),
        Graph(
            "Slaves are behind by",
            "s",
            "For how long a replica has lacked something of its master's log. Past broker.replication.lag_ms_max it "
            "leaves the set.",
            [Line(of("popwheel_replication_lag_seconds"), "replica {{replica}} of {{instance}}")],
            bound=3,
        ),
        Graph(
            "Slaves lack",
            "bytes",
            "Bytes of the master's log that a replica has not on its disk.",
            [Line(of("popwheel_replication_lag_bytes"), "replica {{replica}} of {{instance}}")],
        ),
        Graph(
            "Log sent and received",
            "Bps",
            "Bytes of the log that masters sent to slaves, and that slaves received.",
            [
                Line(total(per_second("popwheel_replication_sent_bytes_total"), "instance"), "{{instance}}, sent"),
                Line(
                    total(per_second("popwheel_replication_received_bytes_total"), "instance"),
                    "{{instance}}, received",
                ),
            ],
        ),
        Graph(
            "Not safe yet",
            "bytes",
            "Bytes that are not on the master's device, that may not be read yet, and that a failover may lose (with "
            "broker.replication.ack_mode master).",
            [
                Line(of_masters("rocketmq_storage_flush_behind_bytes"), "{{instance}}, not synced"),
                Line(of_masters("rocketmq_storage_dispatch_behind_bytes"), "{{instance}}, not readable"),
                Line(of_masters("popwheel_replication_unsafe_bytes"), "{{instance}}, at risk"),
            ],
        ),
        Graph(
            "Repairs",
            "short",
            "Damaged records: found, repaired from another replica, and not repairable.",
            [
                Line(of("popwheel_replication_checks_failed_total"), "{{instance}}, found"),
                Line(of("popwheel_replication_repaired_records_total"), "{{instance}}, mended"),
                Line(of("popwheel_replication_irreparable_records_total"), "{{instance}}, not to be mended"),
            ],
        ),
    ],
)

_CHECKPOINTS = Row(
    "Checkpoints: progress of timers, brought from masters to slaves",
    [
        Graph(
            "Age at slaves",
            "s",
            "How old the progress is that a slave has. Some seconds are usual.",
            [Line(largest(of("popwheel_controller_checkpoint_age_seconds"), "broker", "replica"), _REPLICA)],
            bound=15,
        ),
        Graph(
            "Time it takes",
            "s",
            "How long it takes from the request to a master until a slave has its answer.",
            [
                Line(share_within(share, "popwheel_controller_checkpoint_sync_seconds"), f"{share:.0%} within")
                for share in (0.5, 0.99)
            ],
        ),
        Graph(
            "Checkpoints of masters",
            "ops",
            "Checkpoints a second that masters sent: each goes to all slaves of its group.",
            [Line(total(per_second("popwheel_controller_checkpoint_fetches_total")), "all")],
        ),
        Graph(
            "Failed syncs",
            "short",
            "Within ten minutes, by step: the master did not send (fetch), the slave did not answer (store), the slave "
            "refused (refused).",
            [
                Line(
                    f"sum by (step) (increase({of('popwheel_controller_checkpoint_failures_total')}[10m]))",
                    "{{step}}",
                )
            ],
            bound=1,
        ),
        Graph(
            "Controller: saves",
            "s",
            "How long it took to make a change of the cluster's state durable.",
            [
                Line(share_within(share, "popwheel_controller_save_seconds"), f"{share:.0%} within")
                for share in (0.5, 0.99)
            ],
        ),
        Graph(
            "Controller: who follows",
            "short",
            "Processes that follow the cluster's state, and brokers that are registered.",
            [
                Line(of("popwheel_controller_watchers"), "{{instance}}, watchers"),
                Line(of("popwheel_controller_brokers"), "{{instance}}, broker groups"),
            ],
        ),
    ],
)

REPLICATION: Final = Board(
    "replication",
    "Replication and checkpoints",
    "Who leads, who has everything, how far the others are behind, and how fresh the progress of groups is at slaves.",
    [_WELL, _ROLES, _REPLICAS, _CHECKPOINTS],
)
