"""Single records that fail, as proxies, readers and slaves meet them: the call goes on without them."""

import asyncio
from typing import Any

import pytest

from popwheel_broker.consume.quarantine_entry import Step
from popwheel_broker.delay.intake import IntakeBatch
from popwheel_broker.log.fault import RecordFaultError
from popwheel_broker.replication import replica_store
from popwheel_common.contract.put import MessageRun, PutKind
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_rpc import methods
from tests.harness.poison import ERRORS, MARK, Poison
from tests.unit.broker.files_world import FOLDER, Store, log_of_a_master
from tests.unit.broker.served_broker import running
from tests.unit.broker.world import wire_message


def run_of(body: bytes, due_ms: int = 0) -> MessageRun:
    payload, properties = wire_message("t", body)
    return MessageRun("t", 0, [payload], [properties], [""], *((PutKind.AT_TIME, [due_ms]) if due_ms else ()))


@pytest.mark.parametrize("error", ERRORS)
async def test_a_send_that_fails_is_refused_and_those_beside_it_are_stored(error: type[Exception]) -> None:
    async with running() as broker:
        with Poison(["intake"], lambda: error).spread():
            results = await broker.channel.call(methods.PUT, [run_of(b"a"), run_of(MARK), run_of(b"b")])
        assert [result.code for result in results] == [Code.OK, Code.INTERNAL_ERROR, Code.OK]
        assert error.__name__ in results[1].error
        assert (await broker.pull(0))[0] == [b"a", b"b"]
        assert not broker.app.failure.done()


async def test_a_delayed_send_that_fails_is_refused_and_those_beside_it_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as broker:
        intake = broker.app.core.timer.intake
        delays = intake.delays

        def failing(run: MessageRun, batch: IntakeBatch) -> Any:
            if MARK in run.payloads[0]:
                raise KeyError("poison")
            return delays(run, batch)

        monkeypatch.setattr(intake, "delays", failing)
        due_ms = broker.clock.wall_ms() + 60_000
        runs = [run_of(b"a", due_ms), run_of(MARK, due_ms), run_of(b"b")]
        results = await broker.channel.call(methods.PUT, runs)
        assert [result.code for result in results] == [Code.OK, Code.INTERNAL_ERROR, Code.OK]
        assert broker.app.core.timer.state.pending.total == 1


@pytest.mark.parametrize("error", ERRORS)
async def test_a_reader_goes_on_behind_what_fails_and_it_is_noted_once(error: type[Exception]) -> None:
    async with running() as broker:
        for body in (b"a", MARK, b"b"):
            await broker.put(body)
        with Poison(["reading"], lambda: error).spread():
            for _ in range(2):
                assert await broker.pull(0) == ([b"a", b"b"], 3)
        (entry,) = broker.app.core.quarantine.table
        assert (entry.step, entry.queue_offset, entry.origin) == (Step.READING, 1, b"")
        assert await broker.pull(0) == ([b"a", MARK, b"b"], 3)


async def test_what_is_quarantined_of_a_deleted_topic_is_not_shown_though_others_wait_to_be_dropped() -> None:
    async with running() as broker:
        await broker.put(MARK)
        with Poison(["reading"]).spread():
            await broker.pull(0)
        core = broker.app.core
        (entry,) = core.quarantine.table
        del core.view.topics["t"]
        others = [f"other-{number}" for number in range(10)]
        core.cluster_changed(ClusterUpdate(version=1000, deleted_topics=[*others, "t"]))
        with pytest.raises(StatusError, match="the quarantine has no id"):
            await broker.channel.call(methods.QUARANTINE_SHOW, pb.QuarantineShowRequest(id=entry.id))
        assert core.topic_registry.can_apply_changes


async def test_a_message_that_fails_as_it_comes_due_ends_no_broker() -> None:
    async with running() as broker:
        for body in (b"a", MARK, b"b"):
            await broker.put(body)
        await broker.pop(invisible_ms=20)
        with Poison(["redelivery"]).spread():
            for _ in range(3):
                broker.clock.advance(50)
                broker.app.leader.reviver.due_changed()
                await asyncio.sleep(0.05)
        assert not broker.app.failure.done()
        assert len(await broker.pop()) == 2
        assert 'popwheel_quarantined_messages{step="redelivery"} 1.0' in broker.metrics()


@pytest.mark.parametrize("error", ERRORS)
async def test_a_slave_takes_over_and_folds_what_it_cannot_take_apart(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, positions, _ = await log_of_a_master()
    store = Store()
    await store.start()

    def checked_records(position: int, data: bytes) -> Any:
        raise error("poison")

    with monkeypatch.context() as patch:
        patch.setattr(replica_store, "checked_records", checked_records)
        await store.take(data[: positions[10]], positions[10])
    await store.take(data[positions[10] : positions[20]], positions[20])
    assert store.files.high_watermark == positions[20]
    plain = Store()
    await plain.start()
    await plain.take(data[: positions[20]], positions[20])
    assert _queues(store) == _queues(plain)
    assert store.failures == []
    for each in (store, plain):
        each.files.close()


async def test_a_damaged_record_is_mended_that_cannot_be_taken_apart() -> None:
    data, positions, _ = await log_of_a_master()
    store = Store()
    await store.start()
    await store.take(data[: positions[10]], positions[10])
    store.disk.flip_bit(FOLDER / "commitlog" / f"{0:020}.log", 8 * (positions[6] - 10))
    with pytest.raises(CorruptDataError):
        await store.files.read(positions[5], 1)
    good = data[positions[5] : positions[6]]
    with Poison(["replication"], is_marked=lambda payload, properties: True).spread():
        await store.files.mend(positions[5], good)
    assert (await store.files.read(positions[5], 1))[: len(good)] == good
    store.files.close()


def _queues(store: Store) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): queue.max_offset for queue in store.files.core.store.queues}


async def test_operators_are_served_through_the_brokers_front() -> None:
    async with running() as broker:
        await broker.put(b"a")
        core = broker.app.core
        core.quarantine.record(Step.READING, 0, "t", 0, 0, RecordFaultError("poison"))
        listed = await broker.channel.call(methods.QUARANTINE_LIST, pb.QuarantineListRequest(limit=9))
        assert [(each.topic, each.reason) for each in listed.entries] == [("t", "poison")]
        entry_id = listed.entries[0].id
        shown = await broker.channel.call(methods.QUARANTINE_SHOW, pb.QuarantineShowRequest(id=entry_id))
        assert shown.entry == listed.entries[0]
        assert (await broker.channel.call(methods.QUARANTINE_RETRY, pb.QuarantineRetryRequest(id=entry_id))).changed
        assert not (await broker.channel.call(methods.QUARANTINE_DROP, pb.QuarantineDropRequest(id=entry_id))).changed
        served = broker.app.role.leader
        assert served is not None
        assert served.server.service.unary_handlers.keys() <= broker.app.service.unary_handlers.keys()
