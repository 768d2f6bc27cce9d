"""What is damaged at the moment, and what may be: the fault atlas of a broker group.

What cannot be had back is never taken from the last copy. So at most one replica at a time lacks, or has damaged, what
all members of the set should have, and every other one holds it for certain.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_common.errors import CorruptDataError, UnknownFormatError
from tests.harness.memory_disk import SECTOR_BYTES
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.programs import DATA
from tests.sim.replicas.world import GroupWorld, Replica


@dataclass(slots=True)
class Damage:
    """Bytes of a file that are not what was written.

    Args:
        number: of the replica.
        path: the file.
        at: where in it they are.
        before: as they were.
        after: as they are.
    """

    number: int
    path: Path
    at: int
    before: bytes
    after: bytes


@dataclass(slots=True)
class FileDamage:
    """A file that is not the one that was written.

    Args:
        number: of the replica.
        path: the file.
        before: its contents as they were; None if there was no such file.
        after: as they are; None if there is none.
    """

    number: int
    path: Path
    before: bytes | None
    after: bytes | None


class Atlas:
    """Keeps the book of damages of one run.

    Args:
        world: where they are.
    """

    def __init__(self, world: GroupWorld) -> None:
        self._world = world
        self.rotten: list[Damage] = []
        """Of the log, where others hold the same for certain."""
        self.derived: list[Damage] = []
        """Of files that follow from the log."""
        self.files: list[FileDamage] = []
        """Files that were cut off, lost, or put back as they were once."""
        self.wiped = -1
        """The replica whose volume is empty, or another's, and that does not have everything again."""
        self.suspect = -1
        """The replica that may have lost, without being able to know it, what the others count on it to have."""
        self.lied_to: set[int] = set()
        """Replicas whose queues may hold other bytes than were written, as no sync of theirs was true."""
        self.device_fails: set[int] = set()
        """Replicas whose devices may refuse, as long as that was not met."""
        self.kept_down: set[int] = set()
        """Replicas that nobody starts again for now."""
        self.is_quiet = False
        """Whether nothing else may strike, because one replica is a copy less."""
        world.on_failure = self.excused
        world.watch.before_deletion = self._before_deletion
        world.watch.on_members = self._members_changed
        world.watch.promises.is_excused = self._may_lack
        world.watch.rotten = lambda number: any(each.number == number for each in self.rotten)

    def number(self, machine: Machine[Any]) -> int:
        """Of a replica's machine."""
        return next(number for number, each in self._world.replicas.items() if each is machine)

    def _may_lack(self, number: int) -> bool:
        """Whether a replica may have lost what it had on its device, as far as was seen."""
        is_rotten = any(each.number == number for each in self.rotten)
        return number in (self.wiped, self.suspect) or is_rotten or number in self.lied_to or self._world.watch.unclean

    def is_whole(self) -> bool:
        """Whether every replica runs, has everything, and stays of the set whatever is under way."""
        world, group = self._world, self._world.group
        self.look()
        return (
            world.master is not None
            and group is not None
            and set(group["sync_state_set"]) == set(world.replicas)
            and not world.is_changing
            and all(each.serving for each in world.replicas.values())
            and self.wiped < 0
            and self.suspect < 0
            and not self.rotten
            and not world.twins
        )

    def certain(self) -> int:
        """Up to here every replica has the log on its device."""
        return min(self._synced(each) for each in self._world.replicas.values())

    def has_all(self, number: int) -> bool:
        """Whether a replica is of the set and has all that is confirmed on its device."""
        world, group = self._world, self._world.group
        machine, master = world.replicas[number], world.master
        if master is None or master.program is None or machine.program is None or group is None or not machine.serving:
            return False
        confirmed = master.program.app.files.high_watermark
        return number in group["sync_state_set"] and machine.program.app.files.synced_position >= confirmed

    def look(self) -> None:
        """See what was mended."""
        world, group = self._world, self._world.group
        if self.wiped >= 0 and group is not None and self.wiped in group["sync_state_set"]:
            learned = world.learned(self.wiped)
            program = world.replicas[self.wiped].program
            if learned is not None and program is not None and learned.version == group["version"]:
                identity = program.app.role.identity.hex()
                if any(each["identity"] == identity for each in group["replicas"]):
                    self.wiped = -1
        if self.suspect >= 0 and self.has_all(self.suspect):
            self.suspect = -1
        self.rotten = [each for each in self.rotten if self._is_there(each)]
        self.derived = [each for each in self.derived if self._is_there(each)]
        self.files = [each for each in self.files if world.replicas[each.number].disk.contents(each.path) == each.after]

    def _is_there(self, damage: Damage) -> bool:
        """Whether any of its bytes is: one may have been mended that lies in another record."""
        content = (self._world.replicas[damage.number].disk.contents(damage.path) or b"")[damage.at :]
        return any(
            found == after != before for found, before, after in zip(content, damage.before, damage.after, strict=False)
        )

    def is_damaged(self, number: int, path: Path) -> bool:
        """Whether a replica's file is not what was written."""
        self.look()
        return any((each.number, each.path) == (number, path) for each in (*self.rotten, *self.derived)) or any(
            (each.number, each.path) == (number, path) for each in self.files
        )

    def overwrite(self, damage: Damage) -> None:
        """Have the bytes of a damage in the place of those that were written."""
        self._world.trace.add("fault", "damaged", damage.number, damage.path.name, damage.at, len(damage.after))
        self._world.replicas[damage.number].disk.overwrite(damage.path, damage.at, damage.after)

    def put(self, damage: FileDamage) -> None:
        """Have another file in the place of the one that was written."""
        self.files.append(damage)
        after = "gone" if damage.after is None else len(damage.after)
        before = "none" if damage.before is None else len(damage.before)
        self._world.trace.add("fault", "file", damage.number, damage.path, f"{before} -> {after}")
        self._world.replicas[damage.number].disk.put(damage.path, damage.after)

    def lose_power(self, number: int) -> None:
        """Power goes that keeps of a replica what it likes, and note what of the log's confirmed bytes is not what was
        written: a start reads only what is behind its last checkpoint.
        """
        machine, certain = self._world.replicas[number], self.certain()
        written = {path: data for path, data in machine.disk.files().items() if path.parent == DATA / "commitlog"}
        self._world.crash(machine, "power")
        for path, data in written.items():
            left = machine.disk.contents(path) or b""
            end = max(0, min(len(left), certain - int(path.stem)))
            for at in range(0, end, SECTOR_BYTES):
                before, after = (each[at : min(at + SECTOR_BYTES, end)] for each in (data, left))
                if before != after:
                    self.rotten.append(Damage(number, path, at, before, after))

    def remake_queues(self) -> None:
        """What a broker asks for whose queue stands still at a damaged entry: start it without its index files."""
        self.look()
        for damage in [each for each in self.derived if each.path.suffix == ".index"]:
            self._remove(damage.number, damage.path.parent)
            self.derived.remove(damage)
        for number in sorted(self.lied_to):
            self._remove(number, DATA / "queueindex")
        self.lied_to.clear()

    def _remove(self, number: int, folder: Path) -> None:
        machine = self._world.replicas[number]
        self._world.crash(machine)
        self._world.trace.add("fault", "removed", number, folder)
        for path in [path for path in machine.disk.files() if folder in path.parents]:
            machine.disk.put(path, None)

    def restore(self) -> None:
        """Put back the bytes that nobody has read since: nothing was to be seen of them."""
        self.look()
        for each in (*self.rotten, *self.derived):
            self._put_back(each)
        self.rotten, self.derived = [], []

    def _members_changed(self, members: set[int]) -> None:
        """Put back what is damaged of a replica that is alone in the set now, where the log's end would seem to be torn
        at its next start: no other one counts any more that has it.
        """
        for damage in [each for each in self.rotten if members == {each.number}]:
            if int(damage.path.stem) + damage.at + len(damage.after) > self._known_synced(damage.number):
                self._put_back(damage)
                self.rotten.remove(damage)

    def _before_deletion(self, number: int) -> None:
        """Put back what nobody will read any more, so that it is known what a replica had that may be alone."""
        for damage in [each for each in self.rotten if each.number == number]:
            self._put_back(damage)
            self.rotten.remove(damage)

    def _known_synced(self, number: int) -> int:
        """Up to here a replica knows after a restart that its log was on the device."""
        contents = self._world.replicas[number].disk.contents(DATA / "checkpoint")
        try:
            return 0 if contents is None else checkpoint_file.decode(contents).store.synced_position
        except (CorruptDataError, UnknownFormatError):
            return 0

    def _put_back(self, damage: Damage) -> None:
        self._world.trace.add("fault", "put back", damage.number, damage.path.name, damage.at)
        self._world.replicas[damage.number].disk.overwrite(damage.path, damage.at, damage.before)

    def excused(self, number: int, error: Exception | None) -> bool:
        """Whether a replica may say that it cannot go on; what it asked an operator for is done then."""
        if number < 0:
            return False
        machine = self._world.replicas[number]
        if isinstance(error, OSError) and number in self.device_fails:
            self._world.note_loss(machine)
            return True
        if not isinstance(error, CorruptDataError | UnknownFormatError):
            return False
        self.look()
        if number == self.suspect:
            self._world.loop.outside(0, self._replace_volume, number)
            return True
        derived = number in {each.number for each in self.derived} | {each.number for each in self.files}
        if derived and not machine.serving:
            # It would not start, and says that it has changed nothing: then what was there before must do.
            self._world.loop.outside(0, self._restore_files, number)
        rotten = [each for each in self.rotten if each.number == number]
        if rotten and not machine.serving and all(self._is_deleted_elsewhere(each) for each in rotten):
            # Nobody has those bytes any more, and the others have all that came after them.
            self._world.loop.outside(0, self.wipe, machine)
        return derived or bool(rotten)

    def _is_deleted_elsewhere(self, damage: Damage) -> bool:
        """Whether all other replicas are in the set, have everything, and have deleted what is damaged."""
        position = int(damage.path.stem) + damage.at
        others = [number for number in self._world.replicas if number != damage.number]
        return all(self.has_all(number) and self._starts_behind(number, position) for number in others)

    def _starts_behind(self, number: int, position: int) -> bool:
        program = self._world.replicas[number].program
        return program is not None and program.app.files.start_position > position

    def _restore_files(self, number: int) -> None:
        self._world.crash(self._world.replicas[number])
        for each in [each for each in self.files if each.number == number]:
            self._world.trace.add("fault", "restored", number, each.path)
            self._world.replicas[number].disk.put(each.path, each.before)
            self.files.remove(each)
        for damage in [each for each in self.derived if each.number == number]:
            self._put_back(damage)
            self.derived.remove(damage)

    def _replace_volume(self, number: int) -> None:
        """What an operator does with a replica that says that its log is not what it was: let it begin anew."""
        if number == self.suspect:
            self.wipe(self._world.replicas[number])
            self.suspect = -1

    def wipe(self, machine: Replica) -> None:
        """Put an empty volume in the place of a replica's."""
        number = self.number(machine)
        self._world.note_loss(machine)
        self._world.crash(machine)
        machine.disk.wipe()
        self.files = [each for each in self.files if each.number != number]
        self.wiped = number
        self._world.watch.wiped(machine.name)
        self._world.trace.add("fault", "wiped", number)

    def _synced(self, machine: Replica) -> int:
        program = machine.program
        return 0 if program is None else min(program.app.files.synced_position, program.app.files.high_watermark)
