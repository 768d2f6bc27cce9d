"""Admission of brokers and proxies: those of another cluster are refused."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_common.contract.cluster_id import can_belong_to, check_same_cluster, checked_cluster_id
from popwheel_common.errors import InconsistentClusterIdError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.state_writer import StateWriter

_LOGGED_MAX = 100
_POLL_S = 0.25

_logger = structlog.get_logger()


class Admission:
    """Compares the cluster ids of callers with this cluster's.

    Args:
        state_writer: of the cluster's state.
        refused: called for each refused caller.
        check_leads: raises StatusError while this controller does not lead.
    """

    def __init__(self, state_writer: StateWriter, refused: Callable[[], None], check_leads: Callable[[], None]) -> None:
        self._state_writer = state_writer
        self._refused = refused
        self._check_leads = check_leads
        self._logged: set[tuple[str, str]] = set()
        """Refused callers: they retry for ever, and each is logged once."""

    def check(self, theirs: str, who: str, advice: str) -> None:
        """Refuse a caller of another cluster. A cluster without an id may have lost its state, so it admits callers of
        any cluster of its name.

        Args:
            theirs: id of the caller's cluster; empty if it has none yet.
            who: the caller, as the error begins.
            advice: what to do, as the error ends.

        Raises:
            InconsistentClusterIdError: the caller belongs to another cluster.
            StatusError: BAD_REQUEST for an invalid id.
        """
        checked_cluster_id(theirs)
        state = self._state_writer.state
        ours = state.id
        if not ours and theirs and not can_belong_to(theirs, state.name):
            ours = f"{state.name}, which has no broker yet"
        try:
            check_same_cluster(theirs, ours, who, advice)
        except InconsistentClusterIdError as error:
            self._refused()
            if (who, theirs) not in self._logged:
                if len(self._logged) >= _LOGGED_MAX:
                    self._logged.clear()
                self._logged.add((who, theirs))
                _logger.error("a process of another cluster was refused", reason=error.message)
            raise

    async def admit(self, theirs: str, who: str, advice: str) -> None:
        """Admit a broker. The first one gives the cluster its id, which is stored before the broker is served.

        Raises:
            InconsistentClusterIdError, StatusError: as `check` says, or the id could not be stored.
        """
        self.check(theirs, who, advice)
        if not self._state_writer.state.id:
            update = await self._identified(theirs)
            if update is not None:
                _logger.info("the cluster has its id", cluster=update.cluster.id, by=who)
            self.check(theirs, who, advice)  # another one may have been first

    async def _identified(self, cluster_id: str) -> ClusterUpdate | None:
        """Store the cluster's id; if the store hangs, release the caller, so that it can try another controller."""
        change = asyncio.ensure_future(self._state_writer.change(lambda state: state.identify(cluster_id)))
        change.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        try:
            while not change.done():
                self._check_leads()
                await asyncio.wait((change,), timeout=_POLL_S)
        finally:
            change.cancel()  # it is carried out all the same, if it has begun
        return change.result()
