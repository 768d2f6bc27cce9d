"""Replicas that die, come back and change roles in any order: nothing that was answered is lost or comes again."""

import asyncio
import random

import pytest

from popwheel_common.errors import StatusError
from popwheel_rpc.status import RpcError
from tests.unit.broker.group_world import GroupWorld, until

STEPS = 60


class Machine:
    """A group, what was answered, and what may have been done.

    Args:
        seed: of what happens.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        retention = {"hours": 0.0001, "interval_ms": 20} if seed % 3 == 0 else {}
        self.world = GroupWorld(3, checkpoint_interval_ms=30, retention=retention, log={"segment_bytes": 4096})
        self.keeps_all = not retention
        self.sent: set[bytes] = set()
        self.maybe: set[bytes] = set()
        self.handles: dict[bytes, str] = {}
        self.acked: set[bytes] = set()
        self.maybe_acked: set[bytes] = set()
        self.number = 0
        self.trace: list[str] = []

    async def step(self) -> None:
        kinds = {"send": 8, "receive": 3, "acknowledge": 4, "kill": 1, "restart": 2, "switch": 1, "rest": 1}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.trace.append(kind)
        await getattr(self, kind)()

    def leads(self) -> bool:
        master = self.world.group.master
        app = self.world.members[master].app if master >= 0 else None
        return app is not None and app.role.leader is not None

    async def send(self) -> None:
        if not self.leads():
            return
        bodies = []
        for _ in range(self.random.randrange(1, 6)):
            self.number += 1
            bodies.append(b"%06d" % self.number + bytes(self.random.choice((0, 200, 900))))
        self.maybe |= set(bodies)
        try:
            async with asyncio.timeout(2):
                await self.world.put(*bodies)
        except (StatusError, RpcError, TimeoutError):
            return
        self.sent |= set(bodies)

    async def receive(self) -> None:
        if not self.leads():
            return
        try:
            async with asyncio.timeout(2):
                given = await self.world.pop(4)
        except (StatusError, RpcError, TimeoutError):
            return
        for body, handle in given.items():
            assert body in self.maybe
            assert body not in self.acked, f"{body[:6]!r} came again after its ack was answered"
            self.handles[body] = handle

    async def acknowledge(self) -> None:
        if not self.leads() or not self.handles:
            return
        body = self.random.choice(list(self.handles))
        handle = self.handles.pop(body)
        self.maybe_acked.add(body)
        try:
            async with asyncio.timeout(2):
                (code,) = await self.world.ack(handle)
        except (StatusError, RpcError, TimeoutError):
            return
        assert code == 20000, f"the handle of {body[:6]!r} is not good at the new master: {code}"
        self.acked.add(body)

    async def rest(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.05, 0.2)))

    async def kill(self) -> None:
        alive = [each for each in self.world.members if each.app is not None]
        if len(alive) > 1:
            victim = self.random.choice(alive)
            # Who has lost power has lost what it said that it had received, so it must not be the last of the set.
            others = [each for each in alive if each is not victim and each.number in self.world.group.sync_state_set]
            kind = "power" if others and self.random.random() < 0.4 else "process"
            self.trace.append(f"{kind} of {victim.number}")
            await victim.kill(kind)  # type: ignore[arg-type]
            await self.elect_if_needed()

    async def restart(self) -> None:
        for member in self.world.members:
            if member.app is None:
                await member.start()
                break
        await self.elect_if_needed()

    async def switch(self) -> None:
        group = self.world.group
        others = [number for number in group.sync_state_set if number != group.master]
        alive = [number for number in others if self.world.members[number].app is not None]
        if self.leads() and alive:
            await self.elect(self.random.choice(alive))

    async def elect_if_needed(self) -> None:
        group = self.world.group
        if group.master >= 0 and self.leads():
            return
        candidates = [
            each
            for each in self.world.members
            if each.app is not None and (not group.epoch or each.number in group.sync_state_set)
        ]
        if candidates:
            best = max(
                candidates, key=lambda each: (each.alive.files.last_epoch, each.alive.files.end_position, -each.number)
            )
            await self.elect(best.number)

    async def elect(self, number: int) -> None:
        self.trace.append(f"elect {number}")
        await self.world.lead(number)

    async def check(self) -> None:
        """All are back: all have one log, and each message that was sent is there, delivered, or acknowledged."""
        world = self.world
        for member in world.members:
            if member.app is None:
                await member.start()
        await self.elect_if_needed()
        await world.in_sync(0, 1, 2)
        logs = [(each.alive.files.start_position, each.end, each.log_bytes()) for each in world.members]
        if self.keeps_all:
            assert logs[0] == logs[1] == logs[2]
        await world.lead((world.group.master + 1) % 3)
        got: set[bytes] = set()
        while given := await world.pop():
            assert not got & set(given), "two have it at once"
            got |= set(given)
        assert not got & self.acked, "acknowledged messages came again"
        assert got <= self.maybe
        if self.keeps_all:
            # Who had it delivered and lost the answer has it still: it is hidden, not lost.
            held = {each.next_offset for each in world.members[world.group.master].alive.core.state.table}
            missing = self.sent - got - self.maybe_acked - set(self.handles)
            assert not missing or held, f"lost: {sorted(missing)}"
        for body, handle in self.handles.items():
            assert await world.ack(handle) == [20000], body[:6]


@pytest.mark.parametrize("seed", range(6))
async def test_roles_change_in_any_order(seed: int) -> None:
    machine = Machine(seed)
    await machine.world.start()
    try:
        await machine.elect_if_needed()
        for _ in range(STEPS):
            await machine.step()
        await machine.check()
        for member in machine.world.members:
            assert not member.alive.failure.done()
    except BaseException:
        print(machine.trace)
        raise
    finally:
        await machine.world.stop()


async def test_it_is_seen_when_nobody_leads() -> None:
    world = GroupWorld(2)
    await world.start()
    await until(lambda: world.members[0].alive.view.ready)
    assert "has no role yet" in str(world.members[0].alive.health())
    await world.stop()
