"""Each setting of topics: read, changed, refused."""

import pytest

from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, TopicSetting, change_settings, settings_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType


def topic_for(setting: TopicSetting) -> Topic:
    return Topic(name="t", queues=1, type=TopicType.ValueType(min(setting.types, default=TopicType.NORMAL)))


def other_value(setting: TopicSetting) -> int | str:
    return setting.words[-1] if setting.words else setting.least_ms


@pytest.mark.parametrize("setting", TOPIC_SETTINGS, ids=lambda setting: str(setting.name))
def test_a_setting_changes_both_ways(setting: TopicSetting) -> None:
    topic = topic_for(setting)
    before = Topic.FromString(topic.SerializeToString())
    assert setting.of(topic) == setting.default
    change_settings(topic, {setting.name: other_value(setting)})
    assert settings_of(topic)[setting.name] == other_value(setting)
    change_settings(topic, {})
    assert setting.of(topic) == other_value(setting)
    change_settings(topic, {setting.name: setting.default})
    assert topic == before


@pytest.mark.parametrize("setting", TOPIC_SETTINGS, ids=lambda setting: str(setting.name))
def test_an_invalid_value_is_refused_and_the_topic_stays(setting: TopicSetting) -> None:
    topic = topic_for(setting)
    invalid: list[int | str] = ["", "other", 5] if setting.words else [setting.least_ms - 1, setting.most_ms + 1, -1]
    for value in invalid:
        with pytest.raises(StatusError, match=setting.refusal):
            setting.put(topic, value)
    assert topic == topic_for(setting)


@pytest.mark.parametrize("setting", TOPIC_SETTINGS, ids=lambda setting: str(setting.name))
def test_other_types_of_topics_refuse_it(setting: TopicSetting) -> None:
    for kind in set(TopicType.values()) - {TopicType.TOPIC_TYPE_UNSPECIFIED}:
        topic = Topic(name="t", type=kind)
        assert (setting.name in settings_of(topic)) == (kind in setting.types)
        if not setting.applies_to(kind):
            with pytest.raises(StatusError):
                setting.put(topic, other_value(setting))
