"""Does what the swarm has drawn: kills, cuts, pauses, loses power and files; heals all in the end.

What cannot be had back is never taken from the last copy (fault atlas): a volume is wiped, or a bit of a log flipped,
only while another replica of the sync-state set holds the same for certain, and nothing else is damaged.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import CorruptDataError, StatusError
from services.rpc.service import Call
from services.rpc.status import RpcError
from tests.harness.memory_disk import CrashKind
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.programs import DATA
from tests.sim.replicas.swarm import GroupSwarm
from tests.sim.replicas.world import GROUP, GroupWorld, Replica

_LOOK_S = 0.1
_FREE_BYTES_MAX = 3000
_ROTTEN_TRIES = 20


@dataclass(slots=True)
class _Flip:
    """A bit that was flipped.

    Args:
        number: of the replica.
        path: its file.
        bit: counted from the file's beginning.
        before: the byte as it was.
    """

    number: int
    path: Path
    bit: int
    before: int


class Faults:
    """The faults of one run.

    Args:
        world: where they strike.
        swarm: which.
    """

    def __init__(self, world: GroupWorld, swarm: GroupSwarm) -> None:
        self._world = world
        self._swarm = swarm
        self._chance = swarm.random("replicas faults")
        self._work: dict[asyncio.Task[None], None] = {}
        self._booting: dict[Machine[Any], asyncio.Task[None]] = {}
        self._flips: list[_Flip] = []
        self._wiped = -1
        """The replica whose volume is empty and that does not have everything again."""
        self._device_fails: set[int] = set()
        """Replicas whose devices may refuse, as long as that was not met."""
        self.is_healed = False
        self.count = 0
        world.on_failure = self._excused
        world.watch.rotten = lambda number: any(flip.number == number for flip in self._flips)

    async def run(self) -> None:
        """Strike until cancelled."""
        chance = self._chance
        acts = self._acts()
        names = list(self._swarm.faults)
        weights = [self._swarm.faults[name] for name in names]
        while names:
            await asyncio.sleep(chance.expovariate(self._swarm.faults_per_s))
            name = chance.choices(names, weights)[0]
            self._world.trace.add("fault", name)
            self.count += 1
            task = asyncio.get_running_loop().create_task(acts[name](), name=name)
            self._work[task] = None
            task.add_done_callback(lambda done: self._work.pop(done, None))

    def _acts(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        world, chance = self._world, self._chance

        def slave() -> Replica | None:
            slaves = world.slaves()
            return chance.choice(slaves) if slaves else None

        def controller() -> Machine[Any]:
            return chance.choice(list(world.controllers.values()))

        return {
            "kill master": lambda: self._kill(world.master),
            "kill slave": lambda: self._kill(slave()),
            "kill at an operation": self._kill_at_an_operation,
            "kill all": lambda: self._kill_all("process"),
            "kill controller": lambda: self._kill(controller()),
            "kill proxy": lambda: self._kill(chance.choice(list(world.proxies.values()))),
            "power of master": lambda: self._kill(world.master, "power"),
            "power of slave": lambda: self._kill(slave(), "power"),
            "power of all": lambda: self._kill_all("power"),
            "restart": lambda: self._restart(chance.choice(list(world.machines()))),
            "pause master": lambda: self._pause(world.master),
            "pause slave": lambda: self._pause(slave()),
            "pause controller": lambda: self._pause(controller()),
            "cut": self._cut,
            "isolate": self._isolate,
            "master without controller": lambda: self._cut_master(world.controllers),
            "master without slaves": lambda: self._cut_master(each.name for each in world.slaves()),
            "slaves without controller": self._cut_slaves,
            "break connections": self._break_connections,
            "bad ways": self._worsen_ways,
            "controllers away": self._take_controllers,
            "store away": self._take_store,
            "lost answers of the store": self._lose_answers,
            "old checkpoint": self._repeat_checkpoint,
            "switchover": self._switch,
            "slow device": self._slow_down,
            "disk full": self._fill,
            "write error": lambda: self._refuse("writes"),
            "sync error": lambda: self._refuse("syncs"),
            "bit flip": self._flip,
            "wiped volume": self._wipe,
            "clock jump": self._set_clock,
        }

    async def keep_alive(self) -> None:
        """Start again what has ended, some time later, until cancelled: whoever looks after processes does so."""
        world, chance = self._world, self._chance
        while True:
            await asyncio.sleep(_LOOK_S)
            self._look_after_damage()
            for machine in world.machines():
                if machine.process is None and machine not in self._booting:
                    after_s = 0.1 if self.is_healed else chance.choice((0.0, 0.3, 2.0, 8.0))
                    work = self._boot_later(machine, after_s)
                    self._booting[machine] = asyncio.get_running_loop().create_task(work)

    async def _boot_later(self, machine: Machine[Any], after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            if machine.process is None:
                await machine.boot()
        finally:
            self._booting.pop(machine, None)

    async def heal(self) -> None:
        """End all faults."""
        world = self._world
        for task in list(self._work):
            task.cancel()
        if self._work:
            await asyncio.wait(set(self._work))
        self.is_healed = True
        world.network.mend_all()
        world.store.is_away = False
        world.store.lost_share = 0.0
        for machine in world.machines():
            machine.clock.offset_ms = 0
            machine.disk.sync_s_max = self._swarm.sync_s_max
            machine.disk.fill(1 << 40)
            if machine.process_disk is not None:
                machine.process_disk.die_at_operation = -1
            machine.resume()

    def restore(self) -> None:
        """Flip back what nobody has read since: nothing was to be seen of it."""
        self._look_after_damage()
        for flip in self._flips:
            self._world.trace.add("fault", "flip back", flip.number, flip.path.name, flip.bit)
            self._world.replicas[flip.number].disk.flip_bit(flip.path, flip.bit)
        self._flips.clear()

    # Ends of processes

    async def _kill(self, machine: Machine[Any] | None, kind: CrashKind = "process") -> None:
        if machine is None:
            return
        await asyncio.sleep(self._chance.random() * 0.1)
        self._world.crash(machine, kind)

    async def _kill_at_an_operation(self) -> None:
        """Have a replica die at one of its next changes of the disk, also as it starts or changes its role."""
        machine = self._chance.choice(list(self._world.replicas.values()))
        if machine.process_disk is not None:
            machine.process_disk.die_at_operation = machine.process_disk.operations + self._chance.randint(1, 60)

    async def _kill_all(self, kind: CrashKind) -> None:
        for machine in self._world.replicas.values():
            await self._kill(machine, kind)

    async def _restart(self, machine: Machine[Any]) -> None:
        await asyncio.shield(asyncio.get_running_loop().create_task(machine.stop()))

    async def _pause(self, machine: Machine[Any] | None) -> None:
        if machine is not None:
            machine.pause()
            await asyncio.sleep(self._chance.choice((0.2, 1.0, 4.0, 8.0)))
            machine.resume()

    async def _take_controllers(self) -> None:
        how = self._chance.choice(("kill", "stop", "pause", "pause"))
        seconds = self._chance.choice((0.2, 2.0, 5.0, 10.0))
        for machine in self._world.controllers.values():
            if how == "pause":
                machine.pause()
            elif how == "kill":
                machine.kill()
            else:
                await self._restart(machine)
        await asyncio.sleep(seconds)
        for machine in self._world.controllers.values():
            machine.resume()

    async def _take_store(self) -> None:
        self._world.store.is_away = True
        await asyncio.sleep(self._chance.choice((0.2, 2.0, 5.0, 10.0)))
        self._world.store.is_away = False

    async def _lose_answers(self) -> None:
        self._world.store.lost_share = self._chance.choice((0.1, 0.5))
        await asyncio.sleep(self._chance.random() * 5)
        self._world.store.lost_share = 0.0

    async def _switch(self) -> None:
        """An operator asks for another master."""
        leader = self._world.leader
        if leader is None:
            return
        to = self._chance.choice((None, *self._world.replicas))
        process = next(each.process for each in self._world.controllers.values() if _is_of(each, leader))
        assert process is not None

        async def ask() -> None:
            try:
                await leader._hand_overs.switch(GROUP, to)
                self._world.trace.add("fault", "switched", to)
            except (StatusError, RpcError) as error:
                self._world.trace.add("fault", "not switched", to, error)

        process.spawn(ask())

    async def _repeat_checkpoint(self) -> None:
        """What a controller sent that stood still since, or does not lead any more, arrives at a replica."""
        machine, seen = self._some(), self._world.watch.checkpoints
        if not seen or machine.program is None or machine.process is None or not machine.serving:
            return
        given, checkpoints = self._chance.choice(seen), machine.program.app.checkpoints

        async def store() -> None:
            with contextlib.suppress(StatusError):
                await checkpoints.store(Call("", {}, None, ""), given)

        machine.process.spawn(store())

    # Ways

    async def _cut(self) -> None:
        first, second = self._two()
        ways = self._chance.choice((((first, second),), ((second, first),), ((first, second), (second, first))))
        await self._cut_for(ways)

    async def _isolate(self) -> None:
        names = [machine.name for machine in self._world.machines()]
        alone = self._chance.choice(names)
        await self._cut_for([way for name in names if name != alone for way in ((name, alone), (alone, name))])

    async def _cut_master(self, others: Iterable[str]) -> None:
        master = self._world.master
        if master is not None:
            there = [(master.name, other) for other in others]
            back = [(other, way) for way, other in there]
            await self._cut_for(self._chance.choice((there, back, there + back)))

    async def _cut_slaves(self) -> None:
        """Cut all slaves off from the controllers, but not from their master."""
        slaves = [each.name for each in self._world.slaves()]
        there = [(slave, controller) for slave in slaves for controller in self._world.controllers]
        back = [(controller, slave) for slave, controller in there]
        await self._cut_for(self._chance.choice((there, back, there + back)))

    async def _cut_for(self, ways: Iterable[tuple[str, str]]) -> None:
        network, seconds = self._world.network, self._chance.choice((0.2, 2.0, 5.0, 10.0))
        for way in ways:
            self._world.trace.add("fault", "cut", *way, seconds)
            network.cut(*way)
        await asyncio.sleep(seconds)
        for way in ways:
            network.mend(*way)

    async def _break_connections(self) -> None:
        self._world.network.break_connections(*self._two())

    async def _worsen_ways(self) -> None:
        first, second = self._two()
        ways = [self._world.network.way(*way) for way in ((first, second), (second, first))]
        for way in ways:
            way.delay_s = (0.0, self._chance.choice((0.01, 0.3, 2.0)))
            way.broken_share = self._chance.choice((0.0, 0.1, 0.3))
        await asyncio.sleep(self._chance.random() * 5)
        for way in ways:
            way.delay_s, way.broken_share = self._world.network.delay_s, 0.0

    def _two(self) -> tuple[str, str]:
        """A replica, and somebody else that it talks with."""
        world, chance = self._world, self._chance
        replica = chance.choice(list(world.replicas.values())).name
        others = [machine.name for machine in world.machines() if machine.name != replica]
        return replica, chance.choice(others)

    # Devices and clocks

    async def _slow_down(self) -> None:
        machine = self._some()
        machine.disk.sync_s_max = self._chance.choice((0.1, 0.5, 2.0))
        await asyncio.sleep(self._chance.random() * 5)
        machine.disk.sync_s_max = self._swarm.sync_s_max

    async def _fill(self) -> None:
        machine = self._some()
        machine.disk.fill(self._chance.randrange(_FREE_BYTES_MAX))
        self._device_fails.add(self._number(machine))
        await asyncio.sleep(self._chance.random() * 5)
        machine.disk.fill(1 << 40)

    async def _refuse(self, what: str) -> None:
        machine = self._some()
        self._device_fails.add(self._number(machine))
        if what == "writes":
            machine.disk.fail_writes(self._chance.choice((1, 1, 3)))
        else:
            machine.disk.fail_syncs(1)

    async def _set_clock(self) -> None:
        machine = self._some()
        machine.clock.offset_ms += self._chance.choice((-60_000, -3000, -500, 500, 3000, 60_000))
        self._world.trace.add("fault", "clock", machine.name, machine.clock.offset_ms)

    async def _flip(self) -> None:
        """Flip a bit of the log where every member of the set has it on the device."""
        group = self._world.group
        if not self._is_whole() or group is None or len(self._world.replicas) < 2:
            return
        self._world.watch.look()
        chance = self._chance
        number = chance.choice(list(self._world.replicas))
        disk = self._world.replicas[number].disk
        certain = min(self._synced(each) for each in self._world.replicas)
        for _ in range(_ROTTEN_TRIES):
            paths = [path for path in disk.files() if path.parent == DATA / "commitlog"]
            if not paths:
                return
            path = chance.choice(paths)
            length = min(len(disk.files()[path]), certain - int(path.stem))
            if length > 0:
                bit = chance.randrange(length * 8)
                self._flips.append(_Flip(number, path, bit, disk.files()[path][bit // 8]))
                disk.flip_bit(path, bit)
                self._world.trace.add("fault", "flip", number, path.name, bit)
                return

    async def _wipe(self) -> None:
        """Put an empty volume in the place of a replica's, if another one of the set has everything."""
        group = self._world.group
        if not self._is_whole() or group is None:
            return
        number = self._chance.choice(list(self._world.replicas))
        if set(group["sync_state_set"]) - {number}:
            machine = self._world.replicas[number]
            self._world.note_loss(machine)
            self._world.crash(machine)
            machine.disk.wipe()
            self._wiped = number
            self._world.watch.wiped(number)
            self._world.trace.add("fault", "wiped", number)

    def _is_whole(self) -> bool:
        """Whether every replica runs and has everything."""
        world, group = self._world, self._world.group
        self._look_after_damage()
        return (
            world.master is not None
            and group is not None
            and set(group["sync_state_set"]) == set(world.replicas)
            and all(each.serving for each in world.replicas.values())
            and self._wiped < 0
            and not self._flips
        )

    def _look_after_damage(self) -> None:
        """See what was mended."""
        world, group = self._world, self._world.group
        if self._wiped >= 0 and group is not None and self._wiped in group["sync_state_set"]:
            heard = world.heard(self._wiped)
            program = world.replicas[self._wiped].program
            if heard is not None and program is not None and heard.version == group["version"]:
                identity = program.app.identity.hex()
                if any(each["identity"] == identity for each in group["replicas"]):
                    self._wiped = -1
        left = []
        for flip in self._flips:
            content = world.replicas[flip.number].disk.files().get(flip.path, b"")
            if flip.bit // 8 < len(content) and content[flip.bit // 8] == flip.before ^ 1 << flip.bit % 8:
                left.append(flip)
        self._flips = left

    def _excused(self, number: int, error: Exception | None) -> bool:
        """Whether a replica may say that it cannot go on."""
        if number < 0:
            return False
        if isinstance(error, OSError) and number in self._device_fails:
            self._world.note_loss(self._world.replicas[number])
            return True
        return isinstance(error, CorruptDataError) and any(flip.number == number for flip in self._flips)

    def _synced(self, number: int) -> int:
        program = self._world.replicas[number].program
        return 0 if program is None else min(program.app.files.synced_position, program.app.files.confirmed_position)

    def _some(self) -> Replica:
        return self._chance.choice(list(self._world.replicas.values()))

    def _number(self, machine: Replica) -> int:
        return next(number for number, each in self._world.replicas.items() if each is machine)


def _is_of(machine: Machine[Any], app: object) -> bool:
    return machine.program is not None and machine.program.app is app
