"""Half messages: sent, committed, rolled back, asked about, left alone; and whether X2 held.

The workload has a topic, a group and a history of its own, and its own random streams. It runs in a share of the seeds.
"""

import asyncio
import contextlib
import contextvars
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_broker.options import TransactionOptions
from popwheel_broker.transactions.half import NONE, Resolution, committed_half, decode_end, decode_half
from popwheel_common.errors import code_name
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import RpcError
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.history import History, Sent
from tests.sim.tools import Tools, headers, is_definite
from tests.sim.workload import OwnTopic, Workload

NAME = "transactions"
TOPIC = "pledged"
GROUP = "pledgee"
TYPE = TopicType.MIXED

_SHARE = 0.3
_RATE = 4.0
_TRIES_MAX = 40
_EXPIRED_MIN = 3
"""Number of transactions without an end of which at least one was checked, though its stream may break now and then."""
_NAME = "pt"

Fate = Literal["commit", "rollback", "never"]


def is_on(seed: int, only: tuple[str, ...] | None) -> bool:
    """Whether a seed has the workload."""
    return random.Random(f"{seed}/transactions").random() < _SHARE if only is None else NAME in only


def options_of(seed: int) -> dict[str, Any]:
    """The broker's settings of transactions: all end within seconds, by themselves."""
    chance = random.Random(f"{seed}/transaction options")
    options = TransactionOptions(
        open_max=chance.choice((3, 100_000, 100_000)),
        first_check_ms=chance.choice((100, 500, 2000)),
        check_interval_ms=chance.choice((100, 1000)),
        checks_max=chance.choice((1, 2, 8)),
    )
    return options.model_dump()


@dataclass(slots=True)
class Pledge:
    """One half message.

    Args:
        sent: the message, and what became of its send.
        fate: how its transaction ends, as far as its sender is concerned.
        only_if_asked: whether the sender says so only when it is asked.
        transaction_id: as the broker said.
        told_s: when it was first told.
        ended_s, position: when that was answered OK, and where the log ended then; -1 if it was not.
        refused: why the end was refused, if it was.
        refused_id: of which transaction: a send that was tried again has others, too.
        contradicted: whether the opposite was answered OK.
        was_asked: whether its sender was asked about it.
    """

    sent: Sent
    fate: Fate
    only_if_asked: bool
    transaction_id: str = ""
    reported_s: float = float("inf")
    ended_s: float = -1.0
    position: int = -1
    refused: str = ""
    refused_id: str = ""
    contradicted: bool = False
    was_asked: bool = False

    @property
    def message_id(self) -> str:
        """The sender's."""
        return self.sent.message.system_properties.message_id


class Pledges(Workload):
    """A producer with transactions, and the consumer of its messages.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        fails: whether a message of an id fails by itself: this one sends none of those.
        rate: sends per second.
    """

    def __init__(self, tools: Tools, chance: random.Random, fails: Callable[[str], bool], rate: float = _RATE) -> None:
        self.topics = {TOPIC: OwnTopic(TYPE)}
        self._rate = rate
        self._chance = chance
        self._fails = fails
        self.history = History()
        self._tools = Tools(tools.network, self.history, tools.trace, tools.loop, tools.log_end)
        manners = Manners(batch_max=8, invisible_ms=(2000, 3000), wait_s=(0.0, 1.0), think_s_max=0.0, nack=0.1)
        self._consumer = Consumer("ct", self._tools, chance, Subscription(GROUP, TOPIC), manners)
        self._pledges: dict[str, Pledge] = {}
        self._count = 0
        self._context = contextvars.copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._standing: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Send until asked to stop, and say how each transaction ended."""
        loop, chance = asyncio.get_running_loop(), self._chance
        self._standing = [loop.create_task(self._consumer.run()), loop.create_task(self._listen())]
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(self._rate))
            self._start(self._send([self._message() for _ in range(chance.choice((1, 1, 1, 3)))]))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self._consumer.stopping = True
        consuming, listening = self._standing
        listening.cancel()
        await asyncio.wait((consuming, listening))
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        consuming.result()

    def _start(self, work: Any) -> None:
        # What a server sends is taken in where the server runs: what follows from it must not die with the server.
        context = self._context.copy()
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=context)

    def _message(self) -> d.Message:
        self._count += 1
        while self._fails(f"{_NAME}-{self._count}"):
            self._count += 1
        chance = self._chance
        properties = d.SystemProperties(
            message_id=f"{_NAME}-{self._count}",
            message_type=d.MessageType.TRANSACTION,
            body_encoding=d.Encoding.IDENTITY,
            born_host=_NAME,
        )
        if chance.random() < 0.1:
            properties.orphaned_transaction_recovery_duration.FromMilliseconds(chance.choice((200, 1500)))
        body = chance.randbytes(chance.choice((1, 100, 3000)))
        return d.Message(topic=d.Resource(name=TOPIC), body=body, system_properties=properties)

    async def _send(self, messages: list[d.Message]) -> None:
        tools, chance = self._tools, self._chance
        pledges = []
        for message in messages:
            sent = Sent(message, tools.now())
            fates: tuple[Fate, ...] = ("commit", "commit", "commit", "rollback", "never")
            pledge = Pledge(sent, chance.choice(fates), chance.random() < 0.25)
            pledges.append(pledge)
            self._pledges[pledge.message_id] = pledge
            self.history.sent[pledge.message_id] = sent
        data = pb.SendMessageRequest(messages=messages).SerializeToString()
        ids = [f"{pledge.message_id}:{pledge.fate}" for pledge in pledges]
        tools.trace.add(_NAME, "half", *ids)
        try:
            encoded = await tools.network.call(protocol.SEND_MESSAGE, data, headers(_NAME), chance.choice((1.0, 5.0)))
        except RpcError as error:
            tools.trace.add(_NAME, "half failed", error.status.name, *ids)
            return
        response = pb.SendMessageResponse.FromString(encoded)
        entries = list(response.entries)
        if len(entries) != len(pledges):
            entries = [pb.SendResultEntry(status=response.status)] * len(pledges)
        for pledge, entry in zip(pledges, entries, strict=True):
            status = entry.status
            pledge.sent.ended_s, pledge.sent.position = tools.now(), tools.log_end.position
            pledge.sent.said = f"{code_name(status.code)}: {status.message}"
            tools.trace.add(_NAME, "half sent", pledge.message_id, pledge.sent.said[:60])
            if status.code != d.Code.OK:
                pledge.sent.outcome = "refused" if is_definite(status) else "unknown"
                continue
            pledge.sent.outcome = "ok"
            pledge.transaction_id = entry.transaction_id
            if pledge.fate != "never" and not pledge.only_if_asked:
                self._start(self._report(pledge, entry.transaction_id, chance.choice((0.0, 0.01, 0.5, 3.0))))

    async def _report(self, pledge: Pledge, transaction_id: str, wait_s: float) -> None:
        """Say how a transaction ended until that is answered; now and then say it again, and say the opposite."""
        await asyncio.sleep(wait_s * self._chance.random())
        for _ in range(_TRIES_MAX):
            status = await self._end(pledge, transaction_id, pledge.fate)
            if status is not None and status.code == d.Code.OK:
                pledge.ended_s, pledge.position = self._tools.now(), self._tools.log_end.position
                break
            if status is not None and is_definite(status) and status.code != d.Code.TOO_MANY_REQUESTS:
                pledge.refused, pledge.refused_id = f"{code_name(status.code)}: {status.message}", transaction_id
                break
            await asyncio.sleep(0.5)
        if pledge.ended_s >= 0 and self._chance.random() < 0.2:
            opposite: Fate = "rollback" if pledge.fate == "commit" else "commit"
            status = await self._end(pledge, transaction_id, opposite)
            if status is not None and status.code == d.Code.OK:
                pledge.contradicted = True

    async def _end(self, pledge: Pledge, transaction_id: str, fate: Fate) -> d.Status | None:
        tools = self._tools
        if fate == pledge.fate:
            pledge.reported_s = min(pledge.reported_s, tools.now())
        request = pb.EndTransactionRequest(
            topic=d.Resource(name=TOPIC),
            message_id=pledge.message_id,
            transaction_id=transaction_id,
            resolution=d.COMMIT if fate == "commit" else d.ROLLBACK,
        )
        try:
            response = await tools.network.call(protocol.END_TRANSACTION, request, headers(_NAME), 3.0)
        except RpcError as error:
            tools.trace.add(_NAME, fate, pledge.message_id, error.status.name)
            return None
        status: d.Status = response.status
        tools.trace.add(_NAME, fate, pledge.message_id, code_name(status.code), status.message[:60])
        return status

    async def _listen(self) -> None:
        """Hold a Telemetry stream open, and answer what is asked there."""
        publishing = d.Publishing(topics=[d.Resource(name=TOPIC)])
        command = pb.TelemetryCommand(settings=d.Settings(client_type=d.PRODUCER, publishing=publishing))
        while True:
            with contextlib.suppress(RpcError):
                await self._tools.network.telemetry(command, headers(_NAME), self._asked)
            await asyncio.sleep(0.2 + self._chance.random())

    def _asked(self, command: pb.TelemetryCommand) -> None:
        if not command.HasField("recover_orphaned_transaction_command"):
            return
        asked = command.recover_orphaned_transaction_command
        pledge = self._pledges[asked.message.system_properties.message_id]
        self._tools.trace.add(_NAME, "asked", pledge.message_id)
        pledge.was_asked = True
        if asked.message.body != pledge.sent.message.body:
            self.history.unexpected.append(f"{pledge.message_id} is asked about with another body")
        if pledge.fate != "never" and self._chance.random() < 0.7:
            self._start(self._report(pledge, asked.transaction_id, 0.0))

    def left(self, core: BrokerCore) -> str:
        """What is not done yet, in words."""
        if len(core.transactions.table):
            return f"{len(core.transactions.table)} transactions are open"
        waiting = core.pops.waiting(GROUP, TOPIC, None)
        return f"{waiting} messages of transactions wait" if waiting else ""

    def judge(
        self,
        logs: Sequence[Iterable[StoredRecord]],
        disasters: History,
        *,
        is_lossy: bool,
        is_calm: bool = False,
        deleted: int = 0,
    ) -> list[str]:
        """X2, by the logs and by what clients saw.

        Args:
            logs: of each broker, all records in their order.
            disasters: the history that has them.
            is_lossy: whether a disaster may take what was acknowledged.
            is_calm: whether there were no faults: then senders learn of what they are asked.
            deleted: position up to which retention has deleted; what it took before anybody had it is nobody's.
        """
        broken = [f"X2: {each}" for each in self.history.unexpected]
        found = _Logs(logs, broken)
        got: dict[str, float] = {}
        for delivery in self.history.deliveries:
            got[delivery.message_id] = min(got.get(delivery.message_id, float("inf")), delivery.got_s)
        for message_id in found.messages.keys() | got.keys():
            pledge = self._pledges.get(message_id)
            if pledge is None:
                broken.append(f"X2: {message_id} is there and nobody sent it")
            elif pledge.fate != "commit" or pledge.reported_s > got.get(message_id, float("inf")):
                broken.append(f"X2: {message_id} is to {pledge.fate}, told at {pledge.reported_s:.3f}, and was seen")
        expired = [each for each in self._pledges.values() if Resolution.EXPIRED in found.resolutions[each.message_id]]
        if is_calm and len(expired) >= _EXPIRED_MIN and not any(each.was_asked for each in self._pledges.values()):
            broken.append(f"X2: {len(expired)} transactions were given up, and nobody was asked about any")
        for pledge in self._pledges.values():
            message_id = pledge.message_id
            is_there = message_id in found.messages
            if pledge.contradicted:
                broken.append(f"X2: {message_id} was committed and rolled back, both with OK")
            if pledge.sent.outcome == "ok" and message_id not in found.halves:
                if not (is_lossy and disasters.lost_by(pledge.sent.began_s, pledge.sent.position)):
                    broken.append(f"S1: the half message {message_id} was accepted and is not stored")
                continue
            began_s = min(pledge.sent.began_s, pledge.reported_s)
            if pledge.ended_s >= 0 and pledge.fate == "commit":
                if not is_there and not (is_lossy and disasters.lost_by(began_s, pledge.position)):
                    broken.append(f"X2: {message_id} was committed at {pledge.ended_s:.3f} and is not there")
                elif found.messages.get(message_id, -1) >= deleted and message_id not in got:
                    broken.append(f"P1: {message_id} was committed and nobody got it")
            if (
                pledge.refused.startswith("INVALID_TRANSACTION_ID")
                and pledge.sent.outcome == "ok"
                and pledge.refused_id == pledge.transaction_id  # another try's may have gone with a master
                and Resolution.EXPIRED not in found.resolutions[message_id]
                and not (is_lossy and disasters.lost_by(pledge.sent.began_s, pledge.sent.position))
            ):
                broken.append(f"X2: the end of {message_id} was refused ({pledge.refused}), and it has not expired")
        return broken


class _Logs:
    """What brokers' logs say of transactions.

    Args:
        logs: their records.
        broken: takes what is wrong in them.
    """

    def __init__(self, logs: Sequence[Iterable[StoredRecord]], broken: list[str]) -> None:
        self.halves: dict[str, list[int]] = defaultdict(list)
        self.messages: dict[str, int] = {}
        self.resolutions: dict[str, set[Resolution]] = defaultdict(set)
        for log in logs:
            self._read(log, broken)

    def _read(self, log: Iterable[StoredRecord], broken: list[str]) -> None:
        ids: dict[int, str] = {}
        messages: dict[str, int] = {}
        ended: dict[int, int] = {}
        for record in log:
            half = NONE
            if record.kind == RecordKind.HALF and decode_half(record.origin).topic == TOPIC:
                ids[record.position] = _id_of(record)
                self.halves[_id_of(record)].append(record.position)
            elif record.kind == RecordKind.HALF_END:
                half, resolution = decode_end(record.payload)
                self.resolutions[ids.get(half, "")].add(resolution)
            elif record.kind == RecordKind.MESSAGE and record.topic == TOPIC:
                half = committed_half(record)
                message_id = _id_of(record)
                if ids.get(half) != message_id:
                    broken.append(f"X2: {message_id} stands at {record.position} and comes from no half message")
                if message_id in messages:
                    broken.append(f"X2: {message_id} stands at {messages[message_id]} and {record.position}")
                messages[message_id] = record.position
            if half != NONE:
                if half in ended:
                    broken.append(f"X2: the half message at {half} ends at {ended[half]} and at {record.position}")
                ended[half] = record.position
        self.messages.update(messages)


def _id_of(record: StoredRecord) -> str:
    return SystemProperties.FromString(record.system_properties).message_id
