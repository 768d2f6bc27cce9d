"""Does what the swarm has drawn: kills, power losses, broken disks and ways; and heals all of it in the end."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from tests.sim.rotten_records import RottenRecords
from tests.sim.world import COMMIT_LOG, DATA, World

CHECKPOINT = DATA / "broker" / "checkpoint"
TIMER = DATA / "broker" / "timer"
CLUSTER_STATE = DATA / "controller" / "cluster.json"

_KILL_STEPS_MAX = 400
_KILL_OPERATIONS_MAX = 60
_TROUBLE_S = 8.0
"""For so long after a fault nobody is blamed for being slow: as long as it lasts, and for what waits behind it."""
_VERSION_END = 6
TIMER_CHECKPOINT = "timercheck"
_PLENTY_BYTES = 1 << 40


class Faults:
    """The faults of one run.

    Args:
        world: where they strike.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.swarm.random("faults")
        self._flipped: list[tuple[Path, int, bytes]] = []
        self._rotten = RottenRecords(
            world.disk,
            DATA / "broker",
            world.swarm.options.broker.log.segment_bytes,
            world.swarm.random("rotten records"),
        )
        self.count = 0

    async def run(self) -> None:
        """Strike until cancelled."""
        swarm, chance, world = self._world.swarm, self._chance, self._world
        acts: dict[str, Callable[[], None]] = {
            "kill": self._kill_at_step,
            "kill in a step": self._kill_at_operation,
            "power": self._lose_power,
            "restart": self._restart,
            "sync error": lambda: world.disk.fail_syncs(1, lambda path: path.suffix == ".log"),
            "sync error elsewhere": lambda: world.disk.fail_syncs(1, lambda path: path.suffix != ".log"),
            "sync error of the timer": lambda: world.disk.fail_syncs(1, lambda path: TIMER in path.parents),
            "write error": lambda: world.disk.fail_writes(chance.choice((1, 1, 3))),
            "disk full": self._fill,
            "bit flip": self._flip,
            "bit flip of the timer": self._flip_timer,
            "clock jump": self._jump,
            "bad ways": self._worsen_ways,
            "slow device": self._slow_down,
            "out of files": self._take_files,
            "rotten record": self._rot,
        }
        names, weights = list(swarm.faults), list(swarm.faults.values())
        while names:
            await asyncio.sleep(chance.expovariate(swarm.faults_per_s))
            name = chance.choices(names, weights)[0]
            world.trace.add("fault", name)
            self.count += 1
            world.history.troubles.append((world.loop.time(), world.loop.time() + _TROUBLE_S))
            acts[name]()

    async def keep_alive(self) -> None:
        """Boot the server whenever it has ended, until cancelled; an operator mends what it complains of."""
        while True:
            await self._world.ended()
            self._rotten.restore()
            await asyncio.sleep(self._chance.random() * 0.5)
            if self._chance.random() < 0.1 and "power" in self._world.swarm.faults:
                self._world.crash("power")
            if not await self._world.boot() and self._world.process is None:
                await asyncio.sleep(0.1)
                if self._world.refusals:
                    self.mend()

    def mend(self) -> None:
        """Restore what was damaged from a backup, and see to it that there is space."""
        world = self._world
        for path, bit, before in reversed(self._flipped):
            contents = world.disk.files().get(path)
            if contents is not None and bit // 8 < len(contents) and contents[bit // 8 : bit // 8 + 1] == before:
                world.disk.flip_bit(path, bit)
                world.trace.add("fault", "mended", path.relative_to(DATA), bit)
        self._flipped.clear()
        self._rotten.restore()
        self._free_space()

    def heal(self) -> None:
        """End all faults."""
        world = self._world
        world.loop.act_at_step = -1
        if world.process_disk is not None:
            world.process_disk.die_at_operation = -1
        self._improve_ways()
        self._give_files()
        self._speed_up()
        if world.machine.offset_ms:
            world.machine.offset_ms = 0
            world.trace.add("fault", "clock", 0)
        world.disk.fail_writes(0)
        world.disk.fail_syncs(0)
        self.mend()

    def _kill_at_step(self) -> None:
        world = self._world
        world.loop.act = lambda: world.crash("process") if world.process is not None else None
        world.loop.act_at_step = world.loop.steps + self._chance.randint(1, _KILL_STEPS_MAX)

    def _kill_at_operation(self) -> None:
        disk = self._world.process_disk
        if disk is not None:
            disk.die_at_operation = disk.operations + self._chance.randint(1, _KILL_OPERATIONS_MAX)

    def _lose_power(self) -> None:
        world = self._world
        world.loop.act = lambda: world.crash("power")
        world.loop.act_at_step = world.loop.steps + self._chance.randint(1, _KILL_STEPS_MAX)

    def _restart(self) -> None:
        world = self._world
        if world.serving:
            world.loop.spawn_outside(world.stop())

    def _fill(self) -> None:
        self._world.disk.fill(self._chance.choice((0, 100, 2000, 20_000)))
        self._world.loop.outside(self._chance.random() * 3, self._free_space)

    def _free_space(self) -> None:
        self._world.disk.fill(_PLENTY_BYTES)

    def _take_files(self) -> None:
        """Let this process open no further file for some time."""
        disk = self._world.process_disk
        if disk is not None:
            disk.is_out_of_files = True
            self._world.loop.outside(self._chance.random() * 3, self._give_files)

    def _give_files(self) -> None:
        if self._world.process_disk is not None:
            self._world.process_disk.is_out_of_files = False

    def _jump(self) -> None:
        machine = self._world.machine
        machine.offset_ms += self._chance.choice((-600_000, -5000, -100, 100, 5000, 600_000))
        self._world.trace.add("fault", "clock", machine.offset_ms)

    def _worsen_ways(self) -> None:
        weather, chance = self._world.weather, self._chance
        weather.lost_share = chance.choice((0.0, 0.1, 0.5))
        weather.inner_delay_s_max = chance.choice((0.0, 0.01, 0.3, 2.0))
        weather.inner_lost_share = chance.choice((0.0, 0.0, 0.2))
        self._world.loop.outside(chance.random() * 3, self._improve_ways)

    def _improve_ways(self) -> None:
        weather = self._world.weather
        weather.delay_s_max = self._world.swarm.delay_s_max
        weather.lost_share = weather.inner_delay_s_max = weather.inner_lost_share = 0.0

    def _slow_down(self) -> None:
        self._world.disk.sync_s_max = self._chance.choice((0.1, 0.5, 2.0))
        self._world.loop.outside(self._chance.random() * 3, self._speed_up)

    def _speed_up(self) -> None:
        self._world.disk.sync_s_max = self._world.swarm.sync_s_max

    def _flip(self) -> None:
        """Let a bit rot where recovery can know that it was good once: see docs/internals/simulator.md."""
        world, chance = self._world, self._chance
        files = world.disk.files()
        targets: list[tuple[Path, int]] = []  # a file, and how many bytes of it
        known_good = self._known_good_position(files.get(CHECKPOINT, b""))
        for path, contents in files.items():
            if path.parent == COMMIT_LOG:
                length = min(len(contents), known_good - int(path.stem))
                if length > 0:
                    targets.append((path, length))
        if world.process is None:
            targets += [(path, len(files[path])) for path in (CHECKPOINT, CLUSTER_STATE) if files.get(path)]
        targets += [(path, len(contents)) for path, contents in files.items() if path.suffix == ".index" and contents]
        if not targets:
            return
        path, length = chance.choice(targets)
        bit = chance.randrange(length * 8)
        if self._rotten.holds(path, bit // 8):
            return  # what has changed twice is not known again when it is to be restored
        world.disk.flip_bit(path, bit)
        self._flipped.append((path, bit, world.disk.files()[path][bit // 8 : bit // 8 + 1]))
        world.trace.add("fault", "flipped", path.relative_to(DATA), bit)

    def _flip_timer(self) -> None:
        """Let a bit of the timer's files rot: they are made again, so nobody mends it."""
        world, chance = self._world, self._chance
        files = world.disk.files()
        targets = [path for path, contents in files.items() if TIMER in path.parents and contents]
        if not targets:
            return
        path = chance.choice(targets)
        # The format's version is not flipped: the file of a newer release is no damage.
        first = 8 * _VERSION_END if path.name == TIMER_CHECKPOINT else 0
        if len(files[path]) * 8 <= first:
            return
        bit = chance.randrange(first, len(files[path]) * 8)
        world.disk.flip_bit(path, bit)
        world.trace.add("fault", "flipped", path.relative_to(DATA), bit)

    def _rot(self) -> None:
        """Let a record read as another than was written, where it is needed yet."""
        cluster = self._world.cluster
        if cluster is not None and self._world.serving and (how := self._rotten.rot(cluster.broker.core)):
            self._world.trace.add("fault", "rotten", how)

    def _known_good_position(self, contents: bytes) -> int:
        """Up to where the checkpoint on the disk says that the log was synced."""
        try:
            return checkpoint_file.decode(contents).store.synced_position
        except (CorruptDataError, UnknownFormatError):
            return 0
