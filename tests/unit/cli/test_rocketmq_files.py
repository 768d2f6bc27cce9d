"""How topics and groups of RocketMQ are mapped, and what of them is left out."""

import json
from typing import Any

import pytest

from popwheel_cli.admin.definition_file import FileError
from popwheel_cli.admin.rocketmq_files import Found, rocketmq_found


def found_in(**tables: Any) -> Found:
    found = rocketmq_found(json.dumps({"dataVersion": {}, **tables}).encode(), "f")
    assert found is not None
    return found


def topic(name: str = "t", **said: Any) -> Found:
    config = {"topicName": name, "perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
    return found_in(topicConfigTable={name: {**config, **said}})


def group(name: str = "g", **said: Any) -> Found:
    return found_in(subscriptionGroupTable={name: {"groupName": name, "consumeEnable": True, **said}})


def settings(found: Found) -> dict[str, Any]:
    assert (found.unmapped, found.of_system) == ([], 0)
    (entry,) = found.entries
    return dict(entry.settings)


@pytest.mark.parametrize(
    ("said", "mapped"),
    [
        ({}, {"type": "NORMAL", "queues": 8}),
        ({"readQueueNums": 16}, {"type": "NORMAL", "queues": 16}),
        ({"attributes": {"message.type": "FIFO"}}, {"type": "FIFO", "queues": 8}),
        ({"attributes": {"+message.type": "DELAY"}}, {"type": "DELAY", "queues": 8}),
        ({"attributes": {"message.type": "UNSPECIFIED"}}, {"type": "NORMAL", "queues": 8}),
        ({"attributes": {"message.type": "PRIORITY"}}, {"type": "PRIORITY", "queues": 8}),
        (
            {"attributes": {"message.type": "LITE", "lite.topic.expiration": "30"}},
            {"type": "LITE", "lite_expiration_ms": 1_800_000},
        ),
        ({"attributes": {"message.type": "LITE", "lite.topic.expiration": "-1"}}, {"type": "LITE"}),
        ({"attributes": {"queue.type": "BatchCQ", "cleanup.policy": "DELETE"}}, {"type": "NORMAL", "queues": 8}),
    ],
)
def test_topics_are_mapped(said: dict[str, Any], mapped: dict[str, Any]) -> None:
    assert settings(topic(**said)) == {"name": "t", **mapped}


@pytest.mark.parametrize(
    ("said", "mapped"),
    [
        ({}, {"max_attempts": 17, "fifo": False}),
        ({"retryMaxTimes": 0, "consumeMessageOrderly": True}, {"max_attempts": 1, "fifo": True}),
        ({"groupRetryPolicy": {"type": "CUSTOMIZED"}}, {"max_attempts": 17, "fifo": False}),
        (
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 5, 10, 30]}}},
            {"max_attempts": 17, "fifo": False, "backoff_ms": [10, 30]},
        ),
        (
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 5]}}},
            {"max_attempts": 17, "fifo": False, "backoff_ms": [5]},
        ),
        (
            {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 9000}}},
            {
                "max_attempts": 17,
                "fifo": False,
                "exponential_backoff": {"initial_ms": 1000, "max_ms": 9000, "multiplier": 2},
            },
        ),
    ],
)
def test_groups_are_mapped(said: dict[str, Any], mapped: dict[str, Any]) -> None:
    assert settings(group(**said)) == {"name": "g", **mapped}


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (topic(perm=4), "perm 4"),
        (topic(name="a|b"), "is not a name for a topic"),
        (topic(attributes={"message.type": "ODD"}), "message.type ODD"),
        (topic(attributes={"cleanup.policy": "COMPACTION"}), "cleanup.policy COMPACTION"),
        (topic(writeQueueNums="8"), "writeQueueNums is '8'"),
        (group(name="a|b"), "is not a name for a consumer group"),
        (group(consumeEnable=False), "consumeEnable false"),
        (group(retryMaxTimes=-1), "retryMaxTimes -1"),
    ],
)
def test_what_has_no_counterpart_is_named(found: Found, part: str) -> None:
    assert found.entries == [] and found.of_system == 0
    ((_, _, why),) = found.unmapped
    assert part in why


def test_what_brokers_made_for_themselves_is_counted() -> None:
    config = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
    own = ("%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102", "SCHEDULE_TOPIC_XXXX")
    table = {
        **dict.fromkeys(own, config),
        "DefaultCluster": {**config, "perm": 7},
        "DefaultCluster_REPLY_TOPIC": config,
    }
    assert found_in(topicConfigTable=table) == Found(of_system=8)
    groups = ("CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY")
    assert found_in(subscriptionGroupTable={each: {} for each in groups}) == Found(of_system=5)


def test_other_files_are_none_of_rocketmq() -> None:
    assert rocketmq_found(b"topics: []", "f") is None
    assert rocketmq_found(b'{"topics": []}', "f") is None
    assert rocketmq_found(b"[" * 100_000, "f") is None
    with pytest.raises(FileError, match="topicConfigTable is no map"):
        rocketmq_found(b'{"topicConfigTable": [1]}', "f")
