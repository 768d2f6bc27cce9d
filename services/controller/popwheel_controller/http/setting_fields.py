"""Fields of the table of topic settings in bodies and answers of the API."""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, TopicSetting, Value
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _wanted(setting: TopicSetting) -> tuple[Any, Any]:
    """Return the field of a body: null is unset."""
    if setting.words:
        return str | None, Field(default=None, description=setting.help)
    return int | None, Field(default=None, ge=0, description=setting.help)


def _shown(setting: TopicSetting) -> tuple[Any, Any]:
    return type(setting.default), Field(default=setting.default, description=setting.help)


if TYPE_CHECKING:
    _Wanted = _Body
    ShownSettings = BaseModel
else:
    _Wanted = create_model("_Wanted", __base__=_Body, **{each.name: _wanted(each) for each in TOPIC_SETTINGS})
    ShownSettings = create_model("ShownSettings", **{each.name: _shown(each) for each in TOPIC_SETTINGS})


class SettingFields(_Wanted):
    """Body with a field for each setting."""

    def others(self) -> dict[str, Value]:
        """Return the settings that the caller named."""
        found = {each.name: getattr(self, each.name) for each in TOPIC_SETTINGS}
        return {name: value for name, value in found.items() if value is not None}


def shown_settings(topic: Topic) -> dict[str, Any]:
    """Return the values of the fields of `ShownSettings`."""
    return {each.name: each.of(topic) for each in TOPIC_SETTINGS}
