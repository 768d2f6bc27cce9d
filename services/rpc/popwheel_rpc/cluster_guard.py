"""Guard of a service against calls of another cluster's processes: addresses are reused, also by other clusters."""

from collections.abc import Awaitable, Callable
from typing import Any

from popwheel_common.contract.cluster_id import CLUSTER_HEADER, check_same_cluster
from popwheel_common.errors import InconsistentClusterIdError
from popwheel_rpc.service import Call, Service

_ADVICE = "nothing was done. Give it the addresses of its own cluster's controllers; a proxy also if it is started anew"


def guard_by_cluster(service: Service, cluster_id: Callable[[], str], *, streams: bool) -> None:
    """Refuse calls that name another cluster, in all handlers that a service has by now.

    Args:
        service: its handlers are replaced.
        cluster_id: gives the id of the service's own cluster; empty while it knows of none, then all are let in.
        streams: guard streaming calls as well.
    """
    for path, (method, handler) in list(service.unary_handlers.items()):
        service.unary_handlers[path] = method, _guarded(handler, cluster_id)
    if streams:
        for path, (method, handler) in list(service.stream_handlers.items()):
            service.stream_handlers[path] = method, _guarded(handler, cluster_id)


def _guarded(
    handler: Callable[[Call, Any], Awaitable[Any]], cluster_id: Callable[[], str]
) -> Callable[[Call, Any], Awaitable[Any]]:
    def handle(call: Call, argument: Any) -> Awaitable[Any]:
        theirs = call.metadata.get(CLUSTER_HEADER)
        if theirs is not None and theirs != cluster_id():
            try:
                check_same_cluster(theirs, cluster_id(), f"the caller {call.peer}", _ADVICE)
            except InconsistentClusterIdError as error:
                return _refuse(error)
        return handler(call, argument)

    return handle


async def _refuse(error: InconsistentClusterIdError) -> Any:
    raise error
