"""Dashboard of things to renew or repair: certificates, and resources that declare topics and groups."""

from typing import Final

from tools.dashboards.board import Board, Graph, Line, Number, Row
from tools.dashboards.query import TARGETS_DOWN, largest, of, per_second, total

_WEEK_S = 7 * 86_400

_WELL = Row(
    "Is all well?",
    [
        Number(
            "First certificate to end",
            "s",
            "For how long the certificate that ends first, or its authority, is valid. It should be renewed by itself.",
            f"min ({of('popwheel_certificate_expires_seconds')})",
            bad_below=_WEEK_S,
        ),
        Number(
            "Certificates refused",
            "short",
            "New certificates that processes cannot use: those before stay in force until they end. The logs say why.",
            total(of("popwheel_certificate_refused")),
            bad_from=1,
        ),
        Number(
            "Log lines lost",
            "short",
            "Lines of logs that could not be written within a quarter of an hour: a disk is full, or a reader hangs.",
            f"{total('increase(' + of('popwheel_log_lost_lines_total') + '[15m])')} or vector(0)",
            bad_from=1,
        ),
        Number(
            "Resources refused",
            "short",
            "Resources of topics and groups that are not READY, as kubectl get -o wide says with the reason.",
            f"{total(of('popwheel_controller_resources_refused'))} or vector(0)",
            bad_from=1,
        ),
        Number(
            "Resources left out",
            "short",
            "1 for topics, and 1 for groups, if there are more resources than controller.resources lets be looked at.",
            f"{total(of('popwheel_controller_resources_left_out'))} or vector(0)",
            bad_from=1,
        ),
    ],
)

_PROCESSES = Row(
    "Processes",
    [
        Graph(
            "Targets that are down",
            "short",
            "1 while a process that Prometheus asks does not answer. One that is taken away is asked no more.",
            [Line(largest(TARGETS_DOWN, "instance"), "{{instance}}")],
        ),
        Graph(
            "Started",
            "s",
            "For how long each process runs. A saw tooth is a process that ends again and again.",
            [
                Line(
                    f"time() - ({of('process_start_time_seconds')} "
                    f"and on (namespace, instance) {of('popwheel_rpc_connections')})",
                    "{{instance}}",
                )
            ],
        ),
    ],
    beside=2,
)

_CERTIFICATES = Row(
    "Certificates",
    [
        Graph(
            "Valid for",
            "s",
            "For how long the certificate in force, or its authority, is valid. It falls by a day a day, and jumps "
            "when a new one is taken over. Below the dashed line, a week, something has failed.",
            [Line(of("popwheel_certificate_expires_seconds"), "{{instance}}, for {{use}}")],
            bound=_WEEK_S,
        ),
        Graph(
            "Refused",
            "short",
            "1 while the files hold a certificate that cannot be used, so that the one before stays in force.",
            [Line(of("popwheel_certificate_refused"), "{{instance}}, for {{use}}")],
        ),
    ],
    beside=2,
)

_RESOURCES = Row(
    "Topics and consumer groups as resources",
    [
        Graph(
            "Declared and shown",
            "short",
            "Resources of users that declare a topic or a group, and those by which the controller shows one.",
            [
                Line(
                    largest(of("popwheel_controller_resources", 'made_by="user"'), "namespace", "kind"),
                    "{{kind}}, declared",
                ),
                Line(
                    largest(of("popwheel_controller_resources", 'made_by="controller"'), "namespace", "kind"),
                    "{{kind}}, shown",
                ),
            ],
        ),
        Graph(
            "Refused, or there otherwise",
            "short",
            "Resources of which no topic or group is as they declare it: refused, declared twice, or there with other "
            "settings. 0 is good.",
            [Line(largest(of("popwheel_controller_resources_refused"), "namespace", "kind"), "{{kind}}")],
        ),
        Graph(
            "Writes",
            "ops",
            "Resources that the controller makes, changes and deletes, in a second. None while nothing changes.",
            [Line(total(per_second("popwheel_controller_resource_writes_total"), "kind"), "{{kind}}")],
        ),
    ],
)

UPKEEP: Final = Board(
    "upkeep",
    "Upkeep",
    "What an operator may have to renew or repair: certificates, and resources that declare topics and groups.",
    [_WELL, _PROCESSES, _CERTIFICATES, _RESOURCES],
)
