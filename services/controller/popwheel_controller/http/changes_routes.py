"""Routes of the admin API about who changed what: `/api/v1/changes`."""

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.change_log import ChangeLog
from popwheel_controller.cluster.changes import LINES_MAX, Change


class ChangeLine(BaseModel):
    """A change, or one that was refused."""

    id: str = Field(description="Id of the change; the place in the list.")
    time_ms: int = Field(description="When it was answered, in milliseconds since 1970.")
    who: str = Field(description="A token's name, `resource NAMESPACE/NAME`, `controller`, or an address.")
    address: str = Field(description="Where it came from; empty for the controller's own.")
    verb: str = Field(description="What was asked for, like `topic delete`.")
    object: str = Field(description="Of what.")
    before: str = Field(description="What there was; its beginning.")
    after: str = Field(description="What there is, or why it was refused; its beginning.")
    outcome: str = Field(description="`done`, `refused CODE`, or `failed CODE` where it may have happened.")
    times: int = Field(description="How often it was done, one after the other.")


class ChangeLines(BaseModel):
    """Page of changes, the latest first."""

    changes: list[ChangeLine] = Field(description="The changes of this page.")
    next: str | None = Field(description="To be given as `after` for those before; null if there are none.")


def changes_router(log: ChangeLog) -> Routes:
    """Return the route.

    Args:
        log: has the lines.
    """
    router = Routes(tags=["changes"])

    @router.get("/changes")
    async def list_changes(
        object: str = Query(default="", max_length=300, description="Of this alone."),  # noqa: A002 - as the field is
        who: str = Query(default="", max_length=300, description="By this one alone."),
        after: str = Query(default="", max_length=100, description="`next` of the previous page."),
        limit: int = Query(default=100, ge=1, le=LINES_MAX, description="Maximum number of entries."),
    ) -> ChangeLines:
        """List the last few hundred changes with their users, the latest first."""
        lines = _behind(await log.latest(), after)
        wanted = [each for each in lines if object in ("", each.object) and who in ("", each.who)]
        page = wanted[:limit]
        return ChangeLines(
            changes=[ChangeLine.model_validate(each, from_attributes=True) for each in page],
            next=page[-1].id if len(wanted) > limit else None,
        )

    return router


def _behind(lines: list[Change], after: str) -> list[Change]:
    """The lines behind the last one of a page.

    Raises:
        StatusError: BAD_REQUEST: that one is not there.
    """
    if not after:
        return lines
    place = next((place for place, each in enumerate(lines) if each.id == after), None)
    if place is None:
        raise StatusError(Code.BAD_REQUEST, "after: there is no such change (any more); begin with the latest again")
    return lines[place + 1 :]
