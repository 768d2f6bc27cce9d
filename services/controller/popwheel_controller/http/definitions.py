"""Carries out what callers define: topics and groups are made, or changed to be as they say, some at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_common.contract.topic_settings import TOPIC_SETTINGS
from popwheel_common.errors import StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_controller.cluster.alteration import (
    GroupSettings,
    TopicSettings,
    alter_group,
    alter_topic,
    define_group,
    define_topic,
)
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.state_writer import Decision, StateWriter
from popwheel_controller.http.definition_shapes import FieldChange, Kind, Outcome, facts_of
from popwheel_controller.http.use_checks import UseChecks
from popwheel_controller.options import ControllerOptions

ENTRIES_MAX: Final = 50
"""Topics and groups of one call: they are decided in one turn of the message loop, and saved by one write."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of one topic or group.

    Args:
        name: its name.
        settings: what it is to be like.
        may_be_made: whether it is made if it is not there; else it is refused.
    """

    name: str
    settings: TopicSettings | GroupSettings
    may_be_made: bool = True

    @property
    def kind(self) -> Kind:
        """Kind of the definition."""
        return "topic" if isinstance(self.settings, TopicSettings) else "group"


@dataclass(frozen=True, slots=True)
class Defined:
    """Result of a definition.

    Args:
        definition: what was asked for.
        before: what was there; None if nothing was.
        after: what is there then; None if it is refused and nothing was.
        error: why it is refused; None if it is not.
    """

    definition: Definition
    before: Topic | Group | None
    after: Topic | Group | None
    error: StatusError | None = None

    def outcome(self) -> Outcome:
        """Return the outcome as callers are shown it."""
        changes = _changes(self.before, self.after) if self.before is not None and self.after is not None else []
        made = self.before is None
        return Outcome(
            kind=self.definition.kind,
            name=self.definition.name,
            outcome="refused" if self.error else "created" if made else "changed" if changes else "unchanged",
            changes=changes,
            settings={} if self.after is None else facts_of(self.after),
            code=None if self.error is None else code_name(self.error.code),
            message=None if self.error is None else self.error.message,
        )


class Definitions:
    """Makes and changes topics and groups.

    Args:
        options: limits and defaults.
        state_writer: of the cluster's state.
        checks: asks the brokers.
    """

    def __init__(self, options: ControllerOptions, state_writer: StateWriter, checks: UseChecks) -> None:
        self._options = options
        self._state_writer = state_writer
        self._checks = checks

    async def preview(self, definitions: Sequence[Definition]) -> list[Defined]:
        """Return the outcomes of definitions; nothing is changed.

        Raises:
            StatusError: BAD_REQUEST, they are too many, or one name is defined twice.
        """
        _check(definitions)
        state, found = self._state_writer.state, []
        updates: dict[int, tuple[ClusterState, ClusterUpdate]] = {}
        for number, definition in enumerate(definitions):
            before = _there(state, definition)
            try:
                update = self._decision(definition)(state)
            except StatusError as error:
                found.append(Defined(definition, before, before, error.with_traceback(None)))
                continue
            after = before
            if update is not None:
                updates[number] = (state, update)
                state = state.after(update)
                after = _there(state, definition)
            found.append(Defined(definition, before, after))
        for number, refused in zip(updates, await self._checks.refusals([*updates.values()]), strict=True):
            if refused is not None:
                one = found[number]
                found[number] = Defined(one.definition, one.before, one.before, refused)
        return found

    async def apply(self, definitions: Sequence[Definition]) -> list[Defined]:
        """Make all of it so, or nothing.

        Only where somebody else changes the same meanwhile, or the store fails, may some of it be done and the rest
        not. To ask once more does no harm then.

        Raises:
            StatusError: why the first that is refused is; or as `StateWriter.change_all` does.
        """
        found = await self.preview(definitions)
        refused = [each for each in found if each.error is not None]
        if refused and (error := refused[0].error) is not None:
            if len(definitions) == 1:
                raise error
            one = refused[0].definition
            raise StatusError(
                error.code,
                f"{one.kind} {one.name}: {error.message} ({len(refused)} of {len(found)} are refused, and nothing was "
                "changed)",
            )
        wanted = [number for number, each in enumerate(found) if each.before != each.after]
        updates = await self._state_writer.change_all([self._decision(found[number].definition) for number in wanted])
        for number, update in zip(wanted, updates, strict=True):
            if update is not None:
                after = update.topics[0] if update.topics else update.groups[0]
                found[number] = Defined(found[number].definition, found[number].before, after)
        return found

    def _decision(self, definition: Definition) -> Decision:
        options, name, settings, may = self._options, definition.name, definition.settings, definition.may_be_made
        if isinstance(settings, TopicSettings):
            topic: TopicSettings = settings
            return lambda s: define_topic(s, options, name, topic) if may else alter_topic(s, name, topic)
        group: GroupSettings = settings
        return lambda s: define_group(s, options, name, group) if may else alter_group(s, name, group)


def _check(definitions: Sequence[Definition]) -> None:
    if len(definitions) > ENTRIES_MAX:
        raise StatusError(
            Code.BAD_REQUEST,
            f"{len(definitions)} topics and groups are more than the {ENTRIES_MAX} that one call may define; ask in "
            "several calls",
        )
    seen: set[tuple[str, str]] = set()
    for each in definitions:
        if (each.kind, each.name) in seen:
            raise StatusError(Code.BAD_REQUEST, f"the {each.kind} {each.name[:255]} is defined twice; leave one out")
        seen.add((each.kind, each.name))


def _there(state: ClusterState, definition: Definition) -> Topic | Group | None:
    if isinstance(definition.settings, TopicSettings):
        return state.topics.get(definition.name)
    return state.groups.get(definition.name)


def _changes(before: Topic | Group, after: Topic | Group) -> list[FieldChange]:
    """Return the changed settings, with the names of the API."""
    defaults = {each.name: each.default for each in TOPIC_SETTINGS if isinstance(after, Topic) and not each.types}
    old, new = defaults | facts_of(before), defaults | facts_of(after)
    keys: dict[str, Any] = {**old, **new}
    return [
        FieldChange(field=key, before=old.get(key), after=new.get(key)) for key in keys if old.get(key) != new.get(key)
    ]
