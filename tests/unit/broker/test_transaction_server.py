"""Transactions at a whole broker: what it answers, and whom it has asked."""

import asyncio
import random

import pytest

from popwheel_broker.calls.send_admission import SendAdmission
from popwheel_broker.log.flusher import Flusher
from popwheel_broker.log.refusals import disk_full
from popwheel_broker.options import BrokerOptions, TransactionOptions
from popwheel_common.contract import transaction_id
from popwheel_common.contract.put import MessageRun, PutKind, PutResult
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.memory_disk import MemoryDisk
from tests.unit.broker.served_broker import Broker, refused, running
from tests.unit.broker.world import KEY, wire_message

SOON = BrokerOptions(transaction=TransactionOptions(first_check_ms=10, check_interval_ms=10, checks_max=2))


async def put(broker: Broker, *bodies: bytes, is_retry: bool = False, topic: str = "t") -> PutResult:
    parts = [wire_message(topic, body) for body in bodies]
    payloads, properties = [payload for payload, _ in parts], [each for _, each in parts]
    run = MessageRun(topic, 0, payloads, properties, [""] * len(bodies), PutKind.HALF, [0] * len(bodies), is_retry)
    return (await broker.channel.call(methods.PUT, [run]))[0]


async def end(broker: Broker, identity: str, *, commit: bool = True) -> None:
    request = pb.EndTransactionRequest(topic="t", transaction_id=identity, commit=commit)
    await broker.channel.call(methods.END_TRANSACTION, request)


async def test_each_half_message_has_its_own_transaction() -> None:
    async with running() as broker:
        result = await put(broker, b"one", b"two")
        assert result.code == Code.OK
        one, two = result.references
        assert transaction_id.decode(KEY, "t", one).message_id == b"one".hex()
        assert await broker.pop() == []
        await end(broker, two)
        await end(broker, one, commit=False)
        assert (await broker.pull(0))[0] == [b"two"]
        await refused(end(broker, one), Code.PRECONDITION_FAILED, "rolled back before")


async def test_a_send_that_is_tried_again_has_the_same_transaction() -> None:
    async with running() as broker:
        (first,) = (await put(broker, b"one")).references
        assert (await put(broker, b"one", is_retry=True)).references == [first]
        await end(broker, first)
        assert (await put(broker, b"one", is_retry=True)).references == [first]
        assert (await put(broker, b"one", b"two", is_retry=True)).references[0] == first
        assert (await broker.pull(0))[0] == [b"one"]


async def test_half_messages_go_with_others_in_one_put() -> None:
    async with running() as broker:
        payload, properties = wire_message("t", b"plain")
        later, later_properties = wire_message("t", b"later")
        half, half_properties = wire_message("t", b"half")
        runs = [
            MessageRun("t", 0, [payload], [properties], [""]),
            MessageRun("t", 0, [later], [later_properties], [""], PutKind.AT_TIME, [broker.clock.wall_ms() + 60_000]),
            MessageRun("t", 0, [half], [half_properties], [""], PutKind.HALF, [0]),
        ]
        plain, delayed, pledged = await broker.channel.call(methods.PUT, runs)
        assert [each.code for each in (plain, delayed, pledged)] == [Code.OK] * 3
        assert (len(delayed.references), len(pledged.references)) == (1, 1)
        assert (await broker.pull(0))[0] == [b"plain"]


async def test_what_is_no_transaction_is_refused() -> None:
    async with running() as broker:
        (identity,) = (await put(broker, b"one")).references
        half = transaction_id.decode(KEY, "t", identity)
        await refused(end(broker, "nonsense"), Code.INVALID_TRANSACTION_ID, "was not issued for this topic")
        later = transaction_id.encode(KEY, "t", half._replace(epoch=half.epoch + 1))
        await refused(end(broker, later), Code.HA_NOT_AVAILABLE, "leads no more")
        unknown = transaction_id.encode(KEY, "t", half._replace(position=half.position + 1))
        await refused(end(broker, unknown), Code.INVALID_TRANSACTION_ID, "no outcome is known")


async def test_a_commit_that_must_wait_leaves_the_transaction_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(options=SOON) as broker:
        (identity,) = (await put(broker, b"one")).references
        with monkeypatch.context() as patch:
            patch.setattr(SendAdmission, "disk_is_full", lambda self: True)
            await refused(end(broker, identity), disk_full().code, "disk is nearly full")
            broker.clock.advance(1000)
            await asyncio.sleep(0.6)
            assert "popwheel_transactions_checks_total 0.0" in broker.metrics()
        await end(broker, identity)
        assert (await broker.pull(0))[0] == [b"one"]


async def test_a_proxy_with_producers_is_notified_what_to_ask() -> None:
    async with running(MemoryDisk(random.Random(0), 1 << 30), SOON) as broker:
        (identity,) = (await put(broker, b"one")).references
        stream = broker.channel.open(methods.CHECK_TRANSACTIONS)
        await stream.send([pb.TransactionProducers(topics=["t"])])
        await asyncio.sleep(0.05)
        for _ in range(2):
            broker.clock.advance(1000)
            async with asyncio.timeout(5):
                check = await stream.receive()
            assert check is not None
            assert (check.topic, check.transaction_id) == ("t", identity)
            assert Message.FromString(check.message).body == b"one"
        broker.clock.advance(1000)
        await asyncio.sleep(0.6)
        await refused(end(broker, identity), Code.INVALID_TRANSACTION_ID, "no producer answered")
        stream.cancel()
        assert 'popwheel_transactions_ended_total{resolution="expired"} 1.0' in broker.metrics()


async def test_how_a_transaction_ended_is_durable_before_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is asked to send again did, and the next master knew nothing of the end and asked for a commit."""

    async def leads_no_more(self: Flusher, position: int | None = None) -> None:
        raise StatusError(Code.HA_NOT_AVAILABLE, "this broker leads no more")

    async with running() as broker:
        (identity,) = (await put(broker, b"one")).references
        await end(broker, identity, commit=False)
        with monkeypatch.context() as patch:
            patch.setattr(Flusher, "durable", leads_no_more)
            await refused(end(broker, identity), Code.HA_NOT_AVAILABLE, "leads no more")
        await refused(end(broker, identity), Code.PRECONDITION_FAILED, "rolled back before")
