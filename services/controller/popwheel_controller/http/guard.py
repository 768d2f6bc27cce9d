"""Guard before each route of the admin API: checks the caller's role, and logs each change."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.before_answer import before_answer
from popwheel_common.web.caller import Caller, caller_in
from popwheel_common.web.refusals import printable
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.changes import refused
from popwheel_controller.http.demands import Demanded, demanded

_SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_READ_BYTES_MAX = 100_000
"""Limit of an answer that is parsed for its line; of a longer one the line has the beginning only."""
_SHOWN_BYTES_MAX = 1_000


@dataclass(slots=True)
class ChangeRecord:
    """Details that a route adds to the change log's line.

    Args:
        before: state before the change, in words or as JSON; None: not known.
        after: state after the change; None: as in the answer.
        is_dry_run: nothing is changed, so no line is written.
    """

    before: object = None
    after: object = None
    is_dry_run: bool = False


class Guard:
    """Dependency of all routes.

    Args:
        changes: the change log.
    """

    def __init__(self, changes: ChangeLog) -> None:
        self._changes = changes

    async def __call__(self, request: Request) -> None:
        """Check a request.

        Raises:
            StatusError: FORBIDDEN: the caller's role does not allow it.
        """
        caller, wanted = caller_in(request.scope.setdefault("state", {})), demanded(request.method, request.url.path)
        if request.method not in _SAFE:
            body = _fields(await request.body())
            change_record = record_of(request)
            change_record.is_dry_run = wanted.demand.dry_run_in_body and body.get("dry_run") is True
            before_answer(request.scope["state"], partial(self._answered, caller, wanted, body, change_record))
        if caller.role < wanted.demand.role:
            raise StatusError(
                Code.FORBIDDEN,
                f"{caller.name} may {caller.role.name.lower()}; {request.method} {request.url.path} takes a token that "
                f"may {wanted.demand.role.name.lower()} (access.token_file)",
            )

    async def _answered(
        self,
        caller: Caller,
        wanted: Demanded,
        body: Mapping[str, object],
        change_record: ChangeRecord,
        status: int,
        answer: bytes,
    ) -> None:
        """Write the line of a change."""
        if change_record.is_dry_run:
            return
        outcome, after = "done", _words(change_record.after)
        if status >= 400:
            said = _fields(answer)
            outcome, after = refused(str(said.get("code", status)), status), str(said.get("message", ""))
        elif change_record.after is None:
            after = answer[:_SHOWN_BYTES_MAX].decode(errors="replace")
        await self._changes.record(
            who=caller.name,
            address=caller.address,
            verb=wanted.demand.verb,
            object_=printable(wanted.object(body)),
            before=printable(_words(change_record.before)),
            after=printable(after),
            outcome=outcome,
        )


def record_of(request: Request) -> ChangeRecord:
    """Return the record of a request's change, to be completed by the route."""
    state = request.scope.setdefault("state", {})
    change_record = state.setdefault("change_note", ChangeRecord())
    assert isinstance(change_record, ChangeRecord)
    return change_record


def _dry_run(
    request: Request, dry_run: bool = Query(default=False, description="Change nothing, only report the result.")
) -> bool:
    if dry_run:
        record_of(request).is_dry_run = True
    return dry_run


def _sees_data(request: Request) -> bool:
    return caller_in(request.scope.setdefault("state", {})).sees_data


RecordedChange = Annotated[ChangeRecord, Depends(record_of)]
"""Record of this request's change."""
DryRun = Annotated[bool, Depends(_dry_run)]
"""Change nothing, only report the result: `?dry_run=true`."""
SeesData = Annotated[bool, Depends(_sees_data)]
"""True if the caller may see bodies and properties."""


def without_data(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without body and properties, which the caller may not see.

    Keys and tags stay: operators search by them.
    """
    return {**fields, "properties": {}, "body": "", "hidden": True}


def _fields(data: bytes) -> Mapping[str, object]:
    """Return the fields of a JSON object; none for other values."""
    if len(data) > _READ_BYTES_MAX:
        return {}
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _words(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
