"""Guard before each route of the admin API: callers need its role, and each change leaves a line."""

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
"""The limit of an answer that is read for its line: a longer one is told by its beginning alone."""
_SHOWN_BYTES_MAX = 1_000


@dataclass(slots=True)
class ChangeRecord:
    """Details that a route adds to the change log's line.

    Args:
        before: what there was, in words or as JSON; None: not known.
        after: what there is; None: what the answer says.
        is_dry_run: nothing is changed, so no line is left.
    """

    before: object = None
    after: object = None
    is_dry_run: bool = False


class Guard:
    """A dependency of all routes.

    Args:
        changes: takes the lines.
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
            note = note_of(request)
            note.is_dry_run = wanted.demand.dry_run_in_body and body.get("dry_run") is True
            before_answer(request.scope["state"], partial(self._answered, caller, wanted, body, note))
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
        note: ChangeRecord,
        status: int,
        answer: bytes,
    ) -> None:
        """Leave the line of a change."""
        if note.is_dry_run:
            return
        outcome, after = "done", _words(note.after)
        if status >= 400:
            said = _fields(answer)
            outcome, after = refused(str(said.get("code", status)), status), str(said.get("message", ""))
        elif note.after is None:
            after = answer[:_SHOWN_BYTES_MAX].decode(errors="replace")
        await self._changes.record(
            who=caller.name,
            address=caller.address,
            verb=wanted.demand.verb,
            object_=printable(wanted.object(body)),
            before=printable(_words(note.before)),
            after=printable(after),
            outcome=outcome,
        )


def note_of(request: Request) -> ChangeRecord:
    """The line of a request's change, to be added to."""
    state = request.scope.setdefault("state", {})
    note = state.setdefault("change_note", ChangeRecord())
    assert isinstance(note, ChangeRecord)
    return note


def _dry_run(
    request: Request, dry_run: bool = Query(default=False, description="Change nothing, say what would go.")
) -> bool:
    if dry_run:
        note_of(request).is_dry_run = True
    return dry_run


def _sees_data(request: Request) -> bool:
    return caller_in(request.scope.setdefault("state", {})).sees_data


Note = Annotated[ChangeRecord, Depends(note_of)]
"""The line of this request's change."""
DryRun = Annotated[bool, Depends(_dry_run)]
"""Change nothing, say what would go: `?dry_run=true`."""
SeesData = Annotated[bool, Depends(_sees_data)]
"""The caller may see bodies and properties."""


def without_data(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the API shows one, without what its sender alone may have meant for others to see.

    Keys and tags stay: by them operators look for messages.
    """
    return {**fields, "properties": {}, "body": "", "hidden": True}


def _fields(data: bytes) -> Mapping[str, object]:
    """The fields of a JSON object; none if it is something else."""
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
