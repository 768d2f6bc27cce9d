"""Holds the history of a run against the promises of docs/INVARIANTS.md, and says by number which one broke."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from popwheel_common.contract import names
from popwheel_common.contract.time_to_live import DROP
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.sim import guests, lite, passing_group, transactions
from tests.sim.consumers import Subscription
from tests.sim.history import Delivery, Ending, Handle, History, Polled, Sent
from tests.sim.lives import may_expire
from tests.sim.ordered import lines_of, misplaced, overtaken, shuffled
from tests.sim.passing_topic import GROUP, TOPIC
from tests.sim.stored import StoredMessage
from tests.sim.swarm import ORDERED_GROUP, Swarm

_POLL_GRACE_S = 0.5
_SLOW_S = 1.0
_HIDDEN_S_MAX = 5.0
"""So long a message is hidden at the most that was given to nobody, and is not a hoarder's."""
_SYNCS_AT_ONCE = 40
"""Files that one round of syncs may have to go through, at segments of 4 KiB."""

Key = tuple[str, str]
"""A group and a message's id."""


@dataclass(slots=True)
class Verdict:
    """What became of all messages, and what broke.

    Args:
        violations: a sentence each, the invariant's number first.
        lost: acknowledged sends that are gone without an excuse.
        excused: acknowledged sends that a power loss took, as flush=async allows.
        duplicated: acknowledged messages that came again without an excuse.
        recovered: sends of unknown outcome that turned out to be stored.
        unexpected: deliveries of what nobody sent.
    """

    violations: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    excused: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def broke(self, number: str, sentence: str) -> None:
        """Note that an invariant does not hold."""
        self.violations.append(f"{number}: {sentence}")

    def counts(self) -> str:
        """The sets by size."""
        return (
            f"lost={len(self.lost)} excused={len(self.excused)} duplicated={len(self.duplicated)} "
            f"recovered={len(self.recovered)} unexpected={len(self.unexpected)}"
        )


class Checker:
    """Judges one run.

    Args:
        swarm: what was drawn.
        history: what clients saw.
        stored: all messages that are in the log in the end, in its order.
        arrivals: when each entry of a queue became readable, by topic, queue and offset.
        fails: whether a message is one that fails by itself: it may come late, or be quarantined.
    """

    def __init__(
        self,
        swarm: Swarm,
        history: History,
        stored: list[StoredMessage],
        arrivals: Mapping[tuple[str, int, int], float],
        fails: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._fails = fails
        self._swarm = swarm
        self._history = history
        self._stored = stored
        self._arrivals = arrivals
        self._verdict = Verdict()
        self._sent_twice = "bad ways" in swarm.faults
        """Whether the proxy may have sent a message a second time."""
        self._is_one_proxy = True
        """True if there is one proxy, which sees all calls of a client."""
        self._originals: dict[str, list[StoredMessage]] = defaultdict(list)
        self._dead: dict[Key, list[StoredMessage]] = defaultdict(list)
        for each in stored:
            if each.topic == TOPIC or GROUP in each.topic:
                continue  # `PassingTopic` looks after those
            if lite.TOPIC in each.topic or lite.GROUP in each.topic:
                continue  # likewise (`tests.sim.lite`)
            if guests.is_own(each.topic) or passing_group.is_own(each.topic):
                continue  # `Guests` and `PassingGroup` after those
            if each.topic == transactions.TOPIC or transactions.GROUP in each.topic:
                continue  # and `Pledges` after those
            if each.topic.startswith(names.DEAD_LETTER_PREFIX):
                self._dead[each.topic.removeprefix(names.DEAD_LETTER_PREFIX), each.message_id].append(each)
            elif not each.topic.startswith(names.RETRY_PREFIX):
                self._originals[each.message_id].append(each)
        self._deliveries: dict[Key, list[Delivery]] = defaultdict(list)
        for delivery in history.deliveries:
            self._deliveries[delivery.group, delivery.message_id].append(delivery)
        for key, deliveries in self._deliveries.items():
            self._deliveries[key] = _of_handles(deliveries)
        self._arrived: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for message_id, copies in self._originals.items():
            place = (copies[0].topic, copies[0].queue_id, copies[0].offset)
            if place in arrivals and message_id in history.sent:
                self._arrived[copies[0].topic].append((arrivals[place], message_id))
        self._most_ahead: dict[tuple[str, int], int] = {}
        self._least_ahead: dict[tuple[str, int], int] = {}
        """By a life of a broker, by how many milliseconds its clock is at most, and at least, ahead of ours."""
        self._ended: dict[Key, list[Ending]] = defaultdict(list)
        for ending in history.settlings:
            self._ended[ending.delivery.group, ending.delivery.message_id].append(ending)

    def judge(self) -> Verdict:
        """Check everything."""
        self._check_sends()
        self._check_places()
        self._check_conservation()
        self._check_wanted()
        self._check_overlaps()
        self._check_acks()
        self._check_attempts()
        self._check_handles()
        self._check_numbers()
        self._check_order()
        self._check_polls()
        return self._verdict

    def _check_sends(self) -> None:
        """S1, S2: what was acknowledged is there, what was refused is not, and there is nothing else. E1, of names."""
        verdict = self._verdict
        for call in self._history.let_in:
            verdict.broke("E1", call)
        for message_id, sent in self._history.sent.items():
            copies = self._originals.get(message_id, [])
            # A refusal may be that of a second try, whose first one was stored.
            if sent.outcome == "refused" and copies and not self._sent_twice:
                verdict.broke("S2", f"{message_id} was refused ({sent.said}) and is stored at {copies[0].place}")
            if sent.outcome == "unknown" and copies:
                verdict.recovered.append(message_id)
            if sent.outcome == "ok":
                self._check_acknowledged(message_id, sent, copies)
            for copy in copies:
                if not copy.is_as_sent(sent.message):
                    verdict.broke("S1", f"{message_id} is stored at {copy.place} with other bytes than were sent")
        for message_id in self._originals.keys() - self._history.sent.keys():
            verdict.broke("S2", f"{message_id} is stored and nobody sent it")
        for unexpected in self._history.unexpected:
            verdict.unexpected.append(unexpected)
            verdict.broke("S2", unexpected)

    def _check_acknowledged(self, message_id: str, sent: Sent, copies: list[StoredMessage]) -> None:
        verdict = self._verdict
        if sent.due_ms:
            return  # `Timers` looks after those
        if not any(copy.offset == sent.offset for copy in copies):
            disaster = self._history.lost_by(sent.began_s, sent.position)
            if self._swarm.is_lossy and disaster is not None and not copies:
                verdict.excused.append(message_id)
                age_s = disaster.ran_s(sent.ended_s)
                if age_s > loss_s_max(self._swarm) and "slow device" not in self._swarm.faults:
                    verdict.broke(
                        "S1",
                        f"{message_id} was lost {age_s:.3f} s after it was acknowledged; flush=async allows for "
                        f"{loss_s_max(self._swarm):.3f} s",
                    )
            else:
                verdict.lost.append(message_id)
                verdict.broke(
                    "S1",
                    f"{message_id} was acknowledged at offset {sent.offset} at {sent.ended_s:.6f}, "
                    f"it is stored at {[copy.place for copy in copies] or 'no place'}",
                )
        elif len(copies) > 1 and not self._sent_twice:
            verdict.broke("S1", f"{message_id} is stored twice: {[copy.place for copy in copies]}")

    def _check_places(self) -> None:
        """S3: a place names one message, now and before."""
        at: dict[tuple[str, int, int], tuple[str, float, int]] = {}
        for each in self._stored:
            at[each.topic, each.queue_id, each.offset] = (each.message_id, 1e9, 0)
        for delivery in sorted(self._history.deliveries, key=lambda each: -each.got_s):
            topic = names.retry_topic(delivery.group, delivery.topic) if delivery.handle.from_retry else delivery.topic
            place = (topic, delivery.handle.queue_id, delivery.handle.offset)
            known = at.setdefault(place, (delivery.message_id, delivery.got_s, delivery.position))
            if known[0] == delivery.message_id:
                continue
            # Since it was asked for: it may have been under way when its broker's power went.
            if self._swarm.is_lossy and self._history.lost_by(delivery.asked_s, delivery.position):
                continue
            self._verdict.broke("S3", f"{place} was {delivery.message_id} at {delivery.got_s:.6f} and is {known[0]}")

    def _check_conservation(self) -> None:
        """P1: in the end every message that a group wants was acknowledged by it, is a dead letter or quarantined."""
        for message_id, copies in self._originals.items():
            sent = self._history.sent.get(message_id)
            if sent is None:
                continue
            for subscription in self._swarm.subscriptions:
                if subscription.topic == sent.message.topic.name and subscription.wants(sent.message):
                    self._check_conserved(subscription, message_id, len(copies))

    def _check_wanted(self) -> None:
        """S2: a group gets what it asked for only; what fails by itself as it is looked at may come, too."""
        of = {(each.group, each.topic): each for each in self._swarm.subscriptions}
        for delivery in self._history.deliveries:
            subscription = of.get((delivery.group, delivery.topic))
            sent = self._history.sent.get(delivery.message_id)
            if subscription is None or sent is None or self._fails(delivery.message_id):
                continue
            if not subscription.wants(sent.message):
                self._verdict.broke(
                    "S2",
                    f"{delivery.message_id} came to {delivery.group} at {delivery.got_s:.6f}, which asked for "
                    f"{subscription.condition or subscription.tags}",
                )

    def _check_conserved(self, subscription: Subscription, message_id: str, copies: int) -> None:
        key = (subscription.group, message_id)
        settled = self._ended[key]
        acked = sum(each.kind == "ack" and each.outcome != "refused" for each in settled)
        dead = len(self._dead[key])
        is_dropped = self._swarm.expired == DROP and self._may_expire(message_id)
        if not acked and not dead and not is_dropped and key not in self._history.set_aside:
            self._verdict.lost.append(message_id)
            self._verdict.broke(
                "P1",
                f"{message_id} is stored, and {subscription.group} has not acknowledged it, it is no dead letter, "
                f"it was delivered {len(self._deliveries[key])} times",
            )
        if dead > copies:
            self._verdict.broke("P1", f"{message_id} is {dead} dead letters of {subscription.group}")

    def _check_overlaps(self) -> None:
        """P2: no two consumers hold one message at one time."""
        self._bound_lives()
        for key, deliveries in self._deliveries.items():
            if len(self._originals.get(key[1], ())) > 1:
                continue
            for earlier, later in itertools.pairwise(deliveries):
                is_one_life = earlier.handle.life == later.handle.life
                open_until = self._open_until(key, earlier, later, is_one_life)
                popped = later.handle.pop_ms - (0 if is_one_life else self._least_ahead[later.handle.life])
                if popped < open_until and not self._may_have_ended(earlier, later):
                    self._verdict.broke(
                        "P2",
                        f"{key[1]} was given to {key[0]} at {earlier.got_s:.6f} until {open_until} and again at "
                        f"{later.got_s:.6f}, popped at {popped}",
                    )

    def _bound_lives(self) -> None:
        """Find out how far ahead of the simulator's the clocks were by which brokers hid messages, life by life."""
        for delivery in self._history.deliveries:
            handle = delivery.handle
            asked, got = (handle.pop_ms - int(when * 1000) for when in (delivery.asked_s, delivery.got_s))
            if delivery.group != ORDERED_GROUP:  # a second try is given what was popped before it was asked for
                self._most_ahead[handle.life] = min(asked, self._most_ahead.get(handle.life, asked))
            self._least_ahead[handle.life] = max(got - 1, self._least_ahead.get(handle.life, got - 1))

    def _open_until(self, key: Key, delivery: Delivery, later: Delivery, is_one_life: bool) -> int:
        """Until when, in milliseconds, a delivery hides its message from the others.

        Its handle may be good again once a disaster has taken a later delivery: until then it was not.

        Args:
            key: of the message.
            delivery: the delivery.
            later: the next one.
            is_one_life: whether both are of one life of the broker, and its clock is to be told; else the time of the
                simulator, as the next life's clock goes on where the log leaves off, which may be some time before.
        """
        if delivery.vanished:
            return 0

        def end(handle: Handle, invisible_ms: int) -> int:
            """As early as it can have been meant."""
            ahead = 0 if is_one_life else self._most_ahead.get(handle.life, handle.pop_ms)
            return handle.pop_ms + invisible_ms - ahead

        is_lost = self._history.lost_by(later.asked_s, later.position) is not None
        until = end(delivery.handle, delivery.handle.invisible_ms)
        if delivery.renewed:  # its proxy releases it when its client has gone
            gone_s = self._history.gone_s(delivery.client, delivery.got_s, is_one_proxy=self._is_one_proxy)
            until = min(until, end(delivery.handle, int((gone_s - delivery.got_s) * 1000)))
        for ending in self._ended[key]:
            if is_lost and ending.began_s > later.got_s:
                continue
            if ending.delivery is delivery and ending.outcome != "refused" and ending.kind != "forged":
                if ending.outcome == "ok" and ending.kind == "change":
                    until = end(Handle.read(ending.new_receipt), ending.invisible_ms)
                elif ending.outcome == "unknown":
                    return 0
        if is_one_life:
            until = max(until, self._renewed_until(key, delivery, later.got_s if is_lost else math.inf))
        return until

    def _renewed_until(self, key: Key, delivery: Delivery, before_s: float) -> int:
        """Until when a delivery was renewed, by its broker's clock; 0 if its consumer had a word on it, too.

        Args:
            key: of the message.
            delivery: the delivery.
            before_s: renewals that began later are none.
        """
        if any(each.delivery is delivery and each.kind != "forged" for each in self._ended[key]):
            return 0
        pop_ms, got_s = delivery.handle.pop_ms, delivery.got_s
        return max(
            (
                pop_ms + int((each.began_s - got_s) * 1000) + each.invisible_ms
                for each in self._history.renewals
                if each.delivery is delivery and each.began_s <= before_s
            ),
            default=0,
        )

    def _may_have_ended(self, earlier: Delivery, later: Delivery) -> bool:
        """Whether a disaster may have undone the pop, or what was said of it since."""
        return self._history.disaster_between(earlier.asked_s, later.got_s) and any(
            disaster.synced_position < later.position
            for disaster in self._history.disasters
            if earlier.asked_s <= disaster.time_s <= later.got_s
        )

    def _check_acks(self) -> None:
        """P3: what was acknowledged does not come again, unless a disaster took the acknowledgement."""
        for key, settled in self._ended.items():
            if len(self._originals.get(key[1], ())) > 1:
                continue
            for ending in settled:
                if ending.kind not in ("ack", "forward") or ending.outcome != "ok":
                    continue
                pop = Handle.read(ending.receipt).delivery
                for delivery in self._deliveries[key]:
                    # A later delivery that came before this ack may have been undone by a disaster since.
                    came_after = delivery.handle.delivery > pop and delivery.got_s > ending.began_s
                    if self._may_come_again(key, ending, delivery):
                        continue
                    if came_after and not self._history.lost_by(ending.began_s, ending.position):
                        self._verdict.duplicated.append(key[1])
                        self._verdict.broke(
                            "P3",
                            f"{key[1]} was done with by {key[0]} ({ending.kind}) at {ending.ended_s:.6f} and came "
                            f"again at {delivery.got_s:.6f}",
                        )

    def _may_come_again(self, key: Key, ending: Ending, delivery: Delivery) -> bool:
        """Whether an operator may have had a message come again that a group was done with."""
        return False

    def _check_attempts(self) -> None:
        """P5: attempts count up to the group's limit, and only then is a message dead."""
        for key, deliveries in self._deliveries.items():
            limit = self._swarm.groups[key[0]]
            single = len(self._originals.get(key[1], ())) <= 1
            for earlier, later in itertools.pairwise(deliveries):
                # What fails by itself may be released by an operator, and what was not received whole may not count.
                least = earlier.attempt + (not earlier.vanished and not self._fails(key[1]))
                if single and later.attempt < least and not self._may_have_ended(earlier, later):
                    self._verdict.broke("P5", f"{key[1]} came to {key[0]} as {earlier.attempt}, then {later.attempt}")
            for delivery in deliveries:
                if delivery.attempt > limit:
                    self._verdict.broke("P5", f"{key[1]} came to {key[0]} as {delivery.attempt} of {limit}")
        retried = {
            (each.group_of_retry, each.message_id, each.attempts)
            for each in self._stored
            if each.topic.startswith(names.RETRY_PREFIX)
        }
        for key, dead in self._dead.items():
            asked = any(each.kind == "forward" and each.outcome != "refused" for each in self._ended[key])
            limit = self._swarm.groups[key[0]]
            # What an ordered group has is in no retry topic; unit tests count its attempts.
            is_retried = key[0] == ORDERED_GROUP or (*key, limit - 1) in retried
            if dead and not asked and limit > 1 and not is_retried and not self._may_expire(key[1]):
                self._verdict.broke("P5", f"{key[1]} is a dead letter of {key[0]} before attempt {limit}")

    def _may_expire(self, message_id: str) -> bool:
        sent = self._history.sent.get(message_id)
        return sent is not None and may_expire(sent.message)

    def _check_order(self) -> None:
        """P6: the messages of a message group are stored as they were sent, and come to an ordered group like that."""
        for line, stored in lines_of(self._history, self._originals).items():
            found = overtaken(stored, self._history, self._deliveries, self._dead, self._ended, self._may_come_late)
            for sentence in (*misplaced(line, stored), *found):
                self._verdict.broke("P6", sentence)
        for sentence in shuffled(self._history, self._originals):
            self._verdict.broke("P6", sentence)

    def _may_come_late(self, message_id: str) -> bool:
        return self._fails(message_id) or (ORDERED_GROUP, message_id) in self._history.set_aside

    def _check_handles(self) -> None:
        """P7: of several handles of a message only the newest is good; none that was made up."""
        for key, settled in self._ended.items():
            for ending in settled:
                if ending.kind == "forged" and ending.outcome == "ok":
                    self._verdict.broke("P7", f"a forged handle of {key[1]} was taken")
            for ended, later in _pairs(settled):
                if ended.outcome == "ok" and later.receipt == ended.receipt and later.outcome == "ok":
                    if ended.kind == "forged" or self._history.lost_by(ended.began_s, ended.position):
                        continue
                    self._verdict.broke(
                        "P7",
                        f"{key[1]}: the handle was good for {ended.kind} at {ended.ended_s:.6f} and again for "
                        f"{later.kind} at {later.ended_s:.6f}",
                    )

    def _check_numbers(self) -> None:
        """P7: a handle's number names one pop of one queue, also if all of that pop was lost: it may be shown again."""
        pops: dict[tuple[str, int], tuple[Delivery, tuple[object, ...]]] = {}
        for delivery in self._history.deliveries:
            handle = delivery.handle
            pop = (delivery.group, delivery.topic, handle.from_retry, handle.queue_id, handle.pop_ms)
            before, known = pops.setdefault((handle.broker, handle.delivery), (delivery, pop))
            if known != pop:
                self._verdict.broke(
                    "P7",
                    f"pop {handle.delivery} gave {before.message_id} to {before.group} at {before.got_s:.6f}, and "
                    f"another one of that number {delivery.message_id} to {delivery.group} at {delivery.got_s:.6f}",
                )

    def _check_polls(self) -> None:
        """L1: no poll outlives its deadline, and none ends empty-handed beside a message that it could have had."""
        for polled in self._history.polls:
            if polled.ended_s > polled.deadline_s + _POLL_GRACE_S:
                self._verdict.broke("L1", f"{polled.client}'s poll of {polled.began_s:.6f} outlived its deadline")
            if polled.code == Code.TOO_MANY_REQUESTS and self._swarm.hoarder not in ("", polled.group):
                self._check_refused(polled)
            if polled.code != Code.MESSAGE_NOT_FOUND or self._in_trouble(polled):
                continue
            took_s = polled.ended_s - polled.began_s
            if took_s > polled.wait_s + _SLOW_S:
                self._verdict.broke(
                    "L1",
                    f"{polled.client}'s empty poll of {polled.began_s:.6f} took {took_s:.3f} s, not {polled.wait_s}",
                )
            if took_s > _SLOW_S:
                self._check_overlooked(polled)

    def _check_refused(self, polled: Polled) -> None:
        """L1: while another group hoards, this one is not refused what is left to it: an eighth of all, at the least.

        The hoarder may have a half, and the group of the passing topic half of the rest. What was given in an answer
        that was lost is held, too, and not seen here.
        """
        if self._in_trouble(polled, _HIDDEN_S_MAX) or self._sent_twice:
            return
        given = [each for each in self._history.deliveries if each.group == polled.group]
        held = sum(each.asked_s <= polled.ended_s and not self._was_done(each, polled.began_s) for each in given)
        limit = self._swarm.options.broker.pop.open_messages_max
        if held < limit // 8 - 1:
            self._verdict.broke(
                "L1",
                f"{polled.client}'s poll of {polled.began_s:.6f} was refused, though {polled.group} held {held} of "
                f"{limit} messages at the most",
            )

    def _was_done(self, delivery: Delivery, time_s: float) -> bool:
        """Whether a delivery counted no more at a time, for certain: it was acknowledged, or its time was over."""
        settled = self._ended[delivery.group, delivery.message_id]
        ours = [each for each in settled if each.delivery is delivery]
        if any(each.kind == "ack" and each.outcome == "ok" and each.ended_s < time_s for each in ours):
            return True
        is_as_given = not delivery.renewed and not any(each.kind == "change" for each in ours)
        return is_as_given and delivery.got_s + delivery.handle.invisible_ms / 1000 + _SLOW_S < time_s

    def _had_no_room(self, polled: Polled) -> bool:
        """Return whether a poll's group was refused more while the poll waited."""
        return any(
            each.code == Code.TOO_MANY_REQUESTS
            and each.group == polled.group
            and polled.began_s < each.ended_s < polled.ended_s
            for each in self._history.polls
        )

    def _check_overlooked(self, polled: Polled) -> None:
        subscription = Subscription(polled.group, polled.topic, polled.tags, polled.condition)
        if any(manners.vanish or manners.tries for manners in self._swarm.manners[subscription]):
            return  # what one that has vanished was given is hidden from the others
        if self._swarm.hoarder and self._had_no_room(polled):
            return  # what room there was went to others of its group
        for arrived_s, message_id in self._arrived[polled.topic]:
            if not polled.began_s < arrived_s < polled.ended_s - _SLOW_S:
                continue
            if not subscription.wants(self._history.sent[message_id].message) or self._fails(message_id):
                continue
            if self._may_expire(message_id):
                continue
            deliveries = self._deliveries[polled.group, message_id]
            if polled.group == ORDERED_GROUP and not self._is_first(message_id, polled.began_s):
                continue
            if not any(each.got_s <= polled.ended_s for each in deliveries):
                self._verdict.broke(
                    "L1",
                    f"{polled.client} polled from {polled.began_s:.6f} to {polled.ended_s:.6f} and did not get "
                    f"{message_id}, which was there from {arrived_s:.6f} on",
                )

    def _is_first(self, message_id: str, time_s: float) -> bool:
        """Whether an ordered group was done with all before a message, for certain, and whatever waits could be read.

        Where few messages may be held, a message may have to wait for those of other message groups.
        """
        if self._swarm.options.broker.pop.held_messages_max < len(self._history.sent) * 4:
            return False
        message_group = self._history.sent[message_id].message.system_properties.message_group
        for copy, _ in lines_of(self._history, self._originals)[message_group]:
            if copy.message_id == message_id:
                return True
            if not any(
                each.kind in ("ack", "forward") and each.outcome == "ok" and each.ended_s < time_s
                for each in self._ended[ORDERED_GROUP, copy.message_id]
            ):
                return False
        return True

    def _in_trouble(self, polled: Polled, since_s: float = 0.0) -> bool:
        began_s = polled.began_s - since_s
        return any(begin <= polled.ended_s and end >= began_s for begin, end in self._history.troubles)


def loss_s_max(swarm: Swarm) -> float:
    """For how long a process may have run with an acknowledged send that a disaster takes with flush=async."""
    own_s = swarm.options.broker.flush_interval_ms / 1000 + _SYNCS_AT_ONCE * swarm.sync_s_max + swarm.down_s_max
    return own_s + swarm.deposed_s_max


def _of_handles(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Deliveries by their handles, the oldest first. Of several tries of one receive the one that its client has."""
    by_receipt: dict[str, Delivery] = {}
    for delivery in deliveries:
        known = by_receipt.setdefault(delivery.receipt, delivery)
        if known.vanished:
            by_receipt[delivery.receipt] = delivery
    return sorted(by_receipt.values(), key=lambda each: each.handle.delivery)


def _pairs(settled: list[Ending]) -> Iterable[tuple[Ending, Ending]]:
    """Each one with each that began after it had ended."""
    ordered = sorted(settled, key=lambda each: each.ended_s)
    for index, earlier in enumerate(ordered):
        for later in ordered[index + 1 :]:
            if later.began_s >= earlier.ended_s:
                yield earlier, later
