"""Our text of the client protocol says what the public definition says, name by name and number by number."""

import hashlib
import json

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from tests.harness.programs import run_program
from tests.unit.protocol.describe import describe

PACKAGE = "apache.rocketmq.v2."

NEWEST_DEFINITION = "cf158b333dce473974a88fbc171f5dcb513e133b82b97fb445fedb6b9d76dbc6"
"""SHA-256 over the facts of apache/rocketmq-apis at commit 3e60073c6dab (2026-07-30)."""

NEWER_THAN_THE_CLIENT = {
    # Came with application-defined metadata of a client instance.
    "Code.INVALID_CLIENT_PROPERTIES",
    "Settings.client_properties",
    "Settings.ClientPropertiesEntry",
    # The client was released when the admin service could change the log level and nothing else.
    *(
        f"Admin.{method}"
        for method in (
            *("DescribeTopicStatus", "ListSubscription", "DescribeSubscription", "DeleteSubscription"),
            *("DescribeGroupAccumulation", "ListConsumerConnection", "ResetGroupOffset", "QueryMessage"),
            *("PrintThreadStackTrace", "VerifyMessage", "AdminSendMessage", "GetConsumerRunningInfo"),
            *("GetTopicRoute", "QueryTimeSpan", "GetProxyRuntimeStats"),
        )
    ),
    *("DescribeTopicStatusRequest", "DescribeTopicStatusResponse"),
    *("ListSubscriptionRequest", "SubscriptionInfo", "ListSubscriptionResponse"),
    *("DescribeSubscriptionRequest", "DescribeSubscriptionResponse"),
    *("DeleteSubscriptionRequest", "DeleteSubscriptionResponse"),
    *("ClientInfo", "MessageModel", "MessageQueueItem", "ProcessQueueInfo", "ConsumeStatus", "ConsumerRunningInfo"),
    *("DescribeGroupAccumulationRequest", "DescribeGroupAccumulationResponse"),
    *("QueryTimeSpanRequest", "QueryTimeSpanResponse"),
    *("ListConsumerConnectionRequest", "ListConsumerConnectionResponse"),
    *("ResetGroupOffsetRequest", "ResetGroupOffsetResponse"),
    *("ListMessageRequest", "ListMessageResponse"),
    *("PrintThreadStackTraceRequest", "PrintThreadStackTraceResponse"),
    *("VerifyMessageRequest", "VerifyMessageResponse"),
    *("AdminSendMessageRequest", "AdminSendMessageResponse"),
    *("GetConsumerRunningInfoRequest", "GetConsumerRunningInfoResponse"),
    *("GetTopicRouteRequest", "GetTopicRouteResponse"),
    *("GetProxyRuntimeStatsRequest", "GetProxyRuntimeStatsResponse"),
}
"""What the newest definition has and the client of the pinned release has not; with all that is inside of it."""


def ours() -> dict[str, str]:
    return describe([definition_pb2.DESCRIPTOR, service_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR])


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    outcome = run_program(["-m", "tests.unit.protocol.dump_descriptors"], tmp_path_factory.mktemp("client"))
    assert outcome.exit_code == 0, outcome.explain()
    facts: dict[str, str] = json.loads(outcome.output)
    return facts


def is_newer(name: str) -> bool:
    words = name.removeprefix(PACKAGE).split(".")
    return any(".".join(words[:length]) in NEWER_THAN_THE_CLIENT for length in range(1, len(words) + 1))


def test_all_that_the_official_client_has_is_here_and_the_same(theirs: dict[str, str]) -> None:
    here = ours()
    assert len(theirs) > 400
    assert {name: here.get(name) for name in theirs} == theirs


def test_what_is_more_here_is_in_the_newest_definition(theirs: dict[str, str]) -> None:
    more = ours().keys() - theirs.keys()
    assert {name for name in more if not is_newer(name)} == set()
    top_names = {name.removeprefix(PACKAGE) for name in more}
    assert top_names >= NEWER_THAN_THE_CLIENT, "the client has caught up: shorten the list"


def test_nothing_differs_from_the_newest_definition() -> None:
    facts = "\n".join(f"{name} {fact}" for name, fact in sorted(ours().items()))
    assert hashlib.sha256(facts.encode()).hexdigest() == NEWEST_DEFINITION
