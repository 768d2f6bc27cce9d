"""A group that is paused, resumed and deleted by hand while its consumers poll, and made again (P3, P4, P7)."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

from popwheel_broker.core.core import BrokerCore
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.sim.admin import Admin
from tests.sim.consumers import Consumer, Manners, Subscription
from tests.sim.history import Delivery, History
from tests.sim.producers import Producer, SoundProducer
from tests.sim.tools import Tools
from tests.sim.workload import OwnTopic, Workload

NAME = "group comes and goes"
TOPIC = "parting"
GROUP = "parters"
TYPE = TopicType.NORMAL
ATTEMPTS_MAX = 1000

_SHARE = 0.2
_RATE = 3.0
_LAST_TRIES = 40
_PAUSED, _RESUMED = 0.6, 0.7
"""Of lives of the group those in which it is paused, and of these those in which it is resumed before its end."""
_INF = float("inf")
_SLACK_S = 1.0
"""The longest time after a deletion in which a proxy or a broker may not know of it."""


def is_on(seed: int, only: tuple[str, ...] | None) -> bool:
    """Return whether a seed has the workload."""
    return random.Random(f"{seed}/passing group").random() < _SHARE if only is None else NAME in only


def is_own(topic: str) -> bool:
    """Return whether a topic's messages are looked after here."""
    return topic == TOPIC or GROUP in topic


class PassingGroup(Workload):
    """Makes and deletes the group, over and over, while two consumers poll.

    Args:
        tools: what clients share; its history is not touched.
        chance: its random source.
        admin: makes the group, pauses it and deletes it.
        cores: the state of each broker; of those that do not run, none.
        fails: whether a message of an id fails by itself: this one sends none of those.
        pauses: the random source of pauses; None: it is never paused.
    """

    def __init__(
        self,
        tools: Tools,
        chance: random.Random,
        admin: Admin,
        cores: Callable[[], list[BrokerCore]],
        fails: Callable[[str], bool] = lambda _: False,
        pauses: random.Random | None = None,
    ) -> None:
        self.topics = {TOPIC: OwnTopic(TYPE)}
        self.history = History()
        self._chance = chance
        self._admin = admin
        self._cores = cores
        self._pauses = pauses
        self._paused: list[tuple[float, float, float]] = []
        """The times when a pause began and was answered, and when the group was to be resumed or deleted."""
        self._tools = ours = Tools(tools.network, self.history, tools.trace, tools.loop, tools.log_end)
        self._producer = SoundProducer("gq", ours, chance, TOPIC, _RATE, fails)
        manners = Manners(batch_max=4, invisible_ms=(500, 3000), wait_s=(0.0, 1.0), think_s_max=0.3, forget=0.3)
        of = Subscription(GROUP, TOPIC)
        self._consumers = [Consumer(f"cg{number}", ours, chance, of, manners) for number in range(2)]
        self._tries: list[tuple[float, float]] = []
        """The times when the group was to be deleted, and from when on that was so, if it was."""
        self._gone: list[tuple[float, float, float]] = []
        """The times when a deletion began and was answered, and when the group was to be made again."""

    async def run(self) -> None:
        """Run until it is to stop; the group is gone then."""
        chance, loop, tools = self._chance, asyncio.get_running_loop(), self._tools
        clients: list[Producer | Consumer] = [self._producer, *self._consumers]
        working = [loop.create_task(each.run()) for each in clients]
        while not self.stopping:
            await self._admin.ensure_group(GROUP, ATTEMPTS_MAX)
            await asyncio.sleep(chance.uniform(0.3, 3.0))
            if self._pauses is not None and self._pauses.random() < _PAUSED:
                await self._pause_for_a_while(self._pauses)
            await self._part()
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            if self._gone and self._gone[-1][2] == _INF:
                self._gone[-1] = (*self._gone[-1][:2], tools.now())
        for each in clients:
            each.stopping = True
        await asyncio.wait(working)
        for task in working:
            task.result()
        for _ in range(_LAST_TRIES):
            if await self._part_in_sight():
                return
            await asyncio.sleep(0.5)

    async def _pause_for_a_while(self, chance: random.Random) -> None:
        """Pause the group, and resume it unless its deletion is to end the pause."""
        began_s = self._tools.now()
        is_paused = await self._admin.pause_group(GROUP, paused=True)
        answered_s = self._tools.now()
        self._tools.trace.add(GROUP, "paused" if is_paused else "may be paused")
        await asyncio.sleep(chance.uniform(1.0, 4.0))
        if is_paused:
            self._paused.append((began_s, answered_s, self._tools.now()))
        if chance.random() < _RESUMED:
            is_resumed = await self._admin.pause_group(GROUP, paused=False)
            self._tools.trace.add(GROUP, "resumed" if is_resumed else "may be resumed")
            await asyncio.sleep(chance.uniform(0.3, 2.0))

    async def _part_in_sight(self) -> bool:
        """Make the group and delete it while all brokers watch: one that was away for a deletion keeps the group until
        it is made again.
        """
        await self._admin.ensure_group(GROUP, ATTEMPTS_MAX)
        await asyncio.sleep(_SLACK_S)
        watching = self._cores()
        know = watching and all(each.topic_registry.knows_group(GROUP) for each in watching)
        is_deleted = await self._part()
        await asyncio.sleep(_SLACK_S)
        return bool(know) and is_deleted and [*map(id, watching)] == [*map(id, self._cores())]

    async def _part(self) -> bool:
        began_s = self._tools.now()
        is_deleted = await self._admin.delete_group(GROUP)
        self._tools.trace.add(GROUP, "deleted" if is_deleted else "may be deleted")
        self._tries.append((began_s, self._tools.now() + _SLACK_S if is_deleted else _INF))
        if is_deleted:
            self._gone.append((began_s, self._tools.now(), _INF))
        return is_deleted

    def left(self, core: BrokerCore) -> str:
        """Return what a broker has not done yet, in words."""
        return f"{GROUP} is there" if core.topic_registry.knows_group(GROUP) else ""

    def judge(self, disasters: History, is_calm: Callable[[float, float], bool]) -> list[str]:
        """Find what came to the group while it was gone, or was taken from it by handles of before.

        Args:
            disasters: the history that has them.
            is_calm: whether nothing was wrong from one time to another, in virtual seconds.
        """
        broken = [f"S2: {each}" for each in self.history.unexpected]
        for began_s, ended_s, again_s in self._gone:
            for delivery in self.history.deliveries:
                is_between = ended_s + _SLACK_S < delivery.asked_s and delivery.got_s < again_s
                if is_between and is_calm(began_s, delivery.got_s):
                    broken.append(
                        f"P4: {delivery.message_id} came at {delivery.got_s:.6f} to {GROUP}, which was deleted at "
                        f"{ended_s:.6f}"
                    )
            for ending in self.history.settlings:
                is_of_before = ending.delivery.got_s < began_s and ending.began_s > ended_s + _SLACK_S
                if is_of_before and ending.outcome == "ok" and is_calm(began_s, ending.ended_s):
                    broken.append(
                        f"P7: {ending.kind} of {ending.delivery.message_id} at {ending.began_s:.6f} was taken, "
                        f"though {GROUP} was deleted at {ended_s:.6f}, since it was given out"
                    )
        for began_s, answered_s, resumed_s in self._paused:
            for delivery in self.history.deliveries:
                is_paused = answered_s < delivery.asked_s and delivery.got_s < resumed_s
                if is_paused and is_calm(began_s, delivery.got_s):
                    broken.append(
                        f"P4: {delivery.message_id} came at {delivery.got_s:.6f} to {GROUP}, which was paused at "
                        f"{answered_s:.6f}"
                    )
        broken += self._came_again(disasters, is_calm)
        return broken

    def _came_again(self, disasters: History, is_calm: Callable[[float, float], bool]) -> list[str]:
        """P3, while the group is one and the same: a broker may learn late of its end where something is wrong."""
        broken = []
        deliveries: defaultdict[str, list[Delivery]] = defaultdict(list)
        for delivery in self.history.deliveries:
            deliveries[delivery.message_id].append(delivery)
        for ending in self.history.settlings:
            if (ending.kind, ending.outcome) != ("ack", "ok"):
                continue
            late = [began_s for began_s, ended_s in self._tries if ended_s > ending.began_s]
            late += [began_s for began_s, _ in self._tries if not is_calm(began_s, ending.ended_s)]
            gone_s = min(late, default=_INF)
            pop = ending.delivery.handle
            for delivery in deliveries[ending.delivery.message_id]:
                handle = delivery.handle
                is_later = handle.delivery > pop.delivery and delivery.got_s > ending.began_s
                is_same = handle.broker == pop.broker and delivery.got_s < gone_s
                if is_later and is_same and not self._lost(disasters, ending.began_s):
                    broken.append(
                        f"P3: {delivery.message_id} was acknowledged by {GROUP} at {ending.ended_s:.6f} and came at "
                        f"{delivery.got_s:.6f}"
                    )
        return broken

    def _lost(self, disasters: History, since_s: float) -> bool:
        return any(each.time_s >= since_s for each in disasters.disasters)
