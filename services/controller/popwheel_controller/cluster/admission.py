"""Decides who belongs to this cluster: brokers and proxies of another one are refused by name."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_common.contract.cluster_id import can_belong_to, check_same_cluster, checked_cluster_id
from popwheel_common.errors import InconsistentClusterIdError
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate
from popwheel_controller.cluster.state_keeper import StateKeeper

_LOGGED_MAX = 100
_POLL_S = 0.25

_logger = structlog.get_logger()


class Admission:
    """Compares the cluster ids of those who come with the cluster's own.

    Args:
        keeper: holds the cluster's state.
        refused: called for each who is refused.
        check_leads: raises StatusError while this controller does not lead.
    """

    def __init__(self, keeper: StateKeeper, refused: Callable[[], None], check_leads: Callable[[], None]) -> None:
        self._keeper = keeper
        self._refused = refused
        self._check_leads = check_leads
        self._logged: set[tuple[str, str]] = set()
        """Callers that were refused: they come again and again, and the log says it once."""

    def check(self, theirs: str, who: str, advice: str) -> None:
        """Refuse one of another cluster. A cluster without an id may be one whose state was lost: it lets in whoever
        belongs to a cluster of its name.

        Args:
            theirs: the id of the cluster that it belongs to; empty if it knows of none.
            who: is refused, as the sentence begins.
            advice: what is to be done, as the sentence ends.

        Raises:
            InconsistentClusterIdError: it belongs to another one.
            StatusError: BAD_REQUEST, that is no id.
        """
        checked_cluster_id(theirs)
        state = self._keeper.state
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
                _logger.error("one of another cluster is refused", reason=error.message)
            raise

    async def admit(self, theirs: str, who: str, advice: str) -> None:
        """Admit a broker. The first one gives a cluster its id, durably, before anything else is done for it.

        Raises:
            InconsistentClusterIdError, StatusError: as `check` says, or the id could not be stored.
        """
        self.check(theirs, who, advice)
        if not self._keeper.state.id:
            update = await self._identified(theirs)
            if update is not None:
                _logger.info("the cluster has its id", cluster=update.cluster.id, by=who)
            self.check(theirs, who, advice)  # another one may have been first

    async def _identified(self, cluster_id: str) -> ClusterUpdate | None:
        """Store the cluster's id. A store that hangs holds nobody here who is to look for another controller."""
        change = asyncio.ensure_future(self._keeper.change(lambda state: state.identify(cluster_id)))
        change.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be left to ask for it
        try:
            while not change.done():
                self._check_leads()
                await asyncio.wait((change,), timeout=_POLL_S)
        finally:
            change.cancel()  # it is carried out all the same, if it has begun
        return change.result()
