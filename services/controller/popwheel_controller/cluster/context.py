"""Dependencies that nearly all parts of a controller share."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from popwheel_common.clock import Clock
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.options import ControllerOptions


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Settings and environment of one controller.

    Args:
        options: settings.
        clock: the time.
        registry: for the metrics of each part.
        changes: the change log.
        check_leads: raises StatusError while this controller does not lead.
    """

    options: ControllerOptions
    clock: Clock
    registry: CollectorRegistry
    changes: ChangeLog
    check_leads: Callable[[], None]
