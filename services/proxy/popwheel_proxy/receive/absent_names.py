"""Parking of polls for topics and groups that do not exist.

So consumers do not poll in a tight loop after a deletion: some clients poll again at once after any refusal.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic

_TOGETHER_MAX = 50
"""Polls that are woken in one turn of the loop, of all names: each pops at once."""


class AbsentName(NamedTuple):
    """A topic or group that is not there.

    Args:
        is_group: whether it is a group; a topic may have the same name.
        name: its name.
    """

    is_group: bool
    name: str


Waiter = asyncio.Future[bool]
"""Future of a waiting poll; False ends the wait."""


class AbsentNames:
    """Polls that wait for their topic or group to be created. The limits of polls include them.

    Args:
        view: the cluster as the controller streams it.
        clock: the time.
    """

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._waiting: dict[AbsentName, dict[Waiter, None]] = {}
        self._woken: deque[tuple[Waiter, bool]] = deque()
        """Polls to be resumed in the next turns of the loop, and whether their name was made."""
        view.subscribe(self._changed)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def seen_version(self) -> int:
        """The version of the topic registry that is known now; `made` needs that from before the poll was refused."""
        return self._view.named

    def waiter(self) -> Waiter:
        """Return the future of a poll that is about to wait."""
        return asyncio.get_running_loop().create_future()

    async def made(self, absent: AbsentName, seen_version: int, until_s: float, waiter: Waiter) -> bool:
        """Wait until a topic or group is made; False if it was not in time.

        Args:
            absent: either.
            seen_version: from before the refusal. Names made since count, as the controller's refusal and its cluster
                updates arrive by different streams.
            until_s: seconds of the monotonic clock.
            waiter: the poll, not done yet.
        """
        left_s = until_s - self._clock.monotonic()
        if left_s <= 0:
            return False
        there = self._find(absent)
        if there is not None and there.id > seen_version:
            return True
        waiters = self._waiting.setdefault(absent, {})
        waiters[waiter] = None
        try:
            async with asyncio.timeout(left_s):
                return await waiter
        except TimeoutError:
            return False
        finally:
            waiters.pop(waiter, None)
            if not waiters and self._waiting.get(absent) is waiters:
                del self._waiting[absent]

    def drain(self) -> None:
        """Answer all polls: the proxy is about to stop."""
        self._wake(list(self._waiting), made=False)

    def _find(self, absent: AbsentName) -> Topic | Group | None:
        return self._view.groups.get(absent.name) if absent.is_group else self._view.topics.get(absent.name)

    def _changed(self, update: ClusterUpdate) -> None:
        if not self._waiting:
            return
        if update.snapshot:
            made = [absent for absent in self._waiting if self._find(absent) is not None]
        else:
            made = [AbsentName(False, each.name) for each in update.topics]
            made += [AbsentName(True, each.name) for each in update.groups]
        self._wake(made, made=True)

    def _wake(self, names: list[AbsentName], *, made: bool) -> None:
        is_waking = bool(self._woken)
        for absent in names:
            self._woken.extend((waiter, made) for waiter in self._waiting.pop(absent, ()))
        if self._woken and not is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        """Wake some polls, and the others in the turns of the loop that follow."""
        for _ in range(min(_TOGETHER_MAX, len(self._woken))):
            waiter, made = self._woken.popleft()
            if not waiter.done():
                waiter.set_result(made)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)
