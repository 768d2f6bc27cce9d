"""Rights that each admin request demands, and its name in the change log (pure).

The keys are paths as the OpenAPI document has them, without `/api/v1`. A request that is not here takes who may
administer, and a test finds it (`tests/unit/controller/test_demands.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from popwheel_common.web.caller import Role
from popwheel_common.web.gate import BODY_BYTES_MAX
from popwheel_controller.http.new_message import REQUEST_BYTES_MAX

PREFIX: Final = "/api/v1"
_HOLE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Demand:
    """Rights that a request demands.

    Args:
        role: the least that a caller has to have.
        verb: what the change log says of it; empty if it changes nothing.
        object: of what, with parts of the path or fields of the body in braces.
        dry_run_in_body: the body may say `dry_run`: then it changes nothing.
        body_bytes_max: how long its body may be.
    """

    role: Role
    verb: str = ""
    object: str = "{name}"
    dry_run_in_body: bool = False
    body_bytes_max: int = BODY_BYTES_MAX


def _operate(
    verb: str, of: str = "{name}", *, dry_run_in_body: bool = False, body_bytes_max: int = BODY_BYTES_MAX
) -> Demand:
    return Demand(Role.OPERATE, verb, of, dry_run_in_body, body_bytes_max)


def _administer(verb: str, of: str = "{name}", *, dry_run_in_body: bool = False) -> Demand:
    return Demand(Role.ADMINISTER, verb, of, dry_run_in_body)


_READ: Final = Demand(Role.READ)

DEMANDS: Final[Mapping[tuple[str, str], Demand]] = {
    ("GET", "/activity/groups"): _READ,
    ("GET", "/activity/history"): _READ,
    ("GET", "/activity/overview"): _READ,
    ("GET", "/activity/topics"): _READ,
    ("GET", "/brokers"): _READ,
    ("GET", "/brokers/{group}"): _READ,
    ("GET", "/brokers/{group}/history"): _READ,
    ("GET", "/changes"): _READ,
    ("GET", "/clients"): _READ,
    ("GET", "/clients/{client_id}"): _READ,
    ("GET", "/cluster"): _READ,
    ("GET", "/cluster/status"): _READ,
    ("GET", "/debug/page"): Demand(Role.ADMINISTER),
    ("GET", "/debug/processes"): Demand(Role.ADMINISTER),
    ("GET", "/groups"): _READ,
    ("GET", "/groups/{name}"): _READ,
    ("GET", "/groups/{name}/balance"): _READ,
    ("GET", "/groups/{name}/dead-letters"): _READ,
    ("GET", "/groups/{name}/dead-letters/export"): _READ,
    ("GET", "/groups/{name}/dead-letters/{broker}"): _READ,
    ("GET", "/groups/{name}/dead-letters/{broker}/{offset}"): _READ,
    ("GET", "/groups/{name}/progress"): _READ,
    ("GET", "/inflight"): _READ,
    ("GET", "/inflight/summary"): _READ,
    ("GET", "/messages"): _READ,
    ("GET", "/messages/{message_id}"): _READ,
    ("GET", "/messages/{message_id}/events"): _READ,
    ("GET", "/polls"): _READ,
    ("GET", "/quarantine"): _READ,
    ("GET", "/quarantine/{broker}/{id}"): _READ,
    ("GET", "/settings"): Demand(Role.ADMINISTER),
    ("GET", "/timers"): _READ,
    ("GET", "/timers/histogram"): _READ,
    ("GET", "/timers/stats"): _READ,
    ("GET", "/topics"): _READ,
    ("GET", "/topics/{name}"): _READ,
    ("GET", "/topics/{name}/browse"): _READ,
    ("GET", "/topics/{name}/lite-topics"): _READ,
    ("GET", "/topics/{name}/tail"): _READ,
    ("GET", "/trouble"): _READ,
    ("POST", "/brokers/{group}/switchover"): _operate("broker switchover", "{group}"),
    ("POST", "/groups/{name}/dead-letters/{broker}/redrive"): _operate("dlq redrive"),
    ("POST", "/groups/{name}/dead-letters/redrive"): _operate("dlq redrive", dry_run_in_body=True),
    ("POST", "/groups/{name}/pause"): _operate("group pause"),
    ("POST", "/groups/{name}/resume"): _operate("group resume"),
    ("POST", "/groups/{name}/reset"): _operate("offset reset", dry_run_in_body=True),
    ("POST", "/inflight/release"): _operate(
        "inflight release", "{broker}/{topic}/{queue_id}/{queue_offset}", dry_run_in_body=True
    ),
    ("POST", "/quarantine/{broker}/{id}/retry"): _operate("quarantine retry", "{broker}/{id}"),
    ("POST", "/topics/{name}/messages"): _operate("message send", body_bytes_max=REQUEST_BYTES_MAX),
    ("POST", "/topics/{name}/pause"): _operate("topic pause"),
    ("POST", "/topics/{name}/resume"): _operate("topic resume"),
    ("POST", "/timers/recall"): _operate("timer recall", "{topic}"),
    ("DELETE", "/groups/{name}"): _administer("group delete"),
    ("DELETE", "/topics/{name}"): _administer("topic delete"),
    ("POST", "/brokers/{group}/forget"): _administer("broker forget", "{group}"),
    ("POST", "/brokers/{group}/kill-master"): _administer("drill kill-master", "{group}"),
    ("POST", "/brokers/{group}/unclean-election"): _administer("broker elect-unclean", "{group}"),
    ("PATCH", "/groups/{name}"): _administer("group update"),
    ("PATCH", "/topics/{name}"): _administer("topic update"),
    ("POST", "/cluster/recovery"): _administer("cluster recover", ""),
    ("POST", "/definitions"): _administer("definitions apply", ""),
    ("POST", "/groups"): _administer("group create"),
    ("POST", "/groups/{name}/dead-letters/purge"): _administer("dlq purge", dry_run_in_body=True),
    ("POST", "/quarantine/{broker}/{id}/drop"): _administer("quarantine drop", "{broker}/{id}"),
    ("POST", "/topics"): _administer("topic create"),
}


@dataclass(frozen=True, slots=True)
class Demanded:
    """A demand, and the request that makes it.

    Args:
        demand: of it.
        parts: the parts of the path that stand for names.
    """

    demand: Demand
    parts: Mapping[str, str]

    def object(self, body: Mapping[str, object]) -> str:
        """The object of the change; a field that the body does not have is empty."""
        return _HOLE.sub(lambda hole: str(self.parts.get(hole[1], body.get(hole[1], ""))), self.demand.object)


def demanded(method: str, path: str) -> Demanded:
    """Return the rights that a request demands.

    Args:
        method: of HTTP.
        path: with `/api/v1`.
    """
    below = path.removeprefix(PREFIX)
    for (its_method, template), demand in DEMANDS.items():
        if its_method == method and (match := _pattern(template).fullmatch(below)):
            return Demanded(demand, match.groupdict())
    return Demanded(Demand(Role.ADMINISTER, f"{method} {below}", ""), {})


def body_limit(method: str, path: str) -> int:
    """Return the limit of a request's body, in bytes; the default for paths outside the admin API."""
    longer = (each for each, demand in DEMANDS.items() if demand.body_bytes_max > BODY_BYTES_MAX)
    if any(method == each and _pattern(PREFIX + template).fullmatch(path) for each, template in longer):
        return demanded(method, path).demand.body_bytes_max
    return BODY_BYTES_MAX


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """A template's paths; made once for each that there is."""
    return re.compile(_HOLE.sub(r"(?P<\1>[^/]+)", template))
