"""Problems of the cluster as they are now, by the thresholds of the alerts of Prometheus (pure).

`helm/popwheel/rules/popwheel.yaml` has the alerts. Each rule here goes by the name of one, with its threshold and time;
a test compares both. Rules without an alert of that name are of what only the controller sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Severity = Literal["warning", "critical"]

PROBLEMS_MAX: Final = 1_000
"""Problems that are remembered, and shown."""
_OPERATIONS: Final = "docs/operate/alerts.md#{}"
_ACTIVITY: Final = "docs/operate/monitor.md#trouble"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of problem.

    Args:
        id: name of the alert.
        severity: how bad it is.
        above: a number beyond this is a problem.
        for_s: the alert fires when it has lasted for so long.
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
        """The section of the documents that says more."""
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
            "See who holds it, and why its consumer does not get done with it.",
        ),
        Rule(
            "PopwheelMessageGroupStuck",
            "warning",
            0,
            600,
            "The broker {object} reads no further for {value} pair(s) of a FIFO group and a topic.",
            "Find the message at the head of the message group, and have it acknowledged or moved away.",
        ),
        Rule(
            "PopwheelReviveBehind",
            "critical",
            10e3,
            120,
            "The broker {object} brings messages back {value} ms too late.",
            "Look at the load and the disk of the broker.",
        ),
        Rule(
            "PopwheelTimersBehind",
            "critical",
            5e3,
            120,
            "Delayed messages of the broker {object} come {value} ms late.",
            "Look at the load and the disk of the broker.",
        ),
        Rule(
            "PopwheelTimersFull",
            "warning",
            0.9,
            300,
            "Of the delayed messages that the broker {object} may have, it has a share of {value:.2f}.",
            "Raise broker.timer.timers_max, or send fewer delayed messages.",
        ),
        Rule(
            "PopwheelTransactionsNotEnded",
            "warning",
            180,
            120,
            "The oldest transaction of the broker {object} has been open for {value:.0f} s.",
            "See whether its producers run and answer when they are asked.",
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
            "The slaves of {object} hold progress that is {value:.0f} s old.",
            "See in the controller's log why the progress of the master does not reach them.",
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
            "The broker {object} has set {value} message(s) aside that fail by themselves.",
            "Look at them with `popwheel admin quarantine list`; try them again, or drop them.",
        ),
        Rule(
            "PopwheelQuarantineFull",
            "critical",
            0.4,
            0,
            "Of the messages that the broker {object} may set aside, it has set aside a share of {value:.2f}.",
            "Try them again or drop them, before a failing message holds up others.",
        ),
        Rule(
            "ChangeLogFails",
            "warning",
            0,
            0,
            "{value} line(s) of the log of changes are not stored yet.",
            "See to the store; the process's log has the lines meanwhile.",
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
        rule: by which it is judged.
        object: of what.
        value: the number.
    """

    rule: str
    object: str
    value: float


class Problem(NamedTuple):
    """Problem of the cluster that needs an operator.

    Args:
        rule: says what to do.
        object: with what.
        value: the number.
        since_ms: since when this is seen, wall clock.
        fires: it has lasted for as long as the alert asks for.
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
    """Problems, and since when there are any."""

    def __init__(self) -> None:
        self._since_ms: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def judged(self, findings: Iterable[Finding], now_ms: int) -> list[Problem]:
        """The problems among what was measured now, critical ones first; what is well again is forgotten."""
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
        """Clear the problems: this controller leads no more."""
        self._since_ms = {}
