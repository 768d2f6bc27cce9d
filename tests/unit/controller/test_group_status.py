"""The status of a broker group, and that it is seldom written."""

from collections.abc import Mapping
from typing import Any

import pytest

from popwheel_controller.kubernetes.group_status import READY, SWITCHED_OVER, condition, status_change

NOON_MS = 1_700_000_000_000 // 3_600_000 * 3_600_000
HAS_MASTER = condition(READY, holds=True, reason="HasMaster", message="broker-a-0 leads in epoch 1")


def after(old: Mapping[str, Any], change: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in {**old, **(change or {})}.items() if value is not None}


def test_a_condition_keeps_the_time_since_when_it_is_so() -> None:
    status = after({}, status_change({}, [HAS_MASTER], None, NOON_MS))
    assert status == {"conditions": [{**HAS_MASTER, "lastTransitionTime": "2023-11-14T22:00:00Z"}]}
    assert status_change(status, [HAS_MASTER], None, NOON_MS + 3_600_000) is None
    later = condition(READY, holds=True, reason="HasMaster", message="broker-a-1 leads in epoch 2")
    status = after(status, status_change(status, [later], None, NOON_MS + 60_000))
    assert status["conditions"] == [{**later, "lastTransitionTime": "2023-11-14T22:00:00Z"}]
    gone = condition(READY, holds=False, reason="NoMaster", message="waits for replica 1")
    done = condition(SWITCHED_OVER, holds=True, reason="Done", message="it leads")
    status = after(status, status_change(status, [gone, done], None, NOON_MS + 120_000))
    assert [(each["type"], each["lastTransitionTime"][14:19]) for each in status["conditions"]] == [
        ("Ready", "02:00"),
        ("SwitchedOver", "02:00"),
    ]
    assert status_change(status, [gone], None, NOON_MS + 180_000) is None  # the other one stays


def test_the_checkpoint_is_written_once_a_minute_while_it_goes_on_and_never_while_it_does_not() -> None:
    status: dict[str, Any] = {}
    writes = 0
    for second in range(600):
        change = status_change(status, [HAS_MASTER], 1.5 + second % 3, NOON_MS + second * 1000)
        writes += change is not None
        status = after(status, change)
    assert writes == 10
    for second in range(600, 1200):
        assert status_change(status, [HAS_MASTER], second - 595.0, NOON_MS + second * 1000) is None
    assert status["checkpointTime"] == "2023-11-14T22:08:58Z"


@pytest.mark.parametrize("shown", ["2023-11-14T22:01:00Z", "damaged"])
def test_what_is_shown_is_never_fresher_than_it_is(shown: str) -> None:
    """A new master's slaves hold less, or a clock was set back."""
    assert status_change({"checkpointTime": shown}, [], 30.0, NOON_MS) == {"checkpointTime": "2023-11-14T21:59:30Z"}


def test_without_a_slave_no_checkpoint_is_shown() -> None:
    assert status_change({"checkpointTime": "2023-11-14T22:00:00Z"}, [], None, NOON_MS) == {"checkpointTime": None}
    assert status_change({}, [], None, NOON_MS) is None
