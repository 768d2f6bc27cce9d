"""Observer from outside: who writes in which epoch, what is confirmed, which steps the group's state takes."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from popwheel_broker.app import BrokerApp
from popwheel_broker.log.record import StoredRecord
from popwheel_broker.options import BrokerOptions
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import SystemProperties
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaCheckpoint, TimerProgress
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, SyncStateSetRequest
from popwheel_controller.app import ControllerApp
from popwheel_controller.store.state_store import Document
from popwheel_rpc.methods import CHANGE_SYNC_STATE_SET, PUT, STORE_CHECKPOINT
from popwheel_rpc.service import Call
from tests.sim.cluster.programs import Place
from tests.sim.history import Disaster
from tests.sim.loop import SimLoop
from tests.sim.process import ProcessDisk
from tests.sim.replicas.promises import Promises
from tests.sim.trace import Trace

_READ_BYTES = 1 << 16


class Watch:
    """Holds the group against S4, S5, C1 and C4 while it runs.

    Args:
        loop: whose time it is.
        trace: what happens goes there.
        options: of the brokers.
    """

    def __init__(self, loop: SimLoop, trace: Trace, options: BrokerOptions) -> None:
        self.broken: list[str] = []
        """What does not hold, the invariant's number first."""
        self._appends: dict[tuple[int, int], tuple[int, float]] = {}
        self.end_position = 0
        """Where the last record that a master appended ends."""
        self.epochs: list[tuple[int, int, float]] = []
        """Each term by the store: epoch, number, when."""
        self.puts: dict[str, set[int]] = {}
        """Which topics of its name each message was put for, as masters and others were asked, by message id."""
        self.checkpoints: list[ReplicaCheckpoint] = []
        """All that were sent to slaves."""
        self.unclean = False
        """Whether an operator has allowed that acknowledged messages are lost."""
        self.rotten: Callable[[int], bool] = lambda number: False
        """Whether a replica's disk holds a flipped bit."""
        self.on_members: Callable[[set[int]], None] = lambda members: None
        """Who learns of each sync-state set that is stored."""
        self.promises = Promises(options, self._broke)
        self.before_deletion: Callable[[int], None] = lambda number: None
        """Who hears that a replica is about to delete old segments."""
        self._loop = loop
        self._trace = trace
        self._options = options
        self._strict = options.replication.ack_mode == "sync_state_set" and options.flush == "sync"
        self._writers: dict[int, tuple[str, int]] = {}
        self._living: dict[str, tuple[int, BrokerApp, Place]] = {}
        self._confirmed = bytearray()
        self._confirmed_from = 0
        self._compared: dict[str, int] = {}
        self._checkpoints: dict[str, tuple[int, int]] = {}

    def replica(self, number: int, place: Place) -> Callable[[BrokerApp], None]:
        """What looks at a replica before it starts."""

        def watch(app: BrokerApp) -> None:
            name = place.process.name
            self._living[name] = (number, app, place)
            self._compared.pop(name, None)
            self._watch_appends(name, app, place)
            self._watch_what_comes(name, app)
            self._watch_puts(app)
            self._watch_checkpoints(name, app)
            self._watch_deletions(name, number, app)
            self.promises.watch(name, number, app, place)

        return watch

    def controller(self, app: ControllerApp) -> None:
        """Look at a controller from now on: a set takes the place of the state that its master knew (C1)."""
        handlers = app.service.unary_handlers
        method, change = handlers[CHANGE_SYNC_STATE_SET.path]

        async def asked(call: Call, request: SyncStateSetRequest) -> object:
            answer = await change(call, request)
            assert isinstance(answer, BrokerGroup)
            if answer.version > request.version + 1:
                self._broke(
                    "C1", f"a master that knew version {request.version} changed its set in version {answer.version}"
                )
            return answer

        handlers[CHANGE_SYNC_STATE_SET.path] = method, asked

    def lease_taken(self, lease: Document, leading: Iterable[str]) -> None:
        """A controller has the lease now; nobody else may believe so (C1).

        Args:
            lease: as it is stored.
            leading: addresses of those that believe that they lead.
        """
        if others := set(leading) - {lease["address"]}:
            self._broke("C1", f"{others} believes that it leads, and {lease['address'] or 'nobody'} has the lease")

    def _watch_what_comes(self, name: str, app: BrokerApp) -> None:
        files = app.files
        append_raw = files.append_raw

        def appended(position: int, data: bytes) -> None:
            append_raw(position, data)
            following = app.role.follower
            if following is not None and files.epochs.latest > following.epoch:
                self._broke(
                    "S5",
                    f"{name} took records of epoch {files.epochs.latest}, though it follows epoch {following.epoch}",
                )

        files.append_raw = appended  # type: ignore[method-assign]

    def _watch_puts(self, app: BrokerApp) -> None:
        handlers = app.service.unary_handlers
        method, put = handlers[PUT.path]

        def asked(call: Call, runs: Sequence[MessageRun]) -> Awaitable[object]:
            for run in runs:
                for properties in run.system_properties:
                    message_id = SystemProperties.FromString(properties).message_id
                    self.puts.setdefault(message_id, set()).add(run.topic_id)
            return put(call, runs)

        handlers[PUT.path] = method, asked

    def _watch_checkpoints(self, name: str, app: BrokerApp) -> None:
        progressed = app.files.timer_progressed
        # A process that has just started knows of no version, but of epochs.
        self._checkpoints[name] = (self._checkpoints.get(name, (0, 0))[0], 0)

        def applied(high_watermark: int, progress: TimerProgress) -> None:
            progressed(high_watermark, progress)
            latest, before = (app.checkpoints.epoch, app.checkpoints.version), self._checkpoints[name]
            if latest < before:
                self._broke("C4", f"{name} has checkpoint {latest} after {before}")
            self._checkpoints[name] = latest

        app.files.timer_progressed = applied  # type: ignore[method-assign]
        method, store = app.service.unary_handlers[STORE_CHECKPOINT.path]

        async def stored(call: Call, given: ReplicaCheckpoint) -> object:
            self.checkpoints.append(given)
            return await store(call, given)

        app.service.unary_handlers[STORE_CHECKPOINT.path] = method, stored

    def _watch_deletions(self, name: str, number: int, app: BrokerApp) -> None:
        log, cleaner = app.files.log, app.files._cleaner
        delete_oldest = cleaner._delete_oldest

        def deleted(position: int) -> int:
            if position > log.start_position:
                self.before_deletion(number)
            self.look()  # what goes was confirmed, and is to be known
            count = delete_oldest(position)
            if count:
                self._trace.add(name, "deleted", log.start_position)
            return count

        cleaner._delete_oldest = deleted  # type: ignore[method-assign]

    def appends(self, log: Sequence[StoredRecord]) -> dict[int, tuple[int, float]]:
        """When the records of a log were appended, by position: wall clock of that machine, virtual time."""
        return {
            each.position: when for each in log if (when := self._appends.get((each.epoch, each.position))) is not None
        }

    def confirmed_before(self, position: int) -> bytes:
        """All that was confirmed up to a position, also what was deleted since; shorter if nobody has seen it."""
        return bytes(self._confirmed[:position])

    def lost_from(self, app: BrokerApp) -> int:
        """From which position on a replica's log lacks what others have appended: at its end, or where it parts from
        the log of an epoch that it has not learned of.
        """
        files = app.files
        unknown = [position for epoch, position in self._appends if epoch > files.epochs.latest]
        return min([files.end_position, *unknown])

    def was_felt(self, disaster: Disaster) -> bool:
        """Whether the replica that a disaster struck was the next one to lead: what it lost all others had, and one of
        those goes on with it.
        """
        later = [number for _, number, when in self.epochs if when > disaster.time_s] or [self.epochs[-1][1]]
        return disaster.replica in (-1, later[0])

    def wiped(self, name: str) -> None:
        """A machine's files are others than those it has written."""
        self._checkpoints.pop(name, None)

    def _watch_appends(self, name: str, app: BrokerApp, place: Place) -> None:
        disk = place.disk
        assert isinstance(disk, ProcessDisk)

        def appending(position: int, lengths: Sequence[int]) -> None:
            now = place.clock.wall_ms(), self._loop.time()
            epoch = app.files.core.store.epoch
            for length in lengths:  # noted first: the process may die when the bytes are written
                self._appends[epoch, position] = now
                position += length
            self.end_position = position
            me = (name, place.process.number)
            if self._writers.setdefault(epoch, me) != me:
                self._broke(
                    "S5",
                    f"{name} in its life {me[1]} writes in epoch {epoch}, as {self._writers[epoch]} did",
                )

        disk.appending, disk.appended = appending, self.promises.appended

    def group_changed(self, old: Document | None, new: Document) -> None:
        """The stored state of the group has taken a step (C1, S5)."""
        self._trace.add(
            "store",
            "group",
            f"v{new['version']}",
            f"epoch={new['epoch']}",
            f"master={new['master']}",
            new["sync_state_set"],
        )
        self.promises.stored(new)
        if old is None:
            self.epochs.append((new["epoch"], new["master"], self._loop.time()))
            return
        members, before = set(new["sync_state_set"]), set(old["sync_state_set"])
        self.on_members(members)
        if new["version"] <= old["version"]:
            self._broke("C1", f"version {new['version']} follows {old['version']}")
        if new["epoch"] < old["epoch"]:
            self._broke("C4", f"epoch {new['epoch']} follows {old['epoch']}")
        if new["epoch"] == old["epoch"] and new["master"] not in (old["master"], -1):
            self._broke("S5", f"in epoch {new['epoch']} replica {new['master']} is master after {old['master']}")
        if new["master"] >= 0 and new["master"] not in members:
            self._broke("C1", f"the master {new['master']} is not of the set {members}")
        known = {each["number"]: each["identity"] for each in old["replicas"]}
        for each in new["replicas"]:
            number, identity = each["number"], each["identity"]
            if number in members and known.get(number, identity) not in ("", identity) and not self.unclean:
                self._broke("S5", f"replica {number} is of the set, and came with another volume than it had")
        if new["epoch"] > old["epoch"]:
            self.epochs.append((new["epoch"], new["master"], self._loop.time()))
            if new["master"] not in before and not self.unclean:
                self._broke("S5", f"replica {new['master']} was elected, and the set was {before}")
        self.look()

    def look(self) -> None:
        """Hold what living replicas have confirmed against what was confirmed before (S4, S5)."""
        self.promises.look()
        if not self._strict or self.unclean:
            return
        for name, (number, app, place) in self._living.items():
            # A start folds what it finds and then has it synced; before that is done it counts for nothing.
            has_begun = bool(app.role.identity)
            if place.process.alive and has_begun and not app.failure.done() and not self.rotten(number):
                self._compare(name, app)

    def _compare(self, name: str, app: BrokerApp) -> None:
        log = app.files.log
        confirmed = min(app.files.high_watermark, log.end_position)
        at = max(self._compared.get(name, 0), log.start_position)
        if at > self._confirmed_from + len(self._confirmed):
            return  # what is between was deleted before anybody looked
        while at < confirmed:
            data = log.read(at, min(_READ_BYTES, confirmed - at))
            if not data:
                break
            known = bytes(self._confirmed[at : at + len(data)])
            if data[: len(known)] != known:
                first = next(index for index, pair in enumerate(zip(data, known, strict=False)) if pair[0] != pair[1])
                self._broke("S4", f"{name} has confirmed other bytes at {at + first} than were confirmed before")
                self._compared[name] = confirmed
                return
            self._confirmed += data[len(known) :]
            at += len(data)
        self._compared[name] = at

    def _broke(self, number: str, sentence: str) -> None:
        self._trace.add("watch", "broken", number, sentence)
        self.broken.append(f"{number}: {sentence}")
