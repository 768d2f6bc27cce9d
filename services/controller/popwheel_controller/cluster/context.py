"""Parts that nearly all of a controller needs, made once."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from popwheel_common.clock import Clock
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.options import ControllerOptions


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """One controller's settings and surroundings.

    Args:
        options: settings.
        clock: the time.
        registry: where parts show metrics of their own.
        changes: takes a line of each change that somebody asks for.
        check_leads: raises StatusError while this controller may decide nothing.
    """

    options: ControllerOptions
    clock: Clock
    registry: CollectorRegistry
    changes: ChangeLog
    check_leads: Callable[[], None]
