"""Problems of now: by the same thresholds as the alerts of Prometheus."""

import re
from typing import Any

import pytest
import yaml

from popwheel_controller.activity.troubles import PROBLEMS_MAX, RULES, Finding, Rule, Troubles
from tests.unit.source import ROOT

NOW_MS = 1_700_000_000_000
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_ELSEWHERE = {"PopwheelNoProxy"}
"""Alerts that compare something else, as what they look for is absent."""


def alerts() -> dict[str, dict[str, Any]]:
    content = yaml.safe_load((ROOT / "helm/popwheel/rules/popwheel.yaml").read_text())
    return {rule["alert"]: rule for group in content["groups"] for rule in group["rules"]}


@pytest.mark.parametrize("rule", [each for each in RULES.values() if each.has_alert], ids=lambda rule: rule.id)
def test_a_rule_is_as_its_alert(rule: Rule) -> None:
    alert = alerts()[rule.id]
    assert alert["labels"]["severity"] == rule.severity
    lasts = alert.get("for", "0s")
    assert int(lasts[:-1]) * _SECONDS[lasts[-1]] == rule.for_s
    assert alert["annotations"]["runbook_url"] == rule.link
    limit = re.search(r"([<>]=?)\s*(?:on \(.*?\) )?([0-9.e]+)(?: \* \w+)?\s*$", alert["expr"])
    assert limit is not None
    assert rule.id in _ELSEWHERE or (limit[1][0], float(limit[2])) == (">", rule.above)


def test_rules_without_an_alert_lead_to_a_section_that_is_there() -> None:
    page = (ROOT / "docs/operate/monitor.md").read_text()
    assert "\n### Trouble\n" in page
    for rule in RULES.values():
        assert rule.has_alert or f"`{rule.id}`" in page
        assert rule.what.endswith(".")
        assert rule.what_to_do.endswith(".")


def test_what_lasts_for_long_enough_fires_and_what_is_well_again_is_forgotten() -> None:
    troubles = Troubles()
    late, none = Finding("PopwheelReviveBehind", "b", 11_000), Finding("PopwheelReviveBehind", "b", 10_000)
    (problem,) = troubles.judged([late], NOW_MS)
    assert (problem.since_ms, problem.fires) == (NOW_MS, False)
    assert problem.what == "The broker b redelivers messages 11000 ms too late."
    (problem,) = troubles.judged([late], NOW_MS + 120_000)
    assert (problem.since_ms, problem.fires) == (NOW_MS, True)
    assert troubles.judged([none], NOW_MS + 130_000) == []
    (problem,) = troubles.judged([late], NOW_MS + 140_000)
    assert (problem.since_ms, problem.fires) == (NOW_MS + 140_000, False)


def test_critical_problems_come_first_and_they_are_not_too_many() -> None:
    findings = [Finding("PopwheelConsumersBehind", f"g{number}", 1e9) for number in range(2 * PROBLEMS_MAX)]
    troubles = Troubles()
    problems = troubles.judged([Finding("PopwheelNoMaster", "b", 1), *findings], NOW_MS)
    assert problems[0].rule.id == "PopwheelNoMaster"
    assert len(problems) == len(troubles) == PROBLEMS_MAX


def test_sentences_have_their_numbers() -> None:
    found = {
        each.rule.id: each.what
        for each in Troubles().judged(
            [
                Finding("PopwheelTimersFull", "b", 0.95),
                Finding("PopwheelCheckpointOld", "b", 17.26),
                Finding("DeadLettersGrow", "", 3),
                Finding("PopwheelQuarantineFull", "b", 0.5),
            ],
            NOW_MS,
        )
    }
    assert "0.95" in found["PopwheelTimersFull"]
    assert "17 s" in found["PopwheelCheckpointOld"]
    assert found["DeadLettersGrow"].startswith("3 new dead")
    assert "0.50" in found["PopwheelQuarantineFull"]
