"""Fields of the table of topic settings in bodies and answers of the API."""

from typing import Any, TypeVar

from pydantic import BaseModel, Field, create_model

from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, Value
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic

Model = TypeVar("Model", bound=BaseModel)


def with_wanted_settings(body: type[Model]) -> type[Model]:
    """Add a field for each setting to the class of a body; null is unset."""
    fields: dict[str, Any] = {}
    for each in TOPIC_SETTINGS:
        least = None if each.words else 0
        fields[each.name] = type(each.default) | None, Field(default=None, ge=least, description=each.help)
    return _extended(body, fields)


def with_shown_settings(answer: type[Model]) -> type[Model]:
    """Add a field for each setting to the class of an answer."""
    fields: dict[str, Any] = {
        each.name: (type(each.default), Field(default=each.default, description=each.help)) for each in TOPIC_SETTINGS
    }
    return _extended(answer, fields)


def _extended(model: type[Model], fields: dict[str, Any]) -> type[Model]:
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields)


def wanted_settings(body: BaseModel) -> dict[str, Value]:
    """Return the settings that the caller named in a body `with_wanted_settings`."""
    found = {each.name: getattr(body, each.name) for each in TOPIC_SETTINGS}
    return {name: value for name, value in found.items() if value is not None}


def shown_settings(topic: Topic) -> dict[str, Any]:
    """Return the values of the fields of an answer `with_shown_settings`."""
    return {each.name: each.of(topic) for each in TOPIC_SETTINGS}
