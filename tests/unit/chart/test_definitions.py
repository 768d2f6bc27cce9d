"""The definitions of the custom resources say what the product says, and take what the chart renders."""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from popwheel_common.contract import names
from popwheel_common.contract.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX, Use
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, TopicSetting
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_controller.kubernetes.api import (
    BROKER_GROUPS,
    CLUSTER_PAGES,
    CLUSTERS,
    CONSUMER_GROUPS,
    TOPICS,
    ResourceKind,
)
from popwheel_controller.options import ATTEMPTS_MAX, BACKOFF_MS_MAX, BACKOFF_STEPS_MAX, MULTIPLIER_MAX, QUEUES_MAX
from tests.harness.chart import RenderedChart
from tools.generate_values_schema import CHART

FILES = sorted((CHART / "crds").iterdir())
OURS = (BROKER_GROUPS, CLUSTER_PAGES, CLUSTERS, CONSUMER_GROUPS, TOPICS)
TRIED = [
    "orders",
    "Orders_EU",
    "shop%orders",
    "%DLQ%a",
    "%RETRY%a+b",
    "rmq_sys_x",
    "no name",
    "a.b",
    "",
    "ä",
    "x" * 128,
]


def definition(kind: ResourceKind) -> Any:
    return yaml.safe_load((CHART / "crds" / f"{kind.plural}.yaml").read_text(encoding="utf-8"))


def schema_of(kind: ResourceKind) -> Any:
    (version,) = definition(kind)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def test_there_is_one_for_each_kind_and_no_other() -> None:
    assert [path.stem for path in FILES] == sorted(kind.plural for kind in OURS)


@pytest.mark.parametrize("setting", TOPIC_SETTINGS, ids=lambda setting: str(setting.name))
def test_a_topic_has_each_setting_of_the_table(setting: TopicSetting) -> None:
    fields = schema_of(TOPICS)["properties"]
    said = fields["spec"]["properties"][setting.resource_key]
    assert said["type"] == fields["status"]["properties"][setting.resource_key]["type"]
    assert said.get("enum", []) == list(setting.words)
    assert said["type"] == ("string" if setting.words else "integer")
    assert said["description"] == setting.help


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: str(kind.plural))
def test_kubernetes_takes_it(kind: ResourceKind) -> None:
    made = definition(kind)
    kubernetes_validate.validate(made, "1.28", strict=True)
    names_of_it = made["spec"]["names"]
    assert (made["spec"]["group"], names_of_it["plural"], names_of_it["kind"]) == (kind.group, kind.plural, kind.kind)
    assert made["metadata"]["name"] == f"{kind.plural}.{kind.group}"
    Draft202012Validator.check_schema(schema_of(kind))


def test_topics_are_as_the_product_has_them() -> None:
    spec = schema_of(TOPICS)["properties"]["spec"]["properties"]
    assert spec["type"]["enum"] == [name for name in TopicType.keys() if name != "TOPIC_TYPE_UNSPECIFIED"]  # noqa: SIM118
    assert (spec["queues"]["minimum"], spec["queues"]["maximum"]) == (1, QUEUES_MAX)
    assert spec["topicName"]["maxLength"] == TOPIC_LENGTH_MAX
    (rule,) = spec["topicName"]["x-kubernetes-validations"]
    beginnings = tuple(re.findall(r"!self[.]startsWith\('([^']+)'\)", rule["rule"]))
    for text in TRIED:
        taken = not text.startswith(beginnings) and not list(Draft202012Validator(spec["topicName"]).iter_errors(text))
        assert taken == names.is_topic(text), text
    assert names.topic("a", Use.CREATE)


def test_groups_are_as_the_product_has_them() -> None:
    spec = schema_of(CONSUMER_GROUPS)["properties"]["spec"]["properties"]
    assert (spec["maxAttempts"]["minimum"], spec["maxAttempts"]["maximum"]) == (1, ATTEMPTS_MAX)
    assert spec["groupName"]["maxLength"] == GROUP_LENGTH_MAX
    waits = spec["backoffMs"]
    assert (waits["minItems"], waits["maxItems"]) == (1, BACKOFF_STEPS_MAX)
    assert (waits["items"]["minimum"], waits["items"]["maximum"]) == (0, BACKOFF_MS_MAX)
    grows = spec["exponentialBackoff"]["properties"]
    assert {(grows[key]["minimum"], grows[key]["maximum"]) for key in ("initialMs", "maxMs")} == {(1, BACKOFF_MS_MAX)}
    assert (grows["multiplier"]["minimum"], grows["multiplier"]["maximum"]) == (1, MULTIPLIER_MAX)
    for text in TRIED:
        assert (not list(Draft202012Validator(spec["groupName"]).iter_errors(text))) == names.is_group(text), text


@pytest.mark.parametrize(("kind", "longest"), [(TOPICS, TOPIC_LENGTH_MAX), (CONSUMER_GROUPS, GROUP_LENGTH_MAX)])
def test_a_resource_without_a_name_in_its_spec_has_one_that_can_be(kind: ResourceKind, longest: int) -> None:
    (rule,) = (
        each["rule"] for each in schema_of(kind)["x-kubernetes-validations"] if "metadata.name.m" in each["rule"]
    )
    assert f"self.metadata.name.matches('^[-a-z0-9]{{1,{longest}}}$')" in rule


@pytest.mark.parametrize("kind", [TOPICS, CONSUMER_GROUPS], ids=lambda kind: str(kind.plural))
def test_the_api_server_refuses_another_name_and_leaves_other_changes_to_the_controllers(kind: ResourceKind) -> None:
    """What can change is decided in one place (`cluster/alteration.py`); another name is another topic."""
    (found,) = (each for each in schema_of(kind)["x-kubernetes-validations"] if "oldSelf" in each["rule"])
    assert " keeps its name" in found["message"]
    assert found["rule"].startswith("!has(oldSelf.status) || !has(oldSelf.status.id) || ")


def test_what_values_name_is_declared_and_never_goes_with_the_release() -> None:
    values = yaml.safe_load((CHART / "ci" / "topics-values.yaml").read_text(encoding="utf-8"))
    chart = RenderedChart(values)
    for kind, key, name_key in ((TOPICS, "topics", "topicName"), (CONSUMER_GROUPS, "consumerGroups", "groupName")):
        made = chart.of_kind(kind.kind)
        assert [each["spec"][name_key] for each in made] == [each["name"] for each in values[key]]
        for each in made:
            assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", each["metadata"]["name"])
            assert "deletionPolicy" not in each["spec"]
            Draft202012Validator(schema_of(kind)).validate(each)
    assert chart.one("Topic", "orders")["spec"] == {"topicName": "orders", "type": "NORMAL"}
    (readers,) = (each for each in chart.of_kind("ConsumerGroup") if each["spec"]["groupName"] == "Readers-1")
    assert readers["spec"] == {
        "groupName": "Readers-1",
        "fifo": True,
        "maxAttempts": 5,
        "backoffMs": [1000, 3_600_000],
    }
    (growing,) = (each for each in chart.of_kind("ConsumerGroup") if each["spec"]["groupName"] == "growing")
    assert growing["spec"]["exponentialBackoff"] == {"initialMs": 1000, "maxMs": 300_000, "multiplier": 1.5}


def test_the_controllers_may_do_with_each_kind_what_they_do_and_no_more() -> None:
    rules = RenderedChart().one("Role", "popwheel-controller")["rules"]
    for resource, verbs in (
        ("topics", {"get", "list", "watch", "create", "patch", "delete"}),
        ("consumergroups", {"get", "list", "watch", "create", "patch", "delete"}),
        ("topics/status", {"patch"}),
        ("consumergroups/status", {"patch"}),
    ):
        (rule,) = (each for each in rules if resource in each["resources"])
        assert set(rule["verbs"]) == verbs
