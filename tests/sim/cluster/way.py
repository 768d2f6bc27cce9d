"""The ways between simulated machines: each direction takes its time, may be cut, and may break what goes along it."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.loop import SimLoop
from tests.sim.process import Process

_APART_S = 1e-9
"""What is sent later arrives later, if only by this."""
_CALLS_REMEMBERED = 64

Packet = tuple[int, Callable[..., object], tuple[Any, ...], float]
"""To which call it belongs, what is called at the other end, with what, and how much later than usual."""


@dataclass(slots=True, eq=False)
class Way:
    """From one machine to another; the way back is another one.

    Args:
        source, target: names of the machines.
        delay_s: the shortest and the longest time that it takes.
        broken_share: share of packets that break the connection they belong to, and are lost with it.
        cut_since: since when nothing comes through; None if it does.
        held: what was sent meanwhile, by the direction it belongs to: TCP sends it again until it gives up.
    """

    source: str
    target: str
    delay_s: tuple[float, float] = (0.0, 0.0)
    broken_share: float = 0.0
    cut_since: float | None = None
    held: dict["Direction", None] = field(default_factory=dict)


class Direction:
    """One direction of a connection: what is sent of a call arrives in its order, or not at all.

    Of two calls the one may overtake the other, as with HTTP/2, where one stream waits for its window and another does
    not, and where what is ready at the same time may go in any order.

    Args:
        loop: the loop.
        chance: delays and breaks.
        way: the way it takes.
        target: whose code runs when something arrives; None: the machine's.
        broken: called when a packet has broken the connection.
    """

    def __init__(
        self, loop: SimLoop, chance: random.Random, way: Way, target: Process | None, broken: Callable[[], None]
    ) -> None:
        self.way = way
        self.target = target
        self._loop = loop
        self._chance = chance
        self._broken = broken
        self._last_s: dict[int, float] = {}
        self._latest_s = 0.0
        self._held: list[Packet] = []
        self.is_dead = False
        """What is still under way does not arrive."""

    def send(self, number: int, deliver: Callable[..., object], *arguments: Any, later_s: float = 0.0) -> None:
        """Have something called at the other end when the packet has arrived there.

        Args:
            number: of the call; 0 for what comes after all that was sent before.
            deliver: what.
            arguments: with what.
            later_s: so much later than what is sent around it, which may overtake it.
        """
        way = self.way
        if way.broken_share and self._chance.random() < way.broken_share:
            self._broken()
        elif way.cut_since is not None:
            self._held.append((number, deliver, arguments, later_s))
            way.held[self] = None
        else:
            self._send(number, deliver, arguments, later_s)

    def flush(self) -> None:
        """The way is whole again: send what was held."""
        held, self._held = self._held, []
        for packet in held:
            self._send(*packet)

    def _send(self, number: int, deliver: Callable[..., object], arguments: tuple[Any, ...], later_s: float) -> None:
        shortest_s, longest_s = self.way.delay_s
        now_s = self._loop.time()
        due_s = now_s + shortest_s + self._chance.random() * (longest_s - shortest_s)
        earliest_s = (self._last_s.get(number, 0.0) if number else self._latest_s) + _APART_S
        if due_s < earliest_s:
            due_s = earliest_s
        if number:
            self._last_s[number] = due_s
            if len(self._last_s) > _CALLS_REMEMBERED:
                self._last_s = {other: last_s for other, last_s in self._last_s.items() if last_s >= now_s}
        if due_s > self._latest_s:
            self._latest_s = due_s
        if self.target is None:
            self._loop.outside(due_s - now_s, self._arrive, deliver, arguments)
        else:
            self._loop.call_at(due_s + later_s, self._arrive, deliver, arguments, context=self.target.context)

    def _arrive(self, deliver: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if not self.is_dead:
            deliver(*arguments)
