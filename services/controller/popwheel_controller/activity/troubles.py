"""Current problems of the cluster, by the thresholds of the Prometheus alerts (pure).

`helm/popwheel/rules/popwheel.yaml` has the alerts. Each rule here has the name, threshold and duration of one; a test
compares them. Rules without an alert are about what only the controller sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Severity = Literal["warning", "critical"]

PROBLEMS_MAX: Final = 1_000
"""Limit of problems that are stored and shown."""
_OPERATIONS: Final = "docs/operate/alerts.md#{}"
_ACTIVITY: Final = "docs/operate/monitor.md#trouble"


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of problem.

    Args:
        id: name of the alert.
        severity: how bad it is.
        above: a greater value is a problem.
        for_s: how long the problem lasts before the alert fires, in seconds.
        what: a sentence with `{object}` and `{value}`.
        what_to_do: a sentence.
        has_alert: Prometheus has an alert of this name.
    """

    id: str
    severity: Severity
    above: float
    for_s: int
    what: str
    what_to_do: str
    has_alert: bool = True

    @property
    def link(self) -> str:
        """Link to the section of the documentation about this problem."""
        return _OPERATIONS.format(self.id.lower()) if self.has_alert else _ACTIVITY


RULES: Final = {
    rule.id: rule
    for rule in (
        Rule(
            "PopwheelConsumersBehind",
            "warning",
            600e3,
            300,
            "The group {object} does not keep up: the oldest message that waits for it is {value} ms old.",
            "Start more consumers of the group, or find out what slows them down.",
        ),
        Rule(
            "PopwheelMessageNotAcknowledged",
            "warning",
            3600e3,
            300,
            "The oldest message that the group {object} has not acknowledged is {value} ms old.",
            "See which client has it, and why it does not acknowledge it.",
        ),
        Rule(
            "PopwheelMessageGroupStuck",
            "warning",
            0,
            600,
            "The broker {object} has stopped reading {value} pair(s) of a FIFO group and a topic.",
            "Find the message at the head of the message group, and have it acknowledged or released.",
        ),
        Rule(
            "PopwheelReviveBehind",
            "critical",
            10e3,
            120,
            "The broker {object} redelivers messages {value} ms too late.",
            "Check the load and the disk of the broker.",
        ),
        Rule(
            "PopwheelTimersBehind",
            "critical",
            5e3,
            120,
            "Delayed messages of the broker {object} come {value} ms late.",
            "Check the load and the disk of the broker.",
        ),
        Rule(
            "PopwheelTimersFull",
            "warning",
            0.9,
            300,
            "The broker {object} has used a share of {value:.2f} of its limit of delayed messages.",
            "Raise broker.timer.timers_max, or send fewer delayed messages.",
        ),
        Rule(
            "PopwheelTransactionsNotEnded",
            "warning",
            180,
            120,
            "The oldest transaction of the broker {object} has been open for {value:.0f} s.",
            "Check that its producers run and answer transaction checks.",
        ),
        Rule(
            "PopwheelNoMaster",
            "critical",
            0,
            30,
            "The broker group {object} has no master.",
            "Start its replicas; /brokers says which one could lead and why none does.",
        ),
        Rule(
            "PopwheelReplicaOutOfSync",
            "warning",
            0,
            120,
            "{value} replica(s) of {object} are not in sync.",
            "Start the replica, or see why it cannot keep up with its master.",
        ),
        Rule(
            "PopwheelCheckpointOld",
            "warning",
            15,
            60,
            "The slaves of {object} have a checkpoint that is {value:.0f} s old.",
            "See in the controller's log why the master's checkpoint does not reach them.",
        ),
        Rule(
            "PopwheelNoProxy",
            "critical",
            0,
            60,
            "No proxy is there: clients can neither send nor receive.",
            "Start a proxy.",
        ),
        Rule(
            "PopwheelDiskFull",
            "critical",
            0,
            0,
            "The disk of the broker {object} is full: it refuses sends.",
            "Give it more room, or shorten the retention.",
        ),
        Rule(
            "PopwheelQueueStandsStill",
            "critical",
            0,
            300,
            "{value} queue(s) or timer(s) of the broker {object} stand still at a damaged record.",
            "Start a replica that has the record, or restore the segment from a backup.",
        ),
        Rule(
            "PopwheelPoisonMessage",
            "warning",
            0,
            0,
            "The broker {object} has {value} poison message(s) in its quarantine.",
            "See `popwheel admin quarantine list`; retry or drop each of them.",
        ),
        Rule(
            "PopwheelQuarantineFull",
            "critical",
            0.4,
            0,
            "The quarantine of the broker {object} is full to a share of {value:.2f}.",
            "Retry or drop its messages, before a poison message blocks others.",
        ),
        Rule(
            "ChangeLogFails",
            "warning",
            0,
            0,
            "{value} line(s) of the change log are not stored yet.",
            "Check the store; the log of the process has the lines meanwhile.",
            has_alert=False,
        ),
        Rule(
            "DeadLettersGrow",
            "warning",
            0,
            0,
            "{value} new dead letter(s) within ten minutes.",
            "Look at the groups with dead letters, and at why their consumers fail.",
            has_alert=False,
        ),
        Rule(
            "ProcessNotReady",
            "warning",
            0,
            0,
            "The process {object} is not ready.",
            "`popwheel admin cluster status` says why.",
            has_alert=False,
        ),
    )
}


class Finding(NamedTuple):
    """Measurement that a rule judges.

    Args:
        rule: id of the rule.
        object: name of what was measured.
        value: measured value.
    """

    rule: str
    object: str
    value: float


class Problem(NamedTuple):
    """Problem of the cluster that needs an operator.

    Args:
        rule: that was violated; it has the advice.
        object: name of what has the problem.
        value: measured value.
        since_ms: when it was first seen, wall clock.
        fires: whether it has lasted for the duration of the alert.
    """

    rule: Rule
    object: str
    value: float
    since_ms: int
    fires: bool

    @property
    def what(self) -> str:
        """Description of the problem, in a sentence."""
        whole = self.value == int(self.value) and ":" not in self.rule.what
        return self.rule.what.format(object=self.object, value=int(self.value) if whole else self.value)


class Troubles:
    """Current problems, each with the time when it was first seen."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def judged(self, findings: Iterable[Finding], now_ms: int) -> list[Problem]:
        """Return the problems among the findings, critical ones first; drop those that are solved."""
        since_ms: dict[tuple[str, str], int] = {}
        problems: list[Problem] = []
        for finding in findings:
            rule, key = RULES[finding.rule], (finding.rule, finding.object)
            if finding.value > rule.above and len(problems) < PROBLEMS_MAX:
                since_ms[key] = self._since_ms.get(key, now_ms)
                fires = now_ms - since_ms[key] >= rule.for_s * 1000
                problems.append(Problem(rule, finding.object, finding.value, since_ms[key], fires))
        self._since_ms = since_ms
        return sorted(problems, key=lambda each: (each.rule.severity != "critical", each.since_ms))

    def clear(self) -> None:
        """Drop all problems: this controller no longer leads."""
        self._since_ms = {}
