"""A topic whose queues are levels, and a group that gets the highest first (P8), in some of the seeds.

Each pop of a broker is watched: what of each level it could have delivered, and what it took. The store times that tell
what was overdue are read from the log in the end.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from unittest.mock import patch

from popwheel_broker.calls.server import BrokerServer
from popwheel_broker.consume.pops import Pops
from popwheel_broker.log.consume_queue import ConsumeQueue
from popwheel_common.contract import names
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.priority import level_of
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from tests.sim.history import History
from tests.sim.producers import Producer
from tests.sim.stored import StoredMessage
from tests.sim.swarm import PRIORITY_TOPIC
from tests.sim.tools import Tools

_PRIORITIES = (0, 1, 2, 2, 2, 5, 2**31 - 1)
_RATE = 10.0
_BATCH_MAX = 6


class PriorityProducer(Producer):
    """Sends messages of several priorities, some without any.

    Args:
        name: of the client.
        tools: what clients share.
        chance: its random source.
        body_bytes_max: size of a body.
    """

    def __init__(self, name: str, tools: Tools, chance: random.Random, body_bytes_max: int = 300) -> None:
        super().__init__(name, tools, chance, [PRIORITY_TOPIC], (), _RATE, _BATCH_MAX, body_bytes_max)

    def message(self, topic: str) -> d.Message:
        """A new message."""
        message = super().message(topic)
        if self._chance.random() < 0.9:
            message.system_properties.message_type = d.MessageType.PRIORITY
            message.system_properties.priority = self._chance.choice(_PRIORITIES)
        return message


class Level(NamedTuple):
    """What a pop found of a level, or of its retries, and what it took.

    Args:
        number: the higher, the earlier.
        topic: where its messages are.
        begin, end, found: offsets: where the group was, where it is after the pop, where the queue ended.
        stands_still: whether nothing of it could be delivered, as a record is damaged.
    """

    number: int
    topic: str
    begin: int
    end: int
    found: int
    stands_still: bool

    @property
    def could_give(self) -> bool:
        """Whether a pop could have had something of it."""
        return self.begin < self.found and not self.stands_still

    @property
    def gave(self) -> bool:
        """Whether it had."""
        return self.end > self.begin

    @property
    def has_more(self) -> bool:
        """Whether something was left that it could have had."""
        return self.end < self.found and not self.stands_still


@dataclass(frozen=True, slots=True)
class LevelPop:
    """One pop.

    Args:
        time_s: when.
        wall_ms: likewise, by the broker's clock.
        position: where its log ended then.
        broker: which it was, in which life or term.
        levels: all levels.
    """

    time_s: float
    wall_ms: int
    position: int
    broker: Pops
    levels: tuple[Level, ...]


class PriorityWatch:
    """Watches all brokers of a run.

    Args:
        now: the simulator's time.
        wait_ms: what has waited for longer is overdue.
        levels: of the topic.
    """

    def __init__(self, now: Callable[[], float], wait_ms: int, levels: int) -> None:
        self._now = now
        self._wait_ms = wait_ms
        self._levels = levels
        self._pops: dict[tuple[str, str], list[LevelPop]] = defaultdict(list)
        """By broker's name and group."""

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch while the run lasts."""
        pop = BrokerServer._pop_once

        def watched(server: BrokerServer, request: PopRequest, turn: int) -> PopAnswer:
            if request.topic != PRIORITY_TOPIC:
                return pop(server, request, turn)
            broker = server._core.pops
            server._core.cluster_changes.apply((request.topic,), (request.group,))
            before = dict(_next_offsets(broker, request.group))
            found = {queue: queue.max_offset for queue in before}
            answer = pop(server, request, turn)
            after = dict(_next_offsets(broker, request.group))
            levels = tuple(
                Level(queue.queue_id, queue.topic, at, after.get(queue, at), found[queue], broker.stands_still(queue))
                for queue, at in before.items()
            )
            end, clock = broker._store.log.end_position, broker.priorities._clock
            self._pops[broker._broker_name, request.group].append(
                LevelPop(self._now(), clock.wall_ms(), end, broker, levels)
            )
            return answer

        with patch.object(BrokerServer, "_pop_once", watched):
            yield

    def violations(self, stored: Sequence[StoredMessage], history: History) -> list[str]:
        """Hold all pops against P8.

        Args:
            stored: all messages in the log in the end.
            history: which disasters there were: of what one of them took nobody knows when it was stored.
        """
        ours = [each for each in stored if PRIORITY_TOPIC in (each.topic, names.topic_of_retry_topic(each.topic))]
        times = {(each.topic, each.queue_id, each.offset): each.record.store_time_ms for each in ours}
        broken = [f"P8: {each}" for each in self._misplaced(ours)]
        for (_, group), pops in self._pops.items():
            last: LevelPop | None = None
            late = early = 0
            for pop in pops:
                if history.lost_by(pop.time_s, pop.position) or (last is not None and last.broker is not pop.broker):
                    late = early = 0
                last = pop
                if history.lost_by(pop.time_s, pop.position) or not any(each.gave for each in pop.levels):
                    continue
                at = f"the pop of {group} at {pop.time_s:.6f}"
                broken += [f"P8: {at} {each}" for each in self._out_of_order(pop, times)]
                late, early = self._shares(pop, times, late, early)
                if late > 1:
                    broken.append(f"P8: {at} and the one before it gave nothing of what is overdue")
                if early > 1:
                    broken.append(f"P8: {at} and the one before it gave nothing of the highest level")
        return broken

    def _misplaced(self, stored: Sequence[StoredMessage]) -> Iterator[str]:
        for each in stored:
            properties = SystemProperties.FromString(each.record.system_properties)
            if each.queue_id != level_of(properties.priority, self._levels):
                yield f"{each.message_id} of priority {properties.priority} is at {each.place}"

    def _out_of_order(self, pop: LevelPop, times: dict[tuple[str, int, int], int]) -> Iterator[str]:
        """Where a message came while a higher one was left, and was not overdue."""
        for level in pop.levels:
            fresh = [
                offset
                for offset in range(level.begin, level.end)
                if times.get((level.topic, level.number, offset), 0) >= pop.wall_ms - self._wait_ms
            ]
            if fresh and any(each.number > level.number and each.has_more for each in pop.levels):
                yield f"gave {level.topic}/{level.number}@{fresh[0]} before higher ones: {pop.levels}"

    def _shares(self, pop: LevelPop, times: dict[tuple[str, int, int], int], late: int, early: int) -> tuple[int, int]:
        """How many pops in a row gave nothing of what was overdue for the longest time, and of the highest level."""
        could = [each for each in pop.levels if each.could_give]
        highest = max((each.number for each in could), default=0)
        since = [
            (times.get((each.topic, each.number, each.begin), 1 << 62), each) for each in could if each.number < highest
        ]
        overdue = [(time_ms, each) for time_ms, each in since if time_ms < pop.wall_ms - self._wait_ms]
        if not overdue:
            return 0, 0
        oldest_ms = min(time_ms for time_ms, _ in overdue)
        is_late = not any(each.gave for time_ms, each in overdue if time_ms == oldest_ms)
        is_early = not any(each.gave for each in could if each.number == highest)
        return late + 1 if is_late else 0, early + 1 if is_early else 0


def _next_offsets(broker: Pops, group: str) -> Iterator[tuple[ConsumeQueue, int]]:
    """Where a group reads on in each level, and in its retries; nothing is read for it."""
    queues = broker._store.queues
    for topic in (PRIORITY_TOPIC, names.stored_retry_topic(group, PRIORITY_TOPIC)):
        for queue in queues.of_topic(topic):
            progress = broker._state.merge_buffer.of(group, queue)
            yield queue, max(progress.popped, progress.committed, queue.known_min_offset)
