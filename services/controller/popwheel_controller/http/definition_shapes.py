"""Bodies and answers of the routes that define topics and groups."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.contract.topic_settings import settings_of
from popwheel_common.pb.popwheel.v1 import controller_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.cluster.alteration import GroupSettings, TopicSettings
from popwheel_controller.cluster.cluster_state import topic_type
from popwheel_controller.http.admin import ExponentialBackoff
from popwheel_controller.http.setting_fields import wanted_settings, with_wanted_settings

Kind = Literal["topic", "group"]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


@with_wanted_settings
class TopicChange(_Body):
    """Changes of a topic's settings; fields left out keep their value."""

    type: str | None = Field(default=None, description="NORMAL, FIFO, DELAY and TRANSACTION can become MIXED.")
    queues: int | None = Field(default=None, description="More than now, up to 1024; not of FIFO, LITE and PRIORITY.")

    def settings(self) -> TopicSettings:
        """Return the wanted settings.

        Raises:
            StatusError: BAD_REQUEST, there is no such type.
        """
        kind = None if self.type is None else topic_type(self.type)
        return TopicSettings(kind, self.queues, wanted_settings(self))


class GroupChange(_Body):
    """Changes of a group's settings; fields left out keep their value."""

    max_attempts: int | None = Field(
        default=None, description="Deliveries before a message goes to the dead letter queue."
    )
    fifo: bool | None = Field(
        default=None, description="Whether it consumes in order; it changes only while the group is not in use."
    )
    backoff_ms: list[int] | None = Field(default=None, description="Waits after the 1st, 2nd ... failed attempt.")
    exponential_backoff: ExponentialBackoff | None = Field(
        default=None, description="Growing waits, instead of `backoff_ms`."
    )

    def settings(self) -> GroupSettings:
        """Return the wanted settings."""
        said = self.exponential_backoff
        grows = None if said is None else pb.ExponentialBackoff(**said.model_dump())
        return GroupSettings(self.max_attempts, self.fifo, self.backoff_ms, grows)


class TopicDefinition(TopicChange):
    """Settings of a topic. A topic that does not exist is made; then fields left out are the controller's defaults."""

    name: str = Field(description="Letters, digits, %, _ or -.")


class GroupDefinition(GroupChange):
    """Settings of a group. A group that does not exist is made; then fields left out are the controller's defaults."""

    name: str = Field(description="Letters, digits, %, _ or -.")


class DefinitionList(_Body):
    """Topics and groups, at most 50 of both together."""

    topics: list[TopicDefinition] = Field(default=[], description="Topics to create or to change.")
    groups: list[GroupDefinition] = Field(default=[], description="Groups to create or to change.")


class FieldChange(BaseModel):
    """A setting that becomes another one."""

    field: str = Field(description="Name of the setting.")
    before: Any = Field(description="Its old value.")
    after: Any = Field(description="Its new value.")


class Outcome(BaseModel):
    """Outcome for one topic or group, or of its dry run."""

    kind: Kind = Field(description="`topic` or `group`.")
    name: str = Field(description="Name of the topic or group.")
    outcome: Literal["created", "changed", "unchanged", "refused"] = Field(
        description="What was done, or what a dry run would do."
    )
    changes: list[FieldChange] = Field(description="Of one that was there: settings that become other ones.")
    settings: dict[str, Any] = Field(description="All settings as they are then.")
    code: str | None = Field(default=None, description="Why it is refused, in a word.")
    message: str | None = Field(default=None, description="Why it is refused.")


class Outcomes(BaseModel):
    """Outcomes in the order of the request: topics first."""

    outcomes: list[Outcome] = Field(description="One outcome for each topic and group.")


def facts_of(named: pb.Topic | pb.Group) -> dict[str, Any]:
    """Return all settings of a topic or group, as callers name them; not what it does not have."""
    if isinstance(named, pb.Topic):
        return {"type": TopicType.Name(named.type), "queues": named.queues, **settings_of(named)}
    facts: dict[str, Any] = {"max_attempts": named.max_attempts, "fifo": named.fifo}
    if not named.HasField("exponential_backoff"):
        return {**facts, "backoff_ms": list(named.backoff_ms)}
    policy = named.exponential_backoff
    grows = {"initial_ms": policy.initial_ms, "max_ms": policy.max_ms, "multiplier": policy.multiplier}
    return {**facts, "exponential_backoff": grows}
