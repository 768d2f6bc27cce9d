"""Holds what masters answer, and what they save, against what the sync-state set has at that moment.

An answer that comes too early costs nothing unless its master dies within milliseconds. So it is not waited for that to
happen: whatever a master promises, all members of the stored set must have by then, in the simulator's own sight.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from popwheel_broker.app import BrokerApp
from popwheel_broker.core import checkpoint as checkpoint_file
from popwheel_broker.core.checkpoint import Checkpoint, Row
from popwheel_broker.delay import timer_checkpoint
from popwheel_broker.options import BrokerOptions
from popwheel_common.contract.pop_answer import PopAnswer
from popwheel_common.contract.put import PutResult
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_controller.store.state_store import Document
from popwheel_rpc.methods import ACK, CHANGE_INVISIBLE, POP, PUT, RECALL
from popwheel_rpc.service import Call, UnaryHandler
from tests.sim.cluster.programs import Place
from tests.sim.process import ProcessDisk

_ANSWERED = (PUT, POP, ACK, CHANGE_INVISIBLE, RECALL)
"""Calls whose answers promise something."""
_SYNCED = (PUT, RECALL)
"""Of these also that it outlives a loss of power, with `flush: sync`."""
_COVERED: dict[str, Callable[[bytes], int]] = {
    "checkpoint": lambda data: checkpoint_file.decode(data).store.position,
    timer_checkpoint.NAME: lambda data: timer_checkpoint.decode(data).log_position,
}
"""Up to where in the log a file says that it covers it, by the file's name."""
_appended: ContextVar[list[int] | None] = ContextVar("appended", default=None)
"""Where the records end that the call at hand has appended."""


class _Life(NamedTuple):
    """A machine's latest process.

    Args:
        number: of the replica that it is.
        app: what runs in it.
    """

    number: int
    app: BrokerApp


class Promises:
    """Checks what each replica answers and saves.

    Args:
        options: of the brokers.
        broke: told what does not hold: the invariant's number, a sentence.
    """

    def __init__(self, options: BrokerOptions, broke: Callable[[str, str], None]) -> None:
        self._waits_for_set = options.replication.ack_mode == "sync_state_set"
        self._syncs = options.flush == "sync"
        self._broke = broke
        self._lives: dict[str, _Life] = {}
        self._received: dict[str, int] = {}
        """Up to where each machine has had the log once."""
        self._synced: dict[str, int] = {}
        """The same, on its device."""
        self._group: Document = {"epoch": 0, "master": -1, "sync_state_set": []}
        """The group's state that is stored."""
        self._promised = self._promised_synced = 0
        """Up to where the master of the stored epoch has promised the log, and that it is on the devices."""
        self.is_excused: Callable[[int], bool] = lambda number: False
        """Whether a replica may have lost what it had on its device."""
        self.on_answer: Callable[[int], None] = lambda number: None
        """Who hears that a replica promises something, just before the answer leaves."""

    def watch(self, name: str, number: int, app: BrokerApp, place: Place) -> None:
        """Look at a replica from now on, before it starts."""
        self.look()  # its last life may have ended at an operation, when nobody looked
        self._lives[name] = _Life(number, app)
        self._watch_answers(name, number, app)
        self._watch_files(name, number, app, place)

    def appended(self, end_position: int) -> None:
        """The call at hand has put records into the log that end here."""
        appended = _appended.get()
        if appended is not None:
            appended.append(end_position)

    def stored(self, group: Document) -> None:
        """The group's state has taken a step: who joins the set has all that was promised before, and so has who is
        elected, also where the store has lost the state before (S5).
        """
        before, self._group = self._group, group
        master = group["master"]
        if (group["epoch"], master) != (before["epoch"], before["master"]) and master >= 0:
            synced = max(
                (self._synced.get(name, 0) for name, life in self._lives.items() if life.number == master), default=0
            )
            if synced < self._promised_synced and not self.is_excused(master):
                self._broke(
                    "S5",
                    f"replica {master} is elected, and has never had more than {synced} on its device; "
                    f"{self._promised_synced} was promised to be on all",
                )
            self._promised = self._promised_synced = 0
            return
        for number in set(group["sync_state_set"]) - set(before["sync_state_set"]):
            following = [app for each, app in self._lives.values() if each == number and app.role.follower is not None]
            ends = [(app.files.end_position, app.files.synced_position) for app in following]
            has_all = any(end >= self._promised and synced >= self._promised_synced for end, synced in ends)
            if ends and not has_all and not self.is_excused(number):
                self._broke(
                    "S5",
                    f"replica {number} joins the set, and has received and synced up to {ends}; before that "
                    f"{self._promised} was promised, and {self._promised_synced} to be on all devices",
                )

    def look(self) -> None:
        """See how far all are."""
        for name, life in self._lives.items():
            files = life.app.files
            self._received[name] = max(self._received.get(name, 0), files.end_position)
            self._synced[name] = max(self._synced.get(name, 0), files.synced_position)

    def _watch_answers(self, name: str, number: int, app: BrokerApp) -> None:
        handlers = app.service.unary_handlers
        for each in _ANSWERED:
            method, handle = handlers[each.path]
            synced = self._syncs and each in _SYNCED

            async def answered(
                call: Call,
                request: object,
                what: str = each.name,
                synced: bool = synced,
                handle: UnaryHandler[object, object] = handle,
            ) -> object:
                ends: list[int] = []
                token = _appended.set(ends)
                try:
                    answer = await handle(call, request)
                finally:
                    _appended.reset(token)
                if ends and self._waits_for_set and _promises_something(answer):
                    self._check("P3", f"{name} answers a {what}", number, ends[-1], synced)
                self.on_answer(number)
                return answer

            handlers[each.path] = method, answered

    def _watch_files(self, name: str, number: int, app: BrokerApp, place: Place) -> None:
        disk = place.disk
        assert isinstance(disk, ProcessDisk)
        replace, device = disk.replace, disk.device

        def replaced(source: Path, target: Path) -> None:
            covered, leading = _COVERED.get(target.name), app.role.leader
            if covered is not None and leading is not None and not leading.has_ended:
                position = covered(device.contents(source) or b"")
                self._check("S6", f"{name} saves a {target.name}", number, position, True)
            replace(source, target)

        disk.replace = replaced  # type: ignore[method-assign]
        saved = app.files._saved
        append = saved._append

        async def appended(rows: Iterable[Row], head: Checkpoint) -> None:
            leading = app.role.leader
            if leading is not None and not leading.has_ended:
                self._check("S6", f"{name} saves a checkpoint", number, head.store.position, True)
            await append(rows, head)

        saved._append = appended  # type: ignore[method-assign]

    def _check(self, invariant: str, what: str, number: int, position: int, synced: bool) -> None:
        """All members of the set have, or had, the log up to a position."""
        self.look()
        has = self._synced if synced else self._received
        if number == self._group["master"]:
            self._promised = max(self._promised, position)
            self._promised_synced = max(self._promised_synced, position if synced else 0)
        for other in set(self._group["sync_state_set"]) - {number}:
            end = max((has[each] for each, life in self._lives.items() if life.number == other), default=0)
            if end < position and not self.is_excused(other):
                where = "on its device" if synced else "received"
                self._broke(
                    invariant, f"{what} that counts on {position}, and replica {other} has {where} only up to {end}"
                )


def _promises_something(answer: object) -> bool:
    """Whether an answer gives messages, or says that something was done: a refusal promises nothing."""
    match answer:
        case PopAnswer():
            return bool(answer.messages)
        case [*results]:
            return any(isinstance(each, PutResult) and each.code == Code.OK for each in results)
        case _:
            return True
