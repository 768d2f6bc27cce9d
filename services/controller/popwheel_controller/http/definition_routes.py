"""Routes that define topics and groups: one is changed in place, or some are made and changed as a list says."""

from typing import Any

from popwheel_common.web.routes import Routes
from popwheel_controller.http.definition_shapes import DefinitionList, GroupChange, Outcome, Outcomes, TopicChange
from popwheel_controller.http.definitions import Definition, Definitions
from popwheel_controller.http.guard import DryRun
from popwheel_controller.http.path_parts import GroupName, TopicName
from popwheel_controller.http.refusal import refusal

_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("Invalid value."),
    409: refusal("This one can't become so, or not now; the message says why."),
    429: refusal("The limit of the cluster, or of a broker, is reached."),
}
_REFUSED_ONE: dict[int | str, dict[str, Any]] = {**_REFUSED, 404: refusal("It does not exist.")}


def definition_router(definitions: Definitions) -> Routes:
    """Return the routes.

    Args:
        definitions: carries them out.
    """
    router = Routes()

    async def define(some: list[Definition], dry_run: bool) -> list[Outcome]:
        found = await (definitions.preview(some) if dry_run else definitions.apply(some))
        return [each.outcome() for each in found]

    async def alter(one: Definition, dry_run: bool) -> Outcome:
        (found,) = await (definitions.preview([one]) if dry_run else definitions.apply([one]))
        if found.error is not None:
            raise found.error
        return found.outcome()

    @router.patch("/topics/{name}", tags=["topics"], responses=_REFUSED_ONE)
    async def alter_topic(wanted: TopicChange, dry_run: DryRun, name: TopicName) -> Outcome:
        """Change the given settings of a topic, all of them or none; its messages stay."""
        return await alter(Definition(name, wanted.settings(), may_be_made=False), dry_run)

    @router.patch("/groups/{name}", tags=["groups"], responses=_REFUSED_ONE)
    async def alter_group(wanted: GroupChange, dry_run: DryRun, name: GroupName) -> Outcome:
        """Change the given settings of a consumer group, all of them or none; its progress stays."""
        return await alter(Definition(name, wanted.settings(), may_be_made=False), dry_run)

    @router.post("/definitions", tags=["definitions"], responses=_REFUSED)
    async def define_many(wanted: DefinitionList, dry_run: DryRun) -> Outcomes:
        """Create or change topics and groups so that they match the given definitions: all of them, or none.

        Nothing is ever deleted. A dry run shows each that would be refused.
        """
        topics = [Definition(each.name, each.settings()) for each in wanted.topics]
        groups = [Definition(each.name, each.settings()) for each in wanted.groups]
        return Outcomes(outcomes=await define([*topics, *groups], dry_run))

    return router
