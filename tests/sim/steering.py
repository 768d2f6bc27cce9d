"""An operator who sets a group back and forward, redrives its dead letters and purges them, while it works.

The workload has a topic, a group and a history of its own, and its own random streams. It runs in a share of the seeds.
`Steered` says what that allows: a reset may bring messages again, and may skip some; nothing else may.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from popwheel_broker.consume.delivery import decode_redriven
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.record import RecordKind, StoredRecord
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_rpc.methods import DEAD_LETTER_REDRIVE, RESET_OFFSETS
from popwheel_rpc.service import Call, Method, Service
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.sim.checker import Checker, Key
from tests.sim.consumers import POLITE, Consumer, Manners, Subscription
from tests.sim.history import Delivery, Ending, History
from tests.sim.loop import SimLoop
from tests.sim.process import START_MS, Process
from tests.sim.producers import Producer
from tests.sim.stored import StoredMessage, messages_of
from tests.sim.swarm import AnySwarm
from tests.sim.tools import Tools
from tests.sim.workload import OwnTopic, Workload

NAME = "operator"
TOPIC = "steered"
GROUP = "steerage"
TYPE = TopicType.NORMAL

_RESETS = ("earliest", "latest", "time", "offset", "shift")
_POLICIES = {"earliest": pb.BEGINNING, "time": pb.TIMESTAMP, "offset": pb.AT_OFFSET, "shift": pb.SHIFT}
_SHARE = 0.15
_NAME = "operator"
_DEAD = names.dead_letter_topic(GROUP)
_TIMEOUT_S = 3.0
_LAST_TRIES = 20

Request = TypeVar("Request")
Response = TypeVar("Response")
Served = tuple[Process, Service]


def is_on(seed: int, only: tuple[str, ...] | None) -> bool:
    """Whether a seed has the workload."""
    return random.Random(f"{seed}/operator").random() < _SHARE if only is None else NAME in only


def attempts_of(seed: int) -> int:
    """How often the group may try a message."""
    return random.Random(f"{seed}/operator attempts").choice((1, 2, 3))


def is_own(topic: str) -> bool:
    """Whether a topic's messages are looked after here."""
    return topic == TOPIC or GROUP in topic


async def ask(loop: SimLoop, served: Served | None, method: Method[Request, Response], request: Request) -> Response:
    """Call a broker as the controller does for its admin API.

    Raises:
        RpcError, StatusError: as the broker says; UNAVAILABLE leaves open what was done.
    """
    if served is None:
        raise RpcError(GrpcStatus.UNAVAILABLE, "no broker serves")
    process, service = served
    handler = service.unary_handlers[method.path][1]
    call = Call(method.path, {}, None, "operator:1")
    answer: asyncio.Future[Any] = loop.create_future()
    process.report_death(answer)

    async def serve() -> None:
        try:
            response = await handler(call, method.request.decode(method.request.encode(request)))
        except (StatusError, RpcError) as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(response)

    process.spawn(serve(), "operator")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            response: Response = await answer
            return response
    except (ConnectionResetError, TimeoutError):
        raise RpcError(GrpcStatus.UNAVAILABLE, "the broker has died, or does not answer") from None
    finally:
        process.report_no_more(answer)


Asks = Callable[[Method[Any, Any], Any], Awaitable[Any]]


@dataclass(slots=True)
class Order:
    """One thing that the operator did.

    Args:
        kind: what.
        queue_id: of a reset: the only queue that is meant; None for all.
        began_s, ended_s: from when to when it may have happened; without an answer, there is no end.
        before, position: where the log ended when it began, and when it was answered.
        is_ok: whether it was answered.
        to_offsets: of a reset, by queue, where the group goes on, as the answer says.
        given_back: of a redrive, how many.
    """

    kind: Literal["earliest", "latest", "time", "offset", "shift", "redrive", "purge"]
    began_s: float
    before: int
    queue_id: int | None = None
    ended_s: float = float("inf")
    position: int = 0
    is_ok: bool = False
    to_offsets: dict[int, int] = field(default_factory=dict)
    returned: int = 0

    @property
    def is_reset(self) -> bool:
        """Whether it moves the group in its topic."""
        return self.kind in _RESETS

    def is_of(self, queue_id: int) -> bool:
        """Say if it is about a queue of the topic."""
        return self.queue_id is None or self.queue_id == queue_id

    def revokes(self, delivery: Delivery) -> bool:
        """Say if it takes back what was delivered like this. Retries are of no queue, so only whole resets do."""
        handle = delivery.handle
        return self.queue_id is None or (not handle.from_retry and handle.queue_id == self.queue_id)

    def may_skip(self, message: StoredMessage) -> bool:
        """Whether a message may be passed over with it."""
        if not self.is_reset or self.kind == "earliest" or not self.is_of(message.queue_id):
            return False
        return not self.is_ok or message.offset < self.to_offsets.get(message.queue_id, 0)


class _Sender(Producer):
    """Sends none of the messages that fail by themselves."""

    def __init__(self, fails: Callable[[str], bool], *more: Any) -> None:
        super().__init__("pw", *more)
        self._fails = fails

    def message(self, topic: str) -> d.Message:
        while self._fails(f"pw-{self._count + 1}"):
            self._count += 1
        return super().message(topic)


class Operator(Workload):
    """The operator, a producer and a consumer.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        asks: calls the broker that leads.
        fails: whether a message of an id fails by itself: none of those is sent.
        attempts: how often the group may try a message.
    """

    def __init__(
        self, tools: Tools, chance: random.Random, asks: Asks, fails: Callable[[str], bool], attempts: int
    ) -> None:
        self.topics = {TOPIC: OwnTopic(TYPE)}
        self.groups = {GROUP: attempts}
        self._chance = chance
        self._asks = asks
        self.history = History()
        self._tools = Tools(tools.network, self.history, tools.trace, tools.loop, tools.log_end)
        self._producer = _Sender(fails, self._tools, chance, [TOPIC], (), 3.0, 3, 300)
        self.manners = Manners(
            batch_max=8,
            invisible_ms=(300, 3000),
            wait_s=(0.0, 1.0),
            nack=0.2,
            forward=0.1,
            forget=0.1,
            twice=0.2,
            stale=0.2,
        )
        self.subscription = Subscription(GROUP, TOPIC)
        self._consumer = Consumer("cw", self._tools, chance, self.subscription, self.manners)
        self.orders: list[Order] = []
        self._consuming: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work until asked to stop; in the end things are often released once more."""
        loop, chance = asyncio.get_running_loop(), self._chance
        self._consuming = loop.create_task(self._consumer.run())
        sending = loop.create_task(self._producer.run())
        while not self.stopping:
            await asyncio.sleep(chance.expovariate(0.7))
            if not self.stopping:
                kind = chance.choice(("earliest", "latest", "time", "redrive", "redrive", "purge"))
                if kind in _RESETS and chance.random() < 0.4:
                    kind = chance.choice(_RESETS)
                await self._order(kind, chance.choice((None, 0, 1)) if kind in _RESETS else None)
        self._producer.stopping = True
        await sending
        self._consumer.manners = POLITE
        for kind in ("redrive", "earliest"):
            if chance.random() < 0.5:
                for _ in range(_LAST_TRIES):
                    if await self._order(kind):
                        break
                    await asyncio.sleep(0.5)

    async def end(self) -> None:
        """End, when nothing is left to be done."""
        self._consumer.stopping = True
        if self._consuming is not None:
            await self._consuming

    async def _order(self, kind: str, queue_id: int | None = None) -> bool:
        tools, chance = self._tools, self._chance
        order = Order(kind, tools.now(), tools.log_end.position, queue_id)  # type: ignore[arg-type]
        self.orders.append(order)
        try:
            if kind == "redrive":
                asked = pb.DeadLetterRedriveRequest(group=GROUP, limit=chance.choice((1, 3, 1000)), end_offset=1 << 40)
                order.returned = (await self._asks(DEAD_LETTER_REDRIVE, asked)).redriven
            else:
                topic = _DEAD if kind == "purge" else TOPIC
                policy = _POLICIES.get(kind, pb.END)
                at_ms = START_MS + int(chance.random() * tools.now() * 1000)
                reset = pb.ResetOffsetsRequest(
                    group=GROUP, topic=topic, policy=policy, timestamp_ms=at_ms, queue_id=queue_id
                )
                if kind in ("offset", "shift"):
                    reset.offset = chance.randrange(-20 if kind == "shift" else 0, 20)
                if chance.random() < 0.2:
                    reset.dry_run = True
                    await self._asks(RESET_OFFSETS, reset)
                    reset.dry_run = False
                answer = await self._asks(RESET_OFFSETS, reset)
                order.to_offsets = {each.queue_id: each.to_offset for each in answer.queues}
            order.is_ok = True
            order.ended_s = tools.now()
        except (RpcError, StatusError) as error:
            tools.trace.add(_NAME, kind, "failed", str(error)[:60])
        order.position = tools.log_end.position
        if order.is_ok:
            tools.trace.add(_NAME, kind, order.returned, str(order.to_offsets), queue_id)
        return order.is_ok

    def left(self, core: BrokerCore) -> str:
        """What is not done yet, in words."""
        waiting = core.pops.waiting(GROUP, TOPIC, None)
        return f"{waiting} messages wait for {GROUP}" if waiting else ""

    def history_after(self, history: History) -> History:
        """What was seen here, with what has struck and what is quarantined by the history of all others."""
        self.history.disasters, self.history.troubles = history.disasters, history.troubles
        self.history.set_aside = history.set_aside
        return self.history

    def judge(self, checker: "Steered", log: Iterable[StoredRecord], listed: Collection[int]) -> list[str]:
        """What does not hold.

        Args:
            checker: made for this history.
            log: all records in their order.
            listed: offsets of dead letters that are listed in the end.
        """
        checker.orders, checker.redriven, checker.listed = self.orders, redriven_in(log), listed
        return checker.judge().violations + checker.check_dead_letters() + checker.check_resets()

    def swarm_of(self, swarm: AnySwarm) -> AnySwarm:
        """A seed's draw with this topic and group in place of all others."""
        return replace(
            swarm,
            topics={TOPIC: 2},
            types={TOPIC: TYPE},
            groups=dict(self.groups),
            subscriptions=[self.subscription],
            manners={self.subscription: [self.manners]},
            hoarder="",
        )


class Steered(Checker):
    """What holds of the operator's topic. It is the first base class of a checker of a simulator.

    Attributes:
        orders: what the operator did.
        redriven: records that give dead letters back.
        listed: offsets of dead letters that are listed in the end.
    """

    orders: Collection[Order] = ()
    redriven: Collection[StoredRecord] = ()
    listed: Collection[int] = ()

    def check_dead_letters(self) -> list[str]:
        """P1: each dead letter is listed, was released once, or may have been purged."""
        found: list[str] = []
        at = {each.record.queue_offset: each for dead in self._dead.values() for each in dead}
        back: dict[int, StoredRecord] = {}
        for record in self.redriven:
            offset = decode_redriven(record.origin)
            assert offset is not None
            if offset in back:
                found.append(f"P1: the dead letter at {offset} was given back twice")
            back[offset] = record
        purged = any(each.kind == "purge" for each in self.orders)
        for offset, each in at.items():
            if (offset in self.listed) == (offset in back) and not (purged and offset not in back):
                how = "given back and listed" if offset in back else "neither given back nor listed"
                found.append(f"P1: {each.message_id}, the dead letter at {offset}, is {how}")
        reported = sum(each.returned for each in self.orders if each.is_ok and not self._is_lost(each))
        given = {offset: record for offset, record in back.items() if record.topic != _DEAD}
        if reported > len(given):
            found.append(f"P1: {reported} dead letters were said to be given back, and {len(given)} were")
        for record in given.values():
            message = messages_of([record])[0]
            if not self._came_of(message.message_id, record.position) and not self._is_passed_over(record.position):
                found.append(f"P1: {message.message_id} was given back at {record.position} and is nowhere")
        return found

    def check_resets(self) -> list[str]:
        """What stands behind the last reset came again since; what was in hand before one was revoked."""
        found: list[str] = []
        resets = [each for each in self.orders if each.is_reset]
        if resets and resets[-1].is_ok and not self._is_lost(resets[-1]):
            last = resets[-1]
            for message_id, copies in self._originals.items():
                behind = [
                    each
                    for each in copies
                    if last.is_of(each.queue_id) and each.offset >= last.to_offsets.get(each.queue_id, 0)
                ]
                if behind and not self._came_of(message_id, last.before) and not self._is_aside(message_id):
                    found.append(
                        f"P1: {message_id} stands behind the reset of {last.began_s:.6f} and did not come again"
                    )
        for settled in self._ended.values():
            for each in settled:
                if each.outcome != "ok" or each.kind == "forged":
                    continue
                void = [
                    order
                    for order in resets
                    if order.is_ok
                    and order.revokes(each.delivery)
                    and each.delivery.got_s < order.began_s
                    and order.ended_s < each.began_s
                    and not self._is_lost(order)
                ]
                if void:
                    found.append(
                        f"P7: {each.kind} of {each.delivery.message_id} at {each.began_s:.6f} was taken, though the "
                        f"reset of {void[0].began_s:.6f} had taken the message back"
                    )
        return found

    def _came_of(self, message_id: str, position: int) -> bool:
        """Whether the group was done with a message that came after the log was so long; or a disaster took that."""
        key = (GROUP, message_id)
        return any(each.record.position >= position for each in self._dead[key]) or any(
            each.kind in ("ack", "forward") and each.outcome != "refused" and each.delivery.position >= position
            for each in self._ended[key]
        )

    def _is_passed_over(self, position: int) -> bool:
        """Whether what came to the retry topic then may have been passed over by a reset."""
        resets = [each for each in self.orders if each.is_reset and each.queue_id is None]
        return any(not each.is_ok or each.position >= position for each in resets)

    def _is_aside(self, message_id: str) -> bool:
        return (GROUP, message_id) in self._history.set_aside

    def _is_lost(self, order: Order) -> bool:
        return self._history.lost_by(order.began_s, order.position) is not None

    def _ordered_between(self, key: Key, began_s: float, ended_s: float) -> bool:
        """Whether a reset may have happened then; a redrive, too, if the message was dead."""
        return any(
            ((each.is_reset and self._is_in_queue(key, each)) or (each.kind == "redrive" and self._dead[key]))
            and each.began_s <= ended_s
            and each.ended_s >= began_s
            for each in self.orders
        )

    def _is_of_unseen(self, key: Key, retry: Delivery) -> bool:
        """Whether the delivery that a retry is of was lost on its way, so that nobody knows when it was."""
        return retry.handle.from_retry and not any(
            each.attempt == retry.attempt - 1 and each.asked_s < retry.asked_s for each in self._deliveries[key]
        )

    def _is_in_two_places(self, key: Key, time_s: float) -> bool:
        """Whether a reset may have brought back a dead letter's message, and a redrive the dead letter itself.

        Or a reset of its queue alone has brought back a message that waits to be tried again as well.
        """
        for order in self.orders:
            is_before = order.queue_id is not None and order.began_s <= time_s and self._is_in_queue(key, order)
            if is_before and any(
                each.asked_s <= order.ended_s or self._is_of_unseen(key, each) for each in self._deliveries[key]
            ):
                return True
        kinds = {each.is_reset for each in self.orders if each.began_s <= time_s and each.kind != "purge"}
        return bool(self._dead[key]) and len(kinds) == 2

    def _is_in_queue(self, key: Key, order: Order) -> bool:
        """Return whether an order may be about a message. If a disaster took it from the log, its queue is unknown."""
        originals = self._originals.get(key[1])
        return not originals or any(order.is_of(each.queue_id) for each in originals)

    def _may_have_ended(self, earlier: Delivery, later: Delivery) -> bool:
        key = (earlier.group, earlier.message_id)
        if self._is_in_two_places(key, later.got_s) or self._ordered_between(key, earlier.asked_s, later.got_s):
            return True
        return super()._may_have_ended(earlier, later)

    def _may_come_again(self, key: Key, ending: Ending, delivery: Delivery) -> bool:
        return self._is_in_two_places(key, delivery.got_s) or self._ordered_between(key, ending.began_s, delivery.got_s)

    def _check_conserved(self, subscription: Subscription, message_id: str, copies: int) -> None:
        """P1: unless a reset may have skipped it; and one that came again may be dead each time."""
        if any(order.may_skip(copy) for order in self.orders for copy in self._originals[message_id]):
            return
        again = sum(each.is_reset or each.kind == "redrive" for each in self.orders)
        super()._check_conserved(subscription, message_id, copies + again)


def redriven_in(log: Iterable[StoredRecord]) -> list[StoredRecord]:
    """The records that take the place of dead letters of the group."""
    return [
        record
        for record in log
        if record.kind == RecordKind.MESSAGE and GROUP in record.topic and decode_redriven(record.origin) is not None
    ]


def listed_in(core: BrokerCore) -> set[int]:
    """Offsets of the group's dead letters that are listed."""
    queue = core.dead_letters.queue(GROUP)
    return set() if queue is None else set(range(core.dead_letters.first_offset(GROUP, queue), queue.max_offset))
