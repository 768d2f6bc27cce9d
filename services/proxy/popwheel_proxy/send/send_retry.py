"""Retries of failed sends: elsewhere at once, or parked until their group has a master again."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from popwheel_common.contract.cluster_view import store_id_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.brokers.parked_calls import ParkedCalls
from popwheel_proxy.brokers.retry_policy import Fault, Place, SendTries, Step, fault_of, give_up_at
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.payload import ClientMessage
from popwheel_proxy.protocol.statuses import of_rpc_error
from popwheel_proxy.send.batcher import NotSentError, size_of
from popwheel_proxy.send.batchers import Batchers
from popwheel_proxy.send.metrics import SendMetrics
from popwheel_rpc.status import RpcError

_ANSWER_RESERVE_S = 0.3
_TOPIC_WAIT_FIRST_S = 0.2
_TOPIC_WAIT_S_MAX = 1.0
"""Longest time that a send waits for another topic of the name before it retries at a broker that may be outdated.
"""

Stored = Sequence[int] | Sequence[str]
"""Result for messages of one topic: the queue offset of each, or of each delayed one its recall handle."""


@dataclass(slots=True, eq=False)
class Send:
    """A send after its first failure.

    Args:
        topic: their topic, as this proxy knows it.
        messages: the messages.
        deadline: until when its client waits, in seconds of the monotonic clock; None if for ever.
        pick: returns the next place in turn for a topic, past some groups; None if no group has a master.
        lookup: returns the topic that has the name now; raises `StatusError` if none takes the messages.
        tries: what is known of its tries.
        place: where the last one was; None if there was nowhere to go.
        failure: how that ended; None if nothing was sent.
        fault: what it means.
        topic_wait_s: for how long it waits for another topic of the name if the topic was deleted.
    """

    topic: Topic
    messages: list[ClientMessage]
    deadline: float | None
    pick: Callable[[Topic, Collection[str]], Place | None]
    lookup: Callable[[Topic, list[ClientMessage]], Topic]
    tries: SendTries
    place: Place | None
    failure: StatusError | RpcError | None
    fault: Fault = Fault.NO_MASTER
    topic_wait_s: float = _TOPIC_WAIT_FIRST_S

    def has_another_topic(self) -> bool:
        """Return whether another topic has the name now; then the messages go there.

        If the controllers have lost their state since, it may be the same one under a new id, with what was stored.

        Raises:
            StatusError: there is none, or it does not take them.
        """
        topic = self.lookup(self.topic, self.messages)
        if topic.id == self.topic.id:
            return False
        if self.tries.only is not None and self.tries.only[1] >= topic.queues:
            raise StatusError(
                Code.TOPIC_NOT_FOUND,
                f"the topic {topic.name} was deleted and made again with fewer queues meanwhile; send again",
            )
        if store_id_of(topic.id) == store_id_of(self.topic.id):
            self.tries.forget_places()
        self.topic = topic
        return True

    def client_error(self) -> StatusError:
        """Return the client's error for a send that could not be stored."""
        failure = self.failure
        if failure is None:
            away = "no broker has a master" if self.place is None else f"the broker {self.place[0]} is not there"
            failure = StatusError(Code.HA_NOT_AVAILABLE, f"{away} now; try again")
        if isinstance(failure, RpcError):
            failure = of_rpc_error(failure, "the broker" if self.place is None else f"the broker {self.place[0]}")
        if not self.tries.outcome_unknown or failure.code == Code.PROXY_TIMEOUT:
            return failure
        return StatusError(
            Code.PROXY_TIMEOUT,
            f"{failure.message}; an earlier try had no answer, so it is unknown whether the message is stored",
        )


class SendRetry:
    """Retries of sends that failed.

    Args:
        brokers: the broker groups there are.
        batchers: send to them, and know their health.
        parked_calls: where sends wait.
        metrics: what is counted.
    """

    def __init__(self, brokers: Brokers, batchers: Batchers, parked_calls: ParkedCalls, metrics: SendMetrics) -> None:
        self._brokers = brokers
        self._batchers = batchers
        self._parked_calls = parked_calls
        self._metrics = metrics

    async def retry(self, send: Send) -> Stored:
        """Retry until it is stored, refused, or its time is over.

        Args:
            send: the send; it has been tried once, or there was nowhere to go.

        Raises:
            StatusError: why it could not be stored.
        """
        began = self._parked_calls.clock.monotonic()
        step = self._after(send)
        while step is Step.ELSEWHERE:
            stored = await self._try(send)
            if stored is not None:
                return stored
            step = self._after(send)
        if step is Step.FAIL:
            raise send.client_error()
        try:
            return await self._park(send, step, began)
        except LimitError as refusal:
            # Too much is parked; but an earlier try may have stored it, and then the error says so.
            send.failure = refusal
            raise send.client_error() from refusal

    async def _park(self, send: Send, step: Step, began: float) -> Stored:
        """Park a send, and retry when its gate opens."""
        with self._parked_calls.park(size_of(send.messages)) as parked:
            while step is not Step.FAIL:
                if step is Step.WAIT:
                    give_up = self._give_up(send, began)
                    until = min(give_up, send.tries.wait_until)
                    if (
                        not await self._parked_calls.wait_to_retry(send.tries.gate, send.fault, until)
                        and until == give_up
                    ):
                        raise send.client_error()
                elif step is Step.FIND_TOPIC:
                    await self._wait_for_topic(send, began)
                stored = await self._try(send)
                if stored is not None:
                    parked.served = True
                    return stored
                step = self._after(send)
            parked.served = True
            raise send.client_error()

    async def _wait_for_topic(self, send: Send, began: float) -> None:
        """Wait until another topic has the name, unless one has it already.

        After a while the send is retried at the same broker, ever more rarely: its answer can't change before it or
        this proxy has received a cluster update.
        """
        clock, give_up = self._parked_calls.clock, self._give_up(send, began)
        until = clock.monotonic() + send.topic_wait_s
        send.topic_wait_s = min(2 * send.topic_wait_s, _TOPIC_WAIT_S_MAX)
        try:
            while not send.has_another_topic():
                now = clock.monotonic()
                if now >= give_up:
                    raise send.client_error()
                if now >= until:
                    return
                await self._parked_calls.wait_for_topics(min(until, give_up) - now)
        except StatusError as refusal:
            send.failure = refusal
            raise send.client_error() from refusal

    def _after(self, send: Send) -> Step:
        """Return the step after a failed try."""
        brokers, place = self._brokers, send.place
        if place is None or (send.failure is None and place[0] not in brokers.led):
            send.fault = Fault.NO_MASTER
        elif send.failure is None:
            send.fault = Fault.NOT_REACHED
        elif isinstance(send.failure, StatusError) and send.failure.code == Code.TOPIC_NOT_FOUND:
            self._metrics.retries.inc()
            return Step.FIND_TOPIC
        else:
            fault = fault_of(send.failure)
            if fault is None:
                return Step.FAIL
            send.fault = fault
        now = self._parked_calls.clock.monotonic()
        step = send.tries.failed(place, send.fault, brokers.names, brokers.led, self._batchers.health.sound, now)
        if step is not Step.FAIL:
            self._metrics.retries.inc()
        return step

    def _give_up(self, send: Send, began: float) -> float:
        """Return when its retries end, in seconds of the monotonic clock."""
        only, names = send.tries.only, self._brokers.names
        there = bool(names) if only is None else only[0] in names
        return give_up_at(began, send.deadline, _ANSWER_RESERVE_S, self._parked_calls.hold_s, there=there)

    async def _try(self, send: Send) -> Stored | None:
        """Try once; return None if it failed."""
        tries = send.tries
        tries.check_groups(self._brokers.names, self._parked_calls.clock.monotonic())
        send.failure = None
        place = send.place = tries.place or send.pick(send.topic, tries.past)
        if place is None or place[0] not in self._brokers.led:
            return None
        try:
            return await self._batchers.batcher(place[0]).ship(
                send.topic.name,
                place[1],
                send.messages,
                moves=tries.place is None,
                is_retry=tries.maybe_stored_at is not None,
                topic_id=send.topic.id,
            )
        except NotSentError:
            return None
        except (StatusError, RpcError) as error:
            send.failure = error.with_traceback(None)
            return None
