"""State of one broker group, and its legal changes (pure; DESIGN 6, docs/internals/replication.md).

A change makes a new value; `follow_up` increments its version and refuses illegal values, whoever decided them. The
store accepts it only as the successor of the version that it was made from (C1).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from popwheel_controller.store.state_store import Document, damaged

NO_MASTER = -1


class IllegalStepError(Exception):
    """Change that would violate an invariant of a broker group; it was not made. The message names the invariant."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """Stored record of one replica.

    Args:
        number: within its group.
        address: its latest host:port.
        identity: random id of its data folder; another id means that its data is gone. Empty: not known.
    """

    number: int
    address: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class GroupState:
    """Immutable state of a broker group at one version.

    Args:
        name: of the group.
        version: counts every change.
        epoch: of the latest master.
        master: its number, or `NO_MASTER`.
        sync_state_set: the replicas with every acknowledged message; never empty, includes the master.
        replicas: all that ever registered, by number, except those that an operator removed.
    """

    name: str
    version: int
    epoch: int
    master: int
    sync_state_set: frozenset[int]
    replicas: Mapping[int, ReplicaRecord]

    def with_replica(self, record: ReplicaRecord) -> "GroupState":
        """Add or update a registered replica: new, at a new address, or with a wiped volume.

        A wiped one leaves the sync-state set: what it acknowledged is gone. If it was the only member, the old record
        stays: no replica counts as a member until that volume returns or an operator decides.
        """
        known = self.replicas.get(record.number)
        if known == record:
            return self
        if known is None or not is_wiped(known, record.identity):
            return replace(self, replicas={**self.replicas, record.number: record})
        master = NO_MASTER if self.master == record.number else self.master
        remaining = self.sync_state_set - {record.number}
        if not remaining:
            return replace(self, master=NO_MASTER)
        return replace(self, master=master, sync_state_set=remaining, replicas={**self.replicas, record.number: record})

    def elected(self, number: int) -> "GroupState":
        """Begin the next epoch with a member of the sync-state set as master and only member."""
        return replace(self, epoch=self.epoch + 1, master=number, sync_state_set=frozenset((number,)))

    def elected_unclean(self, record: ReplicaRecord, seen_epoch: int, seen_version: int) -> "GroupState":
        """Begin a new epoch with any replica as master, by an operator's confirmation: messages that it lacks are lost.

        Args:
            record: current record of the replica.
            seen_epoch: the latest epoch that this replica has seen; it may be unknown here.
            seen_version: likewise the latest version.
        """
        return replace(
            self,
            version=max(self.version, seen_version),
            epoch=max(self.epoch, seen_epoch) + 1,
            master=record.number,
            sync_state_set=frozenset((record.number,)),
            replicas={**self.replicas, record.number: record},
        )

    def resigned(self) -> "GroupState":
        """Return the state without a master; the members of the set may lead later."""
        return replace(self, master=NO_MASTER)

    def without_replica(self, number: int) -> "GroupState":
        """Remove a replica; if it returns, it counts as a new one."""
        return replace(self, replicas={n: record for n, record in self.replicas.items() if n != number})

    def with_sync_state_set(self, epoch: int, master: int, version: int, members: Iterable[int]) -> "GroupState":
        """Set the sync-state set that the master requests.

        Args:
            epoch: epoch of the requesting master.
            master: its number.
            version: version of the state that it has seen.
            members: the new set.

        Raises:
            StatusError: PRECONDITION_FAILED if it is not the master, or does not know the latest state; BAD_REQUEST for
                a set that cannot be.
        """
        if (epoch, master) != (self.epoch, self.master):
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"replica {master} is not the master of {self.name} in epoch {epoch}: {self._led_by()}",
            )
        if version != self.version:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"the state of {self.name} is at version {self.version}, not {version}; look at it and ask again",
            )
        wanted = frozenset(members)
        if master not in wanted:
            raise StatusError(Code.BAD_REQUEST, f"the sync-state set of {self.name} must hold its master, {master}")
        if unknown := wanted - self.replicas.keys():
            raise StatusError(Code.BAD_REQUEST, f"{self.name} has no replica {', '.join(map(str, sorted(unknown)))}")
        return replace(self, sync_state_set=wanted)

    def is_wiped(self, number: int, identity: bytes) -> bool:
        """Return whether the replica of this number has lost its data, given its identity."""
        known = self.replicas.get(number)
        return known is not None and is_wiped(known, identity)

    def message(self, living: Collection[int] = ()) -> BrokerGroup:
        """Return the message that replicas get.

        Args:
            living: numbers of the replicas that are neither dead nor about to leave.
        """
        return BrokerGroup(
            name=self.name,
            version=self.version,
            epoch=self.epoch,
            master=self.master,
            sync_state_set=sorted(self.sync_state_set),
            replicas=[
                Replica(number=number, address=record.address, identity=record.identity, alive=number in living)
                for number, record in sorted(self.replicas.items())
            ],
        )

    def _led_by(self) -> str:
        return "it has none now" if self.master == NO_MASTER else f"that is replica {self.master} in epoch {self.epoch}"


def unknown_group(name: str) -> StatusError:
    """Return the error for an unknown group."""
    return StatusError(Code.NOT_FOUND, f"there is no broker group {name}")


def is_wiped(known: ReplicaRecord, identity: bytes) -> bool:
    """Return whether the identity differs from that of the recorded volume."""
    return bool(known.identity) and known.identity != identity


def in_short(state: GroupState) -> str:
    """Summarize a broker group for the change log."""
    master = "no master" if state.master == NO_MASTER else f"master {state.master}"
    members, replicas = (", ".join(map(str, sorted(each))) for each in (state.sync_state_set, state.replicas))
    return f"{master}, epoch {state.epoch}, in sync {members}, replicas {replicas}"


def follow_up(old: GroupState | None, new: GroupState, *, forced: bool = False, removes: bool = False) -> GroupState:
    """Return the new state with the next version.

    Args:
        old: the stored state; None if there is none.
        new: its successor, still of the same version; or of a higher version, which replicas have seen and this store
            has not: then it was made from their reports.
        forced: whether an operator chose a master from outside the set.
        removes: whether an operator removes a replica.

    Raises:
        IllegalStepError: the new state must never follow the old one.
    """
    known = new.version if old is None else old.version
    forced = forced or new.version > known
    new = replace(new, version=new.version + 1)
    check_state(new)
    if old is None:
        return new
    _require(new.name == old.name, "a group keeps its name")
    _require(new.version > old.version, "versions grow")
    _require(removes or new.replicas.keys() >= old.replicas.keys(), "replicas are not forgotten")
    _require(new.epoch >= old.epoch, "epochs grow")
    if new.epoch == old.epoch:
        _require(new.master in (old.master, NO_MASTER), "a new master begins a new epoch")
        if new.master == NO_MASTER:
            _require(new.sync_state_set <= old.sync_state_set, "without a master nobody joins the set")
    else:
        _require(new.sync_state_set == {new.master}, "an epoch begins with its master alone in the set")
        _require(forced or new.epoch == old.epoch + 1, "an epoch follows the one before")
        _require(forced or new.master in old.sync_state_set, "a master is chosen from the set")
    return new


def check_state(state: GroupState) -> None:
    """Check the invariants of a state.

    Raises:
        IllegalStepError: an invariant is violated.
    """
    _require(state.version >= 1 and state.epoch >= 1, "versions and epochs begin with 1")
    _require(bool(state.sync_state_set), "the set is never empty")
    _require(state.sync_state_set <= state.replicas.keys(), "the set holds known replicas")
    _require(state.master == NO_MASTER or state.master in state.sync_state_set, "the set holds the master")
    _require(all(number == record.number >= 0 for number, record in state.replicas.items()), "numbers are as recorded")


def group_document(state: GroupState) -> Document:
    """Return the document that stores a broker group."""
    return {
        "name": state.name,
        "version": state.version,
        "epoch": state.epoch,
        "master": state.master,
        "sync_state_set": sorted(state.sync_state_set),
        "replicas": [
            {"number": number, "address": record.address, "identity": record.identity.hex()}
            for number, record in sorted(state.replicas.items())
        ],
    }


def group_of(document: Document, source: str) -> GroupState:
    """Read a broker group from its document; `source` names the place for errors.

    Raises:
        CorruptDataError: it is not a broker group, or an illegal one.
    """
    try:
        records = [
            ReplicaRecord(int(replica["number"]), str(replica["address"]), bytes.fromhex(replica["identity"]))
            for replica in document["replicas"]
        ]
        state = GroupState(
            name=str(document["name"]),
            version=int(document["version"]),
            epoch=int(document["epoch"]),
            master=int(document["master"]),
            sync_state_set=frozenset(map(int, document["sync_state_set"])),
            replicas={record.number: record for record in records},
        )
        check_state(state)
    except (KeyError, TypeError, ValueError, AttributeError, IllegalStepError) as error:
        raise damaged(source, error) from error
    return state


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise IllegalStepError(rule)
