"""Delayed messages and recalls that fail by themselves, and what becomes of them."""

import pytest

from popwheel_broker.consume.quarantine_entry import QuarantineEntry
from popwheel_broker.delay import dequeue_stages, enqueue_stages
from popwheel_broker.delay.timer_state import TimerRequest
from popwheel_broker.delay.wheel import TimerWheel
from popwheel_broker.log.record import Record
from popwheel_broker.log.timer_record import Delay
from tests.unit.broker.timer_pair import PairReplica
from tests.unit.broker.timer_world import TimerWorld


def entries(world: TimerWorld | PairReplica) -> list[QuarantineEntry]:
    """What was quarantined."""
    return list(world.core.quarantine.table)


def failing_recalls(monkeypatch: pytest.MonkeyPatch) -> list[Delay]:
    """Has recalls fail as they roll, and no message; what was tried."""
    tried: list[Delay] = []

    def recall_record(recall: Delay) -> Record:
        tried.append(recall)
        raise KeyError("poison")

    monkeypatch.setattr(dequeue_stages, "recall_record", recall_record)
    return tried


def failing_to_be_scheduled(monkeypatch: pytest.MonkeyPatch, *, recalls: bool, half: bool = False) -> list[int]:
    """Has recalls, or all messages, fail there, with a unit in the timer log or without; positions that were tried."""
    before = enqueue_stages.TimerEnqueuePut._chain_in
    tried: list[int] = []

    def chain_in(stage: enqueue_stages.TimerEnqueuePut, request: TimerRequest, now_ms: int, farthest_ms: int) -> None:
        if request.is_recall != recalls:
            before(stage, request, now_ms, farthest_ms)
            return
        tried.append(request.position)
        if half:
            with monkeypatch.context() as patch:
                patch.setattr(TimerWheel, "add", lambda *_: (_ for _ in ()).throw(KeyError("poison")))
                before(stage, request, now_ms, farthest_ms)
        raise KeyError("poison")

    monkeypatch.setattr(enqueue_stages.TimerEnqueuePut, "_chain_in", chain_in)
    return tried


def pass_and_save(world: TimerWorld, *times_ms: int) -> None:
    """Have time pass, and save at each of some times."""
    for time_ms in times_ms:
        world.pass_to(time_ms)
        world.save()
        world.save_timer()
