"""Each alert fires for what it is there for, and for nothing less, as Prometheus' own `promtool` says."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.harness.dashboards_and_alerts import RULES, program, rules
from tests.harness.standalone import ROOT

HOUR = 60
PLACE = 'namespace="n",instance="broker-a-0"'
CONTROLLER = 'namespace="n",instance="controller-0"'
MASTER = f'popwheel_replica_role{{{PLACE},role="master"}}'
SLAVE = 'popwheel_replica_role{namespace="n",instance="broker-a-1",role="master"}'
GROUP = 'consumer_group="g"'
FOR_SERVICES = f'{PLACE},use="services"'


class Drill(NamedTuple):
    """What makes an alert fire.

    Args:
        series: with a value a minute, in promtool's notation.
        silent_at, fires_at: minutes after which it does not fire, and does.
        labels: of the alert.
    """

    series: dict[str, str]
    silent_at: int
    fires_at: int
    labels: str


def of_master(metric: str, values: str) -> dict[str, str]:
    """A metric of a master, and the same of its slave, which is not to count."""
    return {
        f"{metric}{{{PLACE}}}": values,
        f'{metric}{{namespace="n",instance="broker-a-1"}}': "999999999x600",
        MASTER: "1x600",
        SLAVE: "0x600",
    }


DRILLS = {
    "PopwheelConsumersBehind": Drill(
        {f"rocketmq_consumer_queueing_latency{{{PLACE},{GROUP}}}": "0+60000x60"}, 15, 17, f'namespace="n",{GROUP}'
    ),
    "PopwheelMessageNotAcknowledged": Drill(
        # As `/metrics?pairs=true` has it.
        {
            f'rocketmq_consumer_lag_latency{{{PLACE},{GROUP},topic="t"}}': "0+60000x90",
            f'rocketmq_consumer_lag_latency{{{PLACE},{GROUP},topic="u"}}': "0x90",
        },
        *(65, 67, f'namespace="n",{GROUP}'),
    ),
    "PopwheelLoopTurnsLong": Drill(
        {
            f"popwheel_loop_turn_max_seconds{{{PLACE}}}": "0.09x9 0.2x3 0.02x5 0.2x20",
            'popwheel_loop_turn_max_seconds{namespace="n",instance="broker-a-1"}': "0.1x40",
        },
        *(24, 26, PLACE),
    ),
    "PopwheelMessageGroupStuck": Drill(of_master("popwheel_pop_paused", "0x4 1x5 0 1x20"), 21, 23, PLACE),
    "PopwheelTransactionsNotEnded": Drill(
        of_master("popwheel_transactions_oldest_seconds", "100x4 170x4 190x20"), 10, 13, PLACE
    ),
    "PopwheelTransactionsExpired": Drill(
        {
            f'popwheel_transactions_ended_total{{{PLACE},resolution="expired"}}': "3x9 4x20",
            f'popwheel_transactions_ended_total{{{PLACE},resolution="committed"}}': "0+100x30",
        },
        *(9, 11, PLACE),
    ),
    "PopwheelGroupFiltersDiffer": Drill(
        {f"popwheel_group_filter_passed_over_messages_total{{{PLACE}}}": "3x9 4x20"}, 9, 11, PLACE
    ),
    "PopwheelReviveBehind": Drill(of_master("rocketmq_pop_revive_latency", "0x4 9000x5 11000x20"), 11, 13, PLACE),
    "PopwheelTimersBehind": Drill(of_master("rocketmq_timer_dequeue_latency", "0x4 4000x5 6000x20"), 11, 13, PLACE),
    "PopwheelTimersFull": Drill(
        {f"popwheel_timers_pending{{{PLACE}}}": "89x9 91x20", f"popwheel_timers_max{{{PLACE}}}": "100x30"},
        *(14, 16, PLACE),
    ),
    "PopwheelNoMaster": Drill(
        {
            f'popwheel_controller_group_without_master{{{CONTROLLER},broker="broker-a"}}': "0x30",
            f'popwheel_controller_group_without_master{{{CONTROLLER},broker="broker-b"}}': "0x30",
            'popwheel_proxy_broker_without_master{namespace="n",instance="proxy-0",broker="broker-a"}': "0x30",
            'popwheel_proxy_broker_without_master{namespace="n",instance="proxy-0",broker="broker-b"}': "0x9 1x20",
        },
        *(10, 11, 'namespace="n",broker="broker-b"'),
    ),
    "PopwheelNoController": Drill(
        {
            f"popwheel_controller_leads{{{CONTROLLER}}}": "1x4 0x4 stale",
            'popwheel_controller_leads{namespace="n",instance="controller-1"}': "0x4 1x4 stale",
            'popwheel_rpc_connections{namespace="n",instance="broker-a-0"}': "1x5 stale",
        },
        *(9, 11, 'namespace="n"'),
    ),
    "PopwheelNoProxy": Drill(
        {
            'rocketmq_proxy_up{namespace="n",instance="proxy-0"}': "1x4 stale",
            'rocketmq_proxy_up{namespace="n",instance="proxy-1"}': "1x9 stale",
            'popwheel_rpc_connections{namespace="n",instance="proxy-1"}': "0x9 stale",
            'popwheel_controller_leads{namespace="n",instance="controller-0"}': "1x9 stale",
        },
        *(10, 12, 'namespace="n"'),
    ),
    "PopwheelOtherCluster": Drill(
        {f"popwheel_controller_other_clusters_refused_total{{{CONTROLLER}}}": "0x9 1x20"}, 9, 10, 'namespace="n"'
    ),
    "PopwheelTargetDown": Drill(
        {
            f"up{{{PLACE}}}": "1x4 0x3 1x2 0x20",
            f"popwheel_rpc_connections{{{PLACE}}}": "3x4 stale",
            'up{namespace="n",instance="of another product"}': "0x30",
        },
        *(16, 18, PLACE),
    ),
    "PopwheelReplicaOutOfSync": Drill(
        {
            f'popwheel_controller_group_replicas{{{CONTROLLER},broker="broker-a"}}': "2x30",
            f'popwheel_controller_group_sync_state_set_size{{{CONTROLLER},broker="broker-a"}}': "2x4 1x0 2x4 1x20",
        },
        *(11, 13, 'namespace="n",broker="broker-a"'),
    ),
    "PopwheelCheckpointOld": Drill(
        {f'popwheel_controller_checkpoint_age_seconds{{{CONTROLLER},broker="broker-a",replica="1"}}': "14x9 16x9"},
        *(10, 12, 'namespace="n",broker="broker-a",replica="1"'),
    ),
    "PopwheelCheckpointSyncFails": Drill(
        {f'popwheel_controller_checkpoint_failures_total{{{CONTROLLER},step="store"}}': "0x9 3+0x9 3+5x30"},
        *(24, 30, 'namespace="n",step="store"'),
    ),
    "PopwheelStateNotSaved": Drill(
        {f"popwheel_controller_save_failures_total{{{CONTROLLER}}}": "0x9 1x20"}, 9, 10, CONTROLLER
    ),
    "PopwheelDiskDaysLeft": Drill(
        {
            f"popwheel_disk_used_share{{{PLACE}}}": f"0.3+0.0001x{2 * HOUR} 0.312+0.0002x{5 * HOUR}",
            f"popwheel_disk_full_share{{{PLACE}}}": f"0.95x{8 * HOUR}",
        },
        *(2 * HOUR, 7 * HOUR, PLACE),
    ),
    "PopwheelDiskFull": Drill(
        {f"popwheel_disk_used_share{{{PLACE}}}": "0.94x4 0.95x9", f"popwheel_disk_full_share{{{PLACE}}}": "0.95x20"},
        *(4, 5, PLACE),
    ),
    "PopwheelProcessRestarts": Drill(
        {
            f"process_start_time_seconds{{{PLACE}}}": "1x4 2x4 3x4 4x9",
            f"popwheel_rpc_connections{{{PLACE}}}": "1x30",
            'process_start_time_seconds{namespace="n",instance="of another product"}': "1+1x30",
        },
        *(14, 15, PLACE),
    ),
    "PopwheelProcessHung": Drill({f"popwheel_hung_processes_killed_total{{{PLACE}}}": "0x9 1x20"}, 9, 10, PLACE),
    "PopwheelLogLinesLost": Drill({f"popwheel_log_lost_lines_total{{{PLACE}}}": "7x9 8x20"}, 9, 10, PLACE),
    "PopwheelQueueStandsStill": Drill(
        {
            **of_master("popwheel_damaged_queues", "0x9 1x20"),
            **of_master("popwheel_timer_damaged", "0x30"),
        },
        *(14, 16, PLACE),
    ),
    "PopwheelPoisonMessage": Drill(of_master("popwheel_quarantined_messages", "0x9 1x9"), 9, 10, PLACE),
    "PopwheelQuarantineFull": Drill(
        {
            **of_master("popwheel_quarantined_messages", "40x9 41x9"),
            **of_master("popwheel_quarantine_max", "100x20"),
        },
        *(9, 10, PLACE),
    ),
    "PopwheelCertificateExpires": Drill(
        {
            f"popwheel_certificate_expires_seconds{{{FOR_SERVICES}}}": "605000x9 604000x20",
            f'popwheel_certificate_expires_seconds{{{PLACE},use="clients"}}': "605000x30",
        },
        *(14, 16, FOR_SERVICES),
    ),
    "PopwheelCertificateRefused": Drill(
        {f"popwheel_certificate_refused{{{FOR_SERVICES}}}": "0x4 1x2 0x2 1x20"}, 15, 17, FOR_SERVICES
    ),
    "PopwheelAccessFileRefused": Drill(
        {
            f"popwheel_proxy_access_file_refused{{{PLACE}}}": "0x4 1x2 0x2 1x20",
            'popwheel_http_token_file_refused{namespace="n",instance="controller-0"}': "0x40",
        },
        *(15, 17, PLACE),
    ),
}


def test_there_is_a_drill_for_each_alert() -> None:
    assert DRILLS.keys() == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_each_says_what_it_means_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    name, annotations = str(rule["alert"]), rule["annotations"]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert annotations.keys() == {"summary", "description", "runbook_url"}
    assert annotations["description"].endswith(".") and not annotations["summary"].endswith(".")
    page, _, anchor = annotations["runbook_url"].partition("#")
    assert anchor == name.lower()
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {name}\n")[2]
    assert section.startswith(f"*{rule['labels']['severity']}.*"), "the section says how urgent it is, and what it is"
    known = set(re.findall(r"\w+", "".join(re.findall(r"^\w+ by \((.*?)\)", str(rule["expr"])))))
    used = set(re.findall(r"\$labels\.(\w+)", "".join(annotations.values())))
    assert used <= known, "a label that is not there is shown as nothing"


def test_each_fires_in_its_drill_and_not_before(tmp_path: Path) -> None:
    promtool = program("promtool")
    subprocess.run([promtool, "check", "rules", str(RULES)], check=True, capture_output=True)
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in drill.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}',
                    "eval_time": f"{minutes}m",
                    "exp_samples": found,
                }
                for minutes, found in ((drill.silent_at, []), (drill.fires_at, [sample(name, drill)]))
            ],
        }
        for name, drill in DRILLS.items()
    ]
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    ended = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def sample(name: str, drill: Drill) -> dict[str, object]:
    """The series that says that it fires."""
    (severity,) = (rule["labels"]["severity"] for rule in rules() if rule["alert"] == name)
    labels = f'alertname="{name}",alertstate="firing",severity="{severity}",{drill.labels}'
    return {"labels": f"ALERTS{{{labels}}}", "value": 1}
