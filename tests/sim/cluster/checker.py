"""Holds a run of the cluster against the promises of docs/INVARIANTS.md, those that many must keep together above all.

L1, exactly. A message is in a queue of a broker from its arrival there until it is first given to the group. A poll of
the group waits at a proxy. If all of this is so for longer than the bound, without a break, L1 is broken:

- message and poll are there, and the poll's filter wants the message;
- the broker runs and has learned of the topics, the proxy runs and knows of the broker;
- nothing was wrong with either, nor with the way between them and the way to the client, and what was has been over for
  `troubles.RECOVERY_S` (`BROKEN_RECOVERY_S` after connections that were broken).

The bound is a second for the pops and pauses of the proxy's own, ten times the longest way (told, asked, answered; up
to three pops in a row), with `poll_mode: auto` the patience of a plain poll, and where there are faults twice a pop's
time-out, as the poll may hang at other brokers. Kills, stops, pauses, cuts, broken and slow ways, brokers that come and
go, the controller away and a lying count of polls are all tolerated: the bound holds outside of them, and for pairs
that they do not concern. Single notifications lost, late, repeated or out of order, which TCP cannot do, are not:
then, and where polls are `plain` or `sliced` beside several brokers, or brokers refuse interests, only safety and L2
are asked.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from popwheel_broker.log.tag import wanted_hashes
from popwheel_common.contract import names
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message
from popwheel_common.pb.popwheel.v1.broker_pb2 import TAG, Filter
from popwheel_proxy.receive.mode_choice import PATIENCE_S
from popwheel_rpc.status import GrpcStatus
from tests.sim import passing_group
from tests.sim.checker import Checker
from tests.sim.cluster import recalls
from tests.sim.cluster.clients import Log, Served
from tests.sim.cluster.sightings import Entry, Sightings, Span
from tests.sim.cluster.swarm import ClusterSwarm
from tests.sim.cluster.troubles import Troubles
from tests.sim.consumers import Subscription
from tests.sim.filters import CONDITIONS
from tests.sim.history import Delivery, Ending, History, Sent
from tests.sim.ordered import lines_of, misplaced, overtaken, shuffled
from tests.sim.process import START_MS
from tests.sim.stored import StoredMessage
from tests.sim.swarm import ORDERED_GROUP, ORDERED_TOPIC

_OWN_S = 1.0
_WAYS = 10
_GRACE_S = 1.0
_HANDLE_GRACE_S = 0.1
_INF = float("inf")


class ClusterChecker(Checker):
    """Judges one run.

    Args:
        swarm: what was drawn.
        history: what clients saw.
        stored: by broker, all messages that are in its log in the end, in its order.
        sightings: what was seen of the services from within.
        log: which calls went where.
        troubles: what was wrong when.
    """

    def __init__(
        self,
        swarm: ClusterSwarm,
        history: History,
        stored: Mapping[str, list[StoredMessage]],
        sightings: Sightings,
        log: Log,
        troubles: Troubles,
    ) -> None:
        stored = {
            broker: [each for each in found if not recalls.is_own(each.topic)] for broker, found in stored.items()
        }
        super().__init__(swarm, history, [each for found in stored.values() for each in found], {})
        self._draw = swarm
        self._by_broker = stored
        self._sightings = sightings
        self._log = log
        self._troubles = troubles
        self._sent_twice = bool(swarm.faults)
        self._is_one_proxy = False
        self._brokers_of: dict[str, set[str]] = defaultdict(set)
        """Where each message is stored."""
        for broker, found in stored.items():
            for each in found:
                if each.topic in swarm.topics:
                    self._brokers_of[each.message_id].add(broker)
        self._at = {
            (broker, each.topic, each.queue_id, each.offset): each.message_id
            for broker, found in stored.items()
            for each in found
        }
        """Which message is where."""
        self.bound_s = bound_s(swarm)

    def _check_acknowledged(self, message_id: str, sent: Sent, copies: list[StoredMessage]) -> None:
        """S1: also that what may be stored at a broker goes to no other while that one is there."""
        super()._check_acknowledged(message_id, sent, copies)
        brokers = self._brokers_of[message_id]
        left = (
            sent.began_s <= span.ended_s <= sent.ended_s
            for (_, broker), spans in self._sightings.knowing.items()
            if broker in brokers
            for span in spans
        )
        if len(brokers) > 1 and not any(left):
            self._verdict.broke(
                "S1",
                f"{message_id} of {sent.began_s:.6f} to {sent.ended_s:.6f} is stored at {sorted(brokers)}, and each "
                "proxy knew of them all the time",
            )

    def _check_places(self) -> None:
        """S3: a place names one message, now and before."""
        for delivery in self._history.deliveries:
            handle = delivery.handle
            topic = names.retry_topic(delivery.group, delivery.topic) if handle.from_retry else delivery.topic
            place = (_broker_of(delivery.receipt), topic, handle.queue_id, handle.offset)
            if self._at.get(place) != delivery.message_id:
                self._verdict.broke("S3", f"{place} was {delivery.message_id} and is {self._at.get(place)}")

    def _check_handles(self) -> None:
        """P7, and X1: whichever proxy a handle is shown to, it is good while its message is held."""
        super()._check_handles()
        for key, settled in self._ended.items():
            said: set[str] = set()
            for ending in sorted(settled, key=lambda each: each.began_s):
                if ending.kind == "ack" and ending.receipt not in said:
                    self._check_first_ack(key, ending, bool(said))
                if ending.kind != "forged":
                    said.add(ending.receipt)

    def _check_order(self) -> None:
        """P6: at each broker, and that only a broker that came later takes a message group over."""
        brokers: dict[str, set[str]] = defaultdict(set)
        for broker, found in self._by_broker.items():
            originals: dict[str, list[StoredMessage]] = defaultdict(list)
            for each in found:
                if each.topic == ORDERED_TOPIC:
                    originals[each.message_id].append(each)
            deliveries = {
                key: [each for each in given if each.handle.broker == broker]
                for key, given in self._deliveries.items()
                if key[0] == ORDERED_GROUP
            }
            for line, stored in lines_of(self._history, originals).items():
                brokers[line].add(broker)
                late = overtaken(stored, self._history, deliveries, self._dead, self._ended, _never, _is_dead)
                for sentence in (*misplaced(line, stored), *late):
                    self._verdict.broke("P6", sentence)
            for sentence in shuffled(self._history, originals):
                self._verdict.broke("P6", sentence)
        for line, names_of in brokers.items():
            first = [name for name in names_of if _number_of(name) < self._draw.brokers]
            if len(first) > 1:
                self._verdict.broke("P6", f"messages of {line} are at {sorted(first)}, which were there all the time")

    def _check_first_ack(self, key: tuple[str, str], ending: Ending, others: bool) -> None:
        delivery = ending.delivery
        open_until_s = (delivery.handle.pop_ms + delivery.handle.invisible_ms - START_MS) / 1000
        if delivery.renewed:  # what the proxy renews is released when its client has gone
            open_until_s = min(open_until_s, self._history.gone_s(delivery.client, delivery.got_s, is_one_proxy=False))
        if (
            ending.outcome == "refused"
            and not others
            and ending.receipt == delivery.receipt
            and ending.ended_s < open_until_s - _HANDLE_GRACE_S
        ):
            self._verdict.broke(
                "X1",
                f"{key[1]} was given to {key[0]} at {delivery.got_s:.6f} until {open_until_s:.3f}, and its ack was "
                f"refused at {ending.ended_s:.6f}: {ending.said}",
            )

    def _check_polls(self) -> None:
        """L1 as above, and that calls to proxies with which nothing is wrong are answered in time."""
        self._check_answers()
        if not self._draw.notifies:
            return
        arrivals = defaultdict(list)
        for entry, arrival in self._sightings.arrivals.items():
            arrivals[entry.topic].append((entry, arrival))
        for poll in self._log.polls:
            if poll.ended_s - poll.began_s <= self.bound_s or poll.group in (ORDERED_GROUP, passing_group.GROUP):
                continue  # what may come next in order, or to a group that is not there, is another matter
            condition = CONDITIONS.get(poll.filter)
            wanted = wanted_hashes(Filter(kind=TAG, expression=poll.filter)) if poll.filter and not condition else None
            for entry, arrival in arrivals[poll.topic]:
                if condition is not None and not self._passes(entry, condition):
                    continue
                if wanted is None or arrival.tag_hash in wanted:
                    self._check_found(poll, entry, arrival.time_s)
            for entry, arrival in arrivals[names.retry_topic(poll.group, poll.topic)]:
                self._check_found(poll, entry, arrival.time_s)

    def _passes(self, entry: Entry, condition: Callable[[Message], bool]) -> bool:
        """Whether an SQL92 filter lets a message through."""
        sent = self._history.sent.get(self._at.get((entry.broker, entry.topic, entry.queue_id, entry.offset), ""))
        return sent is not None and condition(sent.message)

    def _check_found(self, poll: Served, entry: Entry, arrived_s: float) -> None:
        """L1 for a poll and a message that it wants."""
        began_s = max(poll.began_s, arrived_s)
        ended_s = min(poll.ended_s, self._sightings.given.get((poll.group, entry), _INF))
        if ended_s - began_s <= self.bound_s:
            return
        knowing = self._sightings.knowing.get((poll.proxy, entry.broker), ())
        ready = self._sightings.ready.get(entry.broker, ())
        for from_s, to_s in self._troubles.calm(began_s, ended_s, poll.client, poll.proxy, entry.broker):
            for known_from_s, known_to_s in _within(from_s, to_s, knowing):
                for both_from_s, both_to_s in _within(known_from_s, known_to_s, ready):
                    if both_to_s - both_from_s > self.bound_s:
                        self._verdict.broke(
                            "L1",
                            f"{poll.client}'s poll waited at {poll.proxy} from {poll.began_s:.6f} to "
                            f"{poll.ended_s:.6f}, and {entry} was there for {poll.group} from {arrived_s:.6f} on; all "
                            f"was well from {both_from_s:.6f} to {both_to_s:.6f}, the bound is {self.bound_s:.3f} s",
                        )

    def _check_answers(self) -> None:
        longest_s = self._draw.options.proxy.grpc_client_consumer_max_long_polling_timeout_ms / 1000
        slack_s = _GRACE_S + 4 * self._draw.delay_s_max
        for poll in self._log.polls:
            is_late = poll.ended_s - poll.began_s > min(poll.wait_s, longest_s) + slack_s
            if is_late and self._troubles.is_calm(poll.began_s, poll.ended_s, poll.client, poll.proxy):
                self._verdict.broke(
                    "L1",
                    f"{poll.client}'s poll of {poll.wait_s} s at {poll.proxy} lasted from {poll.began_s:.6f} to "
                    f"{poll.ended_s:.6f}",
                )
        for failed in self._log.failed:
            if failed.status is GrpcStatus.DEADLINE_EXCEEDED and failed.method != "ReceiveMessage":
                continue  # a broker may have been slow
            if self._troubles.is_calm(failed.began_s, failed.ended_s, failed.client, failed.proxy):
                self._verdict.broke(
                    "X1",
                    f"{failed.client}'s {failed.method} of {failed.began_s:.6f} at {failed.proxy} ended at "
                    f"{failed.ended_s:.6f} with {failed.status.name}, and nothing was wrong with that proxy",
                )


def wanted_by(subscription: Subscription) -> frozenset[int] | None:
    """Hashes of the tags that a subscription wants; None for all."""
    return wanted_hashes(Filter(kind=TAG, expression=" || ".join(subscription.tags))) if subscription.tags else None


def bound_s(swarm: ClusterSwarm) -> float:
    """The bound of L1, in seconds of virtual time."""
    proxy = swarm.options.proxy
    patience_s = PATIENCE_S if proxy.poll_mode == "auto" else 0.0
    hanging_s = 2 * proxy.receive.pop_timeout_ms / 1000 if swarm.faults else 0.0
    return _OWN_S + _WAYS * swarm.delay_s_max + patience_s + hanging_s


def _within(from_s: float, to_s: float, spans: Iterable[Span]) -> list[tuple[float, float]]:
    cut = [(max(from_s, span.began_s), min(to_s, span.ended_s)) for span in spans]
    return [(begins, ends) for begins, ends in cut if begins < ends]


def _number_of(broker: str) -> int:
    return int(broker.rpartition("-")[2])


def _never(_: str) -> bool:
    return False


def _is_dead(dead: StoredMessage, delivery: Delivery) -> bool:
    """All clocks are one here, and brokers' logs are several."""
    return dead.record.store_time_ms <= START_MS + delivery.got_s * 1000


def _broker_of(receipt: str) -> str:
    return receipt.split(" ")[5]
