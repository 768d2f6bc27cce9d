"""Dashboards, the overview first."""

from typing import Final

from tools.dashboards.board import Board
from tools.dashboards.overview import OVERVIEW
from tools.dashboards.pop import POP
from tools.dashboards.proxies import PROXIES
from tools.dashboards.replication import REPLICATION
from tools.dashboards.timers import TIMERS
from tools.dashboards.upkeep import UPKEEP

BOARDS: Final[tuple[Board, ...]] = (OVERVIEW, POP, TIMERS, PROXIES, REPLICATION, UPKEEP)
