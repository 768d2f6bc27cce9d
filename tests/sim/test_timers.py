"""What the judge of delayed messages makes of what clients were told."""

from unittest.mock import Mock

import pytest

from tests.harness.poison import MARK, Poison
from tests.sim.checker import Verdict
from tests.sim.history import History, Recalled, Sent
from tests.sim.process import START_MS
from tests.sim.timers import Timers
from tests.unit.broker.timer_world import TOPIC, TimerWorld

FAR_MS = 7000
"""Beyond the roll window: it fails as it rolls, two seconds after it was sent."""


@pytest.mark.parametrize(("asked_s", "numbers"), [(1.0, ["T4"]), (3.0, []), (5.0, ["T4"])])
def test_a_message_may_be_missing_only_while_it_is_quarantined(asked_s: float, numbers: list[str]) -> None:
    world = TimerWorld()
    world.send(MARK, FAR_MS)
    with Poison(["firing"]).spread():
        world.pass_to(4000)
    (entry,) = world.core.quarantine.table
    assert world.core.retrial.retry(entry.id)
    world.flush()
    log = world.core.store.log
    records = list(log.records(log.start_position, log.end_position))
    begin_ms = world.begin_ms
    appends = {each.position: (each.store_time_ms, (each.store_time_ms - begin_ms) / 1000) for each in records}
    sent = Sent(Mock(), 0.0, outcome="ok", due_ms=START_MS + FAR_MS)
    recalled = Recalled("recall", MARK.hex(), asked_s, asked_s + 0.01, outcome="missing")
    verdict = Verdict()
    swarm = Mock(faults={}, is_lossy=False, clocks_differ=True)
    history = History(sent={MARK.hex(): sent}, recalls=[recalled])
    topic_ids = {TOPIC: world.core.topic_registry.topic_ids[TOPIC]}
    Timers(swarm, history, records, appends, topic_ids, verdict, lambda _: True).judge(begin_ms + 4000)
    assert [each.partition(":")[0] for each in verdict.violations] == numbers
