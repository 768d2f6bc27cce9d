"""Devices of a broker group that are slow, full, refuse, lie or forget, and clocks that are wrong."""

import asyncio
from pathlib import Path

from popwheel_broker.replication import superblock
from popwheel_broker.replication.superblock import SLOT_BYTES, Contents
from tests.harness.memory_disk import SECTOR_BYTES
from tests.sim.cluster.programs import DATA
from tests.sim.replicas.damage import Damage, FileDamage
from tests.sim.replicas.ground import Acts, Ground
from tests.sim.replicas.world import Replica

_FREE_BYTES_MAX = 3000
_TRIES = 20
_VERSION_AT = (4, 5)
_SUPERBLOCK = DATA / superblock.NAME
_SUPERBLOCK_SHARE = 3
"""It says what three other files would say, so it is struck as often as they would be."""
_CATCH_UP_LOOKS = 200
_POLL_S = 0.1


class DiskFaults:
    """Strikes at devices and clocks.

    Args:
        ground: where.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._world = ground.world
        self._atlas = ground.atlas
        self._chance = ground.chance
        self._rare = ground.rare

    def acts(self) -> Acts:
        """What it can do."""
        return {
            "slow device": self._slow_down,
            "disk full": self._fill,
            "write error": lambda: self._refuse("writes"),
            "sync error": lambda: self._refuse("syncs"),
            "bit flip": self._flip,
            "wiped volume": self._wipe,
            "clock jump": self._set_clock,
            "clock drift": self._drift,
            "misdirected write": self._misdirect,
            "stale sector": self._age_a_sector,
            "rotten derived file": self._rot_a_derived_file,
            "derived file cut short": lambda: self._change_a_derived_file("cut"),
            "derived file lost": lambda: self._change_a_derived_file("lost"),
            "derived file of before": lambda: self._change_a_derived_file("old"),
            "lying syncs": self._lie,
            "log cut short": self._cut_log,
            "volume of before": self._go_back,
        }

    async def _slow_down(self) -> None:
        machine = self._ground.some()
        machine.disk.sync_s_max = self._chance.choice((0.1, 0.5, 2.0))
        await asyncio.sleep(self._chance.random() * 5)
        machine.disk.sync_s_max = self._ground.swarm.sync_s_max

    async def _fill(self) -> None:
        machine = self._ground.some()
        machine.disk.fill(self._chance.randrange(_FREE_BYTES_MAX))
        self._atlas.device_fails.add(self._atlas.number(machine))
        await asyncio.sleep(self._chance.random() * 5)
        machine.disk.fill(1 << 40)

    async def _refuse(self, what: str) -> None:
        machine = self._ground.some()
        self._atlas.device_fails.add(self._atlas.number(machine))
        if what == "writes":
            machine.disk.fail_writes(self._chance.choice((1, 1, 3)))
        else:
            machine.disk.fail_syncs(1)

    # Clocks

    async def _set_clock(self) -> None:
        machine = self._ground.some()
        machine.clock.offset_ms += self._chance.choice((-60_000, -3000, -500, 500, 3000, 60_000))
        self._world.trace.add("fault", "clock", machine.name, machine.clock.offset_ms)

    async def _drift(self) -> None:
        machine = self._rare.choice(list(self._world.machines()))
        rate = self._rare.choice((-0.2, -0.01, 0.01, 0.2))
        machine.clock.drift(rate)
        self._world.trace.add("fault", "drift", machine.name, rate)

    # The log, where all others hold the same

    async def _flip(self) -> None:
        """Flip a bit of the log where every member of the set has it on the device."""
        if not self._may_rot():
            return
        chance = self._chance
        number = chance.choice(list(self._world.replicas))
        disk = self._world.replicas[number].disk
        certain = self._atlas.certain()
        for _ in range(_TRIES):
            paths = [path for path in disk.files() if path.parent == DATA / "commitlog"]
            if not paths:
                return
            path = chance.choice(paths)
            length = min(len(disk.files()[path]), certain - _start(path))
            if length > 0:
                bit = chance.randrange(length * 8)
                before = disk.files()[path][bit // 8]
                self._rot(Damage(number, path, bit // 8, bytes((before,)), bytes((before ^ 1 << bit % 8,))))
                return

    def _may_rot(self) -> bool:
        if self._world.group is None or len(self._world.replicas) < 2 or not self._atlas.is_whole():
            return False
        self._world.watch.look()
        return True

    def _rot(self, damage: Damage) -> None:
        if damage.before != damage.after:
            self._atlas.rotten.append(damage)
            self._atlas.overwrite(damage)

    def _sectors(self, number: int) -> list[tuple[Path, int, bytes]]:
        """Whole sectors of a replica's log that every member of the set has on its device: file, place, contents."""
        certain = self._atlas.certain()
        return [
            (path, at, contents[at : at + SECTOR_BYTES])
            for path, contents in self._world.replicas[number].disk.files().items()
            if path.parent == DATA / "commitlog"
            for at in range(0, min(len(contents), certain - _start(path)) - SECTOR_BYTES + 1, SECTOR_BYTES)
        ]

    async def _misdirect(self) -> None:
        """What was written to one sector went to another one, and is missing where it should be."""
        if not self._may_rot():
            return
        number, _ = self._ground.any_replica()
        sectors = self._sectors(number)
        if len(sectors) < 2:
            return
        (path, at, written), (wrong_path, wrong_at, before) = self._rare.sample(sectors, 2)
        self._rot(Damage(number, wrong_path, wrong_at, before, written))
        self._rot(Damage(number, path, at, written, bytes(SECTOR_BYTES)))

    async def _age_a_sector(self) -> None:
        """A sector shows what was there before it was written: nothing, or the first part of it."""
        if not self._may_rot():
            return
        number, _ = self._ground.any_replica()
        sectors = self._sectors(number)
        if sectors:
            path, at, written = self._rare.choice(sectors)
            kept = self._rare.choice((0, 0, self._rare.randrange(SECTOR_BYTES)))
            self._rot(Damage(number, path, at, written, written[:kept] + bytes(SECTOR_BYTES - kept)))

    # What follows from the log, or can be heard again

    def _derived_files(self, machine: Replica) -> dict[Path, bytes]:
        """All but the log. The superblock does not follow from it. But one of its slots does for both, and a replica
        that has neither must say so.
        """
        return {path: contents for path, contents in machine.disk.files().items() if path.parent != DATA / "commitlog"}

    def _pick(self, files: dict[Path, bytes]) -> Path | None:
        """A file, the small ones as often as those of queues."""
        kinds = sorted({_kind(path) for path in files})
        if not kinds:
            return None
        kinds += [superblock.NAME] * (_SUPERBLOCK_SHARE - 1) * (superblock.NAME in kinds)
        kind = self._rare.choice(kinds)
        return self._rare.choice([path for path in files if _kind(path) == kind])

    async def _rot_a_derived_file(self) -> None:
        """Flip a bit while the replica runs, or while it is down."""
        rare = self._rare
        number, machine = self._ground.any_replica()
        if rare.random() < 0.7:
            self._world.crash(machine)
        files = {path: contents for path, contents in self._derived_files(machine).items() if contents}
        path = self._pick(files)
        if path is None or self._atlas.is_damaged(number, path):
            return
        at = rare.randrange(len(files[path]))
        if path.suffix != ".index" and at in _VERSION_AT:
            return  # the file of a newer release is no damage
        before = files[path][at : at + 1]
        damage = Damage(number, path, at, before, bytes((before[0] ^ 1 << rare.randrange(8),)))
        self._spoil(damage)
        if path == _SUPERBLOCK and rare.random() < 0.5:
            other = (at + SLOT_BYTES) % (2 * SLOT_BYTES)
            before = files[path][other : other + 1]
            self._spoil(Damage(number, path, other, before, bytes((before[0] ^ 1,))))

    def _spoil(self, damage: Damage) -> None:
        self._atlas.derived.append(damage)
        self._atlas.overwrite(damage)

    async def _change_a_derived_file(self, how: str) -> None:
        """While the replica is down, have a file cut off, lost, or be as it was some time ago."""
        rare = self._rare
        number, machine = self._ground.any_replica()
        files = self._derived_files(machine)
        path = self._pick(files)
        if path is None or self._atlas.is_damaged(number, path):
            return
        after: bytes | None = files[path]
        if how == "old":
            await asyncio.sleep(rare.choice((0.3, 1.0, 4.0)))
        self._world.crash(machine)
        if self._atlas.is_damaged(number, path):
            return
        before = machine.disk.files().get(path)
        if how == "cut" and before:
            after = before[: rare.randrange(len(before))]
        elif how == "lost":
            after = None
        elif path == _SUPERBLOCK and not _may_go_back(before, after):
            return
        if before is not None and after != before:
            self._world.watch.wiped(machine.name)
            self._atlas.put(FileDamage(number, path, before, after))

    # One copy less, and the replica cannot know it

    async def _lie(self) -> None:
        """A device says that syncs are done, and has nothing of it when its power goes."""
        number, machine = self._ground.any_replica()
        if not self._ground.may_take_a_copy():
            return
        self._atlas.is_quiet = True
        try:
            machine.disk.lies = True
            self._world.trace.add("fault", "lies", machine.name)
            await asyncio.sleep(self._rare.choice((0.3, 1.0, 3.0)))
            if self._others_have_all(number) and machine.process is not None:
                self._atlas.lose_power(number)
                machine.disk.lies = False
                self._atlas.lied_to.add(number)
                await self._let_catch_up(number)
            else:
                machine.disk.make_good()
        finally:
            if machine.disk.lies:
                machine.disk.make_good()
            self._atlas.is_quiet = False

    async def _cut_log(self) -> None:
        """The log of a replica that is down ends before where it ended, or begins after where it began."""
        number, machine = self._ground.any_replica()
        if not self._ground.may_take_a_copy():
            return
        self._atlas.is_quiet = True
        try:
            self._world.crash(machine)
            logs = [path for path in machine.disk.files() if path.parent == DATA / "commitlog"]
            path = self._rare.choice((logs[-1], logs[-1], self._rare.choice(logs)))
            contents = machine.disk.files()[path]
            after: bytes | None = contents[: self._rare.randrange(len(contents) + 1)]
            if self._rare.random() < 0.5:
                after = None
            self._world.trace.add("fault", "log cut", machine.name, path.name, None if after is None else len(after))
            machine.disk.put(path, after)
            await self._let_catch_up(number)
        finally:
            self._atlas.is_quiet = False

    async def _go_back(self) -> None:
        """An old copy of a replica's volume is put back."""
        number, machine = self._ground.any_replica()
        if not self._atlas.is_whole():
            return
        files = machine.disk.files()
        await asyncio.sleep(self._rare.choice((0.5, 2.0, 4.0)))
        if not self._ground.may_take_a_copy() or _identity(files) != _identity(machine.disk.files()):
            return
        self._atlas.is_quiet = True
        try:
            self._world.crash(machine)
            self._world.trace.add("fault", "went back", machine.name)
            machine.disk.wipe()
            for path, contents in files.items():
                machine.disk.put(path, contents)
            await self._let_catch_up(number)
        finally:
            self._atlas.is_quiet = False

    def _others_have_all(self, number: int) -> bool:
        return any(other != number and self._atlas.has_all(other) for other in self._world.replicas)

    async def _let_catch_up(self, number: int) -> None:
        """Have nothing else strike until the replica has everything again."""
        self._atlas.suspect = number
        self._world.watch.wiped(self._world.replicas[number].name)
        for _ in range(_CATCH_UP_LOOKS):
            await asyncio.sleep(_POLL_S)
            if self._atlas.is_whole():
                self._world.trace.add("fault", "caught up", number)
                return

    async def _wipe(self) -> None:
        """Put an empty volume in the place of a replica's, if another one of the set has everything."""
        group = self._world.group
        if not self._atlas.is_whole() or group is None:
            return
        number = self._chance.choice(list(self._world.replicas))
        if set(group["sync_state_set"]) - {number}:
            self._atlas.wipe(self._world.replicas[number])


def _start(path: Path) -> int:
    return int(path.stem)


def _kind(path: Path) -> str:
    return str(path.parent) if path.parent == DATA / "timer" else path.suffix or path.name


def _said(data: bytes | None) -> Contents | None:
    """What a superblock says, as a start finds it."""
    if data is None:
        return None
    slots = [superblock.decode(data[:SLOT_BYTES]), superblock.decode(data[SLOT_BYTES:])]
    good = [slot for slot in slots if slot is not None]
    return max(good, key=lambda slot: slot[0])[1] if good else None


def _identity(files: dict[Path, bytes]) -> bytes | None:
    said = _said(files.get(_SUPERBLOCK))
    return None if said is None else said.identity


def _may_go_back(now: bytes | None, old: bytes | None) -> bool:
    """Whether an old superblock is of the same folder, and there is no installation under way and no doubt that nothing
    else tells of.
    """
    after, before = _said(now), _said(old)
    if after is None or before is None or after.identity != before.identity:
        return False
    return not any(each.is_installing or each.is_suspect for each in (after, before))
