"""Who may do what at a proxy: users, rules, and what becomes of calls when they change."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from popwheel_common.audit_log import LINES_PER_S_MAX, AuditLog
from popwheel_common.contract.credentials import Credentials, signed_headers
from popwheel_common.errors import ConfigurationError, StatusError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.access_options import AccessOptions
from popwheel_proxy.access.access_file import access_file
from popwheel_proxy.access.demands import DEMANDS
from popwheel_proxy.access.document import users_of
from popwheel_proxy.access.users import Right, Sort
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.service import Method
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.proxy.test_telemetry import PRODUCER, answer_to, consumer, open_stream
from tests.unit.proxy.world import CLIENT, World, message, poll_request, until, world
from tests.unit.source import ROOT

SECRET = "long enough"
ORDERS = [{"topic": "orders", "allow": ["publish", "subscribe"]}, {"group": "group", "allow": ["subscribe"]}]
Rules = Sequence[dict[str, Any]]


def document(**users: Rules) -> str:
    entries = [{"access_key": key, "secret": SECRET, "rules": list(rules)} for key, rules in users.items()]
    return json.dumps({"users": entries})


def signed(w: World, user: str = "orders", secret: str = SECRET) -> dict[str, str]:
    if not user:  # some official clients send this without credentials
        return CLIENT | {"authorization": f"MQv2-HMAC-SHA1 Credential=, Signature={'0' * 40}"}
    return CLIENT | signed_headers(Credentials(user, secret), w.clock.wall_ms())


@asynccontextmanager
async def guarded(
    folder: Path, rules: Rules = ORDERS, clock_skew_ms: int = 300_000, **options: Any
) -> AsyncIterator[tuple[World, Path]]:
    """A proxy that goes by an access file, with the user `orders`."""
    file = folder / "access.yaml"
    file.write_text(document(orders=rules))
    async with world(access=AccessOptions(file=str(file), clock_skew_ms=clock_skew_ms), **options) as w:
        yield w, file


async def change(w: World, file: Path, text: str) -> None:
    """Change the file, and have the proxy look at it now instead of in a second."""
    file.write_text(text)
    w.app._reload_access()
    watched = w.app._access_file
    assert watched is not None
    await until(lambda: not watched.changed)


def denials(w: World, method: str, reason: str) -> float:
    return w.metric("popwheel_proxy_access_denials_total", {"method": method, "reason": reason})


async def test_a_user_does_what_its_rules_allow(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        assert (await w.send(message(), message(), metadata=signed(w))).status.code == Code.OK
        received = await w.receive(poll_request(), signed(w))
        assert len(received.messages) == 2
        assert (await w.ack(*received.handles, metadata=signed(w))).status.code == Code.OK
        answer = await answer_to(open_stream(w, signed(w)), PRODUCER)
        assert answer.status.code == Code.OK
        assert w.metric("popwheel_proxy_access_users") == 1


@pytest.mark.parametrize(
    ("user", "secret", "reason"),
    [
        ("orders", "another one", "wrong_signature"),
        ("nobody", SECRET, "unknown_access_key"),
        ("", SECRET, "no_credentials"),
        (None, SECRET, "no_signature"),
    ],
)
async def test_who_is_not_known_gets_nothing(tmp_path: Path, user: str | None, secret: str, reason: str) -> None:
    async with guarded(tmp_path) as (w, _):
        headers = CLIENT if user is None else signed(w, user, secret)
        with capture_logs() as logs:
            refused = [
                (await w.send(message(), metadata=headers)).status,
                (await w.receive(poll_request(), headers)).status,
                (await answer_to(open_stream(w, headers), PRODUCER)).status,
            ]
        assert [each.code for each in refused] == [Code.UNAUTHORIZED] * 3
        assert w.broker.asked("Put") == w.broker.asked("Pop") == []
        assert denials(w, "SendMessage", reason) == denials(w, "ReceiveMessage", reason) == 1
        lines = [line for line in logs if line["event"] == "access denied"]
        assert [line["reason"] for line in lines] == [reason] * 3
        assert not any(SECRET in str(line) for line in logs)


async def test_who_is_unknown_and_whose_secret_is_wrong_are_notified_the_same(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        one = await w.send(message(), metadata=signed(w, "nobody"))
        other = await w.send(message(), metadata=signed(w, "orders", "another one"))
        assert one.status == other.status


@pytest.mark.parametrize(("shift_ms", "skew_ms", "code"), [(0, 0, Code.OK), (-(10**9), 0, Code.OK)])
async def test_a_signed_time_counts_only_with_a_skew(tmp_path: Path, shift_ms: int, skew_ms: int, code: int) -> None:
    async with guarded(tmp_path, clock_skew_ms=skew_ms) as (w, _):
        headers = CLIENT | signed_headers(Credentials("orders", SECRET), w.clock.wall_ms() + shift_ms)
        assert (await w.send(message(), metadata=headers)).status.code == code


async def test_an_old_signature_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        headers = CLIENT | signed_headers(Credentials("orders", SECRET), w.clock.wall_ms() - 86_400_000)
        refused = (await w.send(message(), metadata=headers)).status
        assert (refused.code, denials(w, "SendMessage", "wrong_time")) == (Code.UNAUTHORIZED, 1)
        assert "set the client's clock" in refused.message


async def test_a_time_that_was_not_signed_is_refused(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        headers = signed(w) | {"x-mq-date-time": "20260131T235959Z"}
        assert (await w.send(message(), metadata=headers)).status.code == Code.UNAUTHORIZED


PUBLISH = [{"topic": "orders", "allow": ["publish"]}]
SUBSCRIBE = [{"topic": "orders", "allow": ["subscribe"]}, {"group": "group", "allow": ["subscribe"]}]
TOPIC = d.Resource(name="orders")
GROUP = d.Resource(name="group")
QUEUE = d.MessageQueue(topic=TOPIC, broker=d.Broker(name="b1"))
UNARY: dict[str, tuple[Method[Any, Any], Any, Rules]] = {
    "QueryRoute": (protocol.QUERY_ROUTE, pb.QueryRouteRequest(topic=TOPIC), PUBLISH),
    "QueryAssignment": (protocol.QUERY_ASSIGNMENT, pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP), SUBSCRIBE),
    "Heartbeat": (protocol.HEARTBEAT, pb.HeartbeatRequest(group=GROUP), SUBSCRIBE[1:]),
    "SendMessage": (
        protocol.SEND_MESSAGE,
        pb.SendMessageRequest(messages=[message()]).SerializeToString(),
        PUBLISH,
    ),
    "RecallMessage": (protocol.RECALL_MESSAGE, pb.RecallMessageRequest(topic=TOPIC, recall_handle="x"), PUBLISH),
    "EndTransaction": (protocol.END_TRANSACTION, pb.EndTransactionRequest(topic=TOPIC), PUBLISH),
    "AckMessage": (
        protocol.ACK_MESSAGE,
        pb.AckMessageRequest(topic=TOPIC, group=GROUP, entries=[pb.AckMessageEntry(receipt_handle="x")]),
        SUBSCRIBE,
    ),
    "ChangeInvisibleDuration": (
        protocol.CHANGE_INVISIBLE_DURATION,
        pb.ChangeInvisibleDurationRequest(topic=TOPIC, group=GROUP),
        SUBSCRIBE,
    ),
    "ForwardMessageToDeadLetterQueue": (
        protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
        pb.ForwardMessageToDeadLetterQueueRequest(topic=TOPIC, group=GROUP),
        SUBSCRIBE,
    ),
    "SyncLiteSubscription": (
        protocol.SYNC_LITE_SUBSCRIPTION,
        pb.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP),
        SUBSCRIBE,
    ),
    "GetOffset": (protocol.GET_OFFSET, pb.GetOffsetRequest(group=GROUP, message_queue=QUEUE), SUBSCRIBE),
    "UpdateOffset": (protocol.UPDATE_OFFSET, pb.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE), SUBSCRIBE),
    "QueryOffset": (protocol.QUERY_OFFSET, pb.QueryOffsetRequest(message_queue=QUEUE), SUBSCRIBE[:1]),
    "NotifyClientTermination": (
        protocol.NOTIFY_CLIENT_TERMINATION,
        pb.NotifyClientTerminationRequest(group=GROUP),
        SUBSCRIBE[1:],
    ),
}
STREAMS = {"ReceiveMessage", "PullMessage", "PullRecords", "Telemetry"}


def test_each_method_has_a_row() -> None:
    (service,) = pb.DESCRIPTOR.services_by_name.values()
    methods = {method.name for method in service.methods}
    assert DEMANDS.keys() == methods | {protocol.PULL_RECORDS.name}
    assert UNARY.keys() | STREAMS == DEMANDS.keys(), "tests below see each of them"


async def code_of(w: World, method: Method[Any, Any], request: Any) -> int:
    response = await w.channel.call(method, request, metadata=signed(w))
    if method is protocol.SEND_MESSAGE:
        response = pb.SendMessageResponse.FromString(response)
    code: int = response.status.code
    return code


@pytest.mark.parametrize("name", UNARY)
async def test_a_call_demands_what_its_row_says(name: str, tmp_path: Path) -> None:
    method, request, enough = UNARY[name]
    async with guarded(tmp_path, enough) as (w, file):
        assert await code_of(w, method, request) not in (Code.FORBIDDEN, Code.UNAUTHORIZED)
        for index in range(len(enough)):
            await change(w, file, document(orders=[*enough[:index], *enough[index + 1 :]]))
            assert await code_of(w, method, request) == Code.FORBIDDEN
        others = [{"topic": "order", "allow": ["admin"]}, {"group": "grou", "allow": ["admin"]}]
        await change(w, file, document(orders=others))
        assert await code_of(w, method, request) == Code.FORBIDDEN
        await change(
            w, file, document(orders=[{"topic": "*", "allow": ["admin"]}, {"group": "g*", "allow": ["admin"]}])
        )
        assert await code_of(w, method, request) != Code.FORBIDDEN


@pytest.mark.parametrize("rules", [PUBLISH, SUBSCRIBE[:1], SUBSCRIBE[1:]])
async def test_polls_pulls_and_settings_demand_topic_and_group(rules: Rules, tmp_path: Path) -> None:
    async with guarded(tmp_path, rules) as (w, _):
        assert (await w.receive(poll_request(), signed(w))).code == Code.FORBIDDEN
        pull = pb.PullMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=1)
        stream = w.channel.open(protocol.PULL_MESSAGE, metadata=signed(w))
        await stream.send((pull,))
        part = await stream.receive()
        assert part is not None
        assert pb.PullMessageResponse.FromString(part).status.code == Code.FORBIDDEN
        with pytest.raises(StatusError) as refused:
            await w.channel.call(protocol.PULL_RECORDS, pull, metadata=signed(w))
        assert refused.value.code == Code.FORBIDDEN
        assert (await answer_to(open_stream(w, signed(w)), consumer())).status.code == Code.FORBIDDEN
        assert w.broker.asked("Pop") == w.broker.asked("Pull") == w.broker.asked("PullRecords") == []


async def test_a_producers_settings_demand_each_topic(tmp_path: Path) -> None:
    async with guarded(tmp_path, PUBLISH) as (w, _):
        assert (await answer_to(open_stream(w, signed(w)), PRODUCER)).status.code == Code.OK
        more = d.Settings()
        more.CopyFrom(PRODUCER)
        more.publishing.topics.add(name="others")
        assert (await answer_to(open_stream(w, signed(w)), more)).status.code == Code.FORBIDDEN


async def test_a_batch_with_one_forbidden_topic_stores_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path, PUBLISH) as (w, _):
        w.controller.add_topic("others")
        refused = (await w.send(message(), message("others"), metadata=signed(w))).status
        assert refused.code == Code.FORBIDDEN
        assert "the user orders may not publish with the topic others" in refused.message
        assert w.broker.asked("Put") == []


async def test_a_topic_that_is_said_twice_is_the_one_that_counts(tmp_path: Path) -> None:
    """Of one field that comes twice protobuf takes the last: the check must not look at the first."""
    async with guarded(tmp_path, PUBLISH) as (w, _):
        w.controller.add_topic("others")
        one = message().SerializeToString() + d.Message(topic=d.Resource(name="others")).SerializeToString()
        request = pb.SendMessageRequest.FromString(b"").SerializeToString() + b"\x0a" + bytes((len(one),)) + one
        answer = await w.channel.call(protocol.SEND_MESSAGE, request, metadata=signed(w))
        assert pb.SendMessageResponse.FromString(answer).status.code == Code.FORBIDDEN


async def test_a_namespace_is_part_of_the_name(tmp_path: Path) -> None:
    async with guarded(tmp_path, PUBLISH) as (w, file):
        w.controller.add_topic("shop%orders")
        named = message()
        named.topic.resource_namespace = "shop"
        assert (await w.send(named, metadata=signed(w))).status.code == Code.FORBIDDEN
        await change(w, file, document(orders=[{"topic": "shop%*", "allow": ["publish"]}]))
        assert (await w.send(named, metadata=signed(w))).status.code == Code.OK


async def test_a_pull_of_a_tool_demands_topic_and_group_though_none_is_made(tmp_path: Path) -> None:
    tools = {"group": "TOOLS_CONSUMER", "allow": ["subscribe"]}
    async with guarded(tmp_path, [SUBSCRIBE[0], tools]) as (w, file):
        pull = pb.PullMessageRequest(group=d.Resource(name="TOOLS_CONSUMER"), message_queue=QUEUE, batch_size=1)
        await w.channel.call(protocol.PULL_RECORDS, pull, metadata=signed(w))
        for rules in ([tools], SUBSCRIBE):
            await change(w, file, document(orders=rules))
            with pytest.raises(StatusError) as refused:
                await w.channel.call(protocol.PULL_RECORDS, pull, metadata=signed(w))
            assert refused.value.code == Code.FORBIDDEN


async def test_dead_letters_and_retries_go_with_their_group(tmp_path: Path) -> None:
    async with guarded(tmp_path, [{"group": "group", "allow": ["subscribe"]}]) as (w, file):

        async def pulled(topic: str) -> int:
            queue = d.MessageQueue(topic=d.Resource(name=topic), broker=d.Broker(name="b1"))
            request = pb.PullMessageRequest(group=GROUP, message_queue=queue, batch_size=1)
            stream = w.channel.open(protocol.PULL_MESSAGE, metadata=signed(w))
            await stream.send((request,))
            part = await stream.receive()
            assert part is not None
            return pb.PullMessageResponse.FromString(part).status.code

        w.controller.add_group("other")
        assert await pulled("%DLQ%group") == Code.MESSAGE_NOT_FOUND
        assert await pulled("%DLQ%other") == Code.FORBIDDEN
        assert await pulled("%RETRY%group+orders") == Code.FORBIDDEN
        await change(w, file, document(orders=SUBSCRIBE))
        assert await pulled("%RETRY%group+orders") == Code.MESSAGE_NOT_FOUND


async def test_only_an_admin_has_something_made_on_first_use(tmp_path: Path) -> None:
    rules = [{"topic": "*", "allow": ["publish", "subscribe"]}, {"group": "*", "allow": ["subscribe"]}]
    async with guarded(tmp_path, rules, auto_create_topics=True) as (w, file):
        new = message("new")
        refused = (await w.send(new, metadata=signed(w))).status
        assert refused.code == Code.TOPIC_NOT_FOUND
        assert "the user orders may not make it" in refused.message
        poll = poll_request(wait_s=0, group=d.Resource(name="new"))
        assert (await w.receive(poll, signed(w))).code == Code.CONSUMER_GROUP_NOT_FOUND
        await change(
            w, file, document(orders=[{"topic": "n*", "allow": ["admin"]}, *ORDERS, {"group": "*", "allow": ["admin"]}])
        )
        assert (await w.send(new, metadata=signed(w))).status.code == Code.OK
        assert (await w.receive(poll, signed(w))).code == Code.MESSAGE_NOT_FOUND


async def test_names_that_cannot_be_are_said_so_first(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        assert (await w.send(message("no name"), metadata=signed(w))).status.code == Code.ILLEGAL_TOPIC


async def test_a_removed_user_is_out_without_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        stream = open_stream(w, signed(w))
        assert (await answer_to(stream, PRODUCER)).status.code == Code.OK
        await change(w, file, document(other=ORDERS))
        assert (await w.send(message(), metadata=signed(w))).status.code == Code.UNAUTHORIZED
        assert (await w.send(message(), metadata=signed(w, "other"))).status.code == Code.OK
        refused = await answer_to(stream, PRODUCER)
        while refused.status.code == Code.OK:  # settings that were sent a second time before
            again = await stream.receive()
            assert again is not None
            refused = again
        assert refused.status.code == Code.UNAUTHORIZED
        with pytest.raises(StatusError, match="the user was removed"):
            await stream.receive()


async def test_a_poll_of_a_removed_user_releases_what_it_found(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        poll = w.poll(poll_request(), signed(w))
        await until(lambda: w.app._book.waiting_polls == 1)
        await change(w, file, document(other=ORDERS))
        assert (await w.send(message(), metadata=signed(w, "other"))).status.code == Code.OK
        found = await poll
        assert (found.code, found.messages) == (Code.UNAUTHORIZED, [])
        other = await w.receive(poll_request(wait_s=5), signed(w, "other"))
        assert len(other.messages) == 1


async def test_a_changed_secret_counts_at_once(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        stream = open_stream(w, signed(w))
        assert (await answer_to(stream, PRODUCER)).status.code == Code.OK
        await change(w, file, document(orders=ORDERS).replace(SECRET, "another secret"))
        assert (await w.send(message(), metadata=signed(w))).status.code == Code.UNAUTHORIZED
        assert (await w.send(message(), metadata=signed(w, secret="another secret"))).status.code == Code.OK
        assert (await w.receive(poll_request(), signed(w, secret="another secret"))).code == Code.OK


async def test_changed_rules_leave_streams_of_those_who_may_go_on(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        stream = open_stream(w, signed(w))
        assert (await answer_to(stream, PRODUCER)).status.code == Code.OK
        await change(w, file, document(orders=PUBLISH))
        assert (await answer_to(stream, PRODUCER)).status.code == Code.OK


@pytest.mark.parametrize("text", ["users: [", "users: 1", "", '{"users": [{"access_key": "a"}]}'])
async def test_a_wrong_file_leaves_the_rules_before_loudly(text: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, file):
        with capture_logs() as logs:
            await change(w, file, text)
        assert (await w.send(message(), metadata=signed(w))).status.code == Code.OK
        assert w.metric("popwheel_proxy_access_file_refused") == 1
        (line,) = [line for line in logs if line["log_level"] == "warning"]
        assert "stays in force" in line["event"]
        file.unlink()
        await change(w, file, document(other=ORDERS))
        assert w.metric("popwheel_proxy_access_file_refused") == 0
        assert (await w.send(message(), metadata=signed(w))).status.code == Code.UNAUTHORIZED


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("users: [", "it is not YAML at line"),
        ("", "the file: Input should be a valid dictionary"),
        ("users: []\nmore: 1", "more: Extra inputs are not permitted"),
        ("users: [{access_key: a b, secret: long enough}]", "users.0.access_key: String should match"),
        ("users: [{access_key: a, secret: 1234567890}]", "users.0.secret: Input should be a valid string"),
        ("users: [{access_key: a, secret: short}]", "users.0.secret: String should have at least 8 characters"),
        (document(a=[{"allow": ["publish"]}]), "a rule names either a topic or a group"),
        (document(a=[{"topic": "a", "group": "a", "allow": ["publish"]}]), "either a topic or a group"),
        (document(a=[{"group": "a", "allow": ["publish"]}]), "a group is not published to"),
        (document(a=[{"topic": "a", "allow": ["write"]}]), "Input should be 'publish', 'subscribe' or 'admin'"),
        (document(a=[{"topic": "a", "allow": []}]), "at least 1 item"),
        (document(a=[{"topic": "a*b", "allow": ["publish"]}]), "users.0.rules.0.topic: String should match"),
        (document(a=[{"topic": "%DLQ%a", "allow": ["subscribe"]}]), "name the group"),
        ("users: [{access_key: a, secret: abcdefgh}, {access_key: a, secret: abcdefgh}]", "there are two"),
        ("#" * (1024 * 1024 + 1), "it has more than 1048576 bytes"),
        ("\x00", "it is not YAML"),
    ],
)
def test_a_wrong_file_stops_the_start(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=f"access.file: .*{re.escape(sentence)}") as refused:
        access_file(str(file))
    assert not any(secret in str(refused.value) for secret in (SECRET, "short", "1234567890"))


def test_no_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"access\.file: cannot read .*: No such file"):
        access_file(str(tmp_path / "nothing"))


def test_rules_in_yaml() -> None:
    users = users_of(b"users:\n- access_key: a\n  secret: abcdefgh\n  rules:\n  - {topic: 'a-*', allow: [admin]}\n")
    user = users["a"]
    assert [user.may(right, Sort.TOPIC, "a-1") for right in Right] == [True] * 3
    assert not user.may(Right.PUBLISH, Sort.TOPIC, "a")
    assert not user.may(Right.SUBSCRIBE, Sort.GROUP, "a-1")
    assert "abcdefgh" not in repr(user)


def test_lines_of_the_log_are_bounded() -> None:
    now = 1.0
    log = AuditLog(lambda: now)
    with capture_logs() as lines:
        for _ in range(LINES_PER_S_MAX + 5):
            log.denied(reason="forbidden")
        now = 2.0
        log.log_unwritten()
        log.denied(reason="forbidden")
    assert len(lines) == LINES_PER_S_MAX + 2
    assert lines[LINES_PER_S_MAX] == {
        "event": "more calls were denied than are written here",
        "log_level": "warning",
        "count": 5,
    }


def test_the_example_is_an_access_file() -> None:
    users = users_of((ROOT / "examples" / "access.yaml").read_bytes())
    assert users["order-service"].may(Right.PUBLISH, Sort.TOPIC, "Orders")
    assert not users["billing"].may(Right.PUBLISH, Sort.TOPIC, "Orders")


async def test_settings_have_a_limit_of_topics(tmp_path: Path) -> None:
    async with guarded(tmp_path, [{"topic": "*", "allow": ["publish"]}]) as (w, _):
        many = d.Settings(publishing=d.Publishing(topics=[d.Resource(name="a")] * 10_001))
        assert (await answer_to(open_stream(w, signed(w)), many)).status.code == Code.INVALID_CLIENT_PROPERTIES


async def test_settings_with_too_many_topics_are_refused_the_same_way_without_a_look_at_them(tmp_path: Path) -> None:
    """The seen fault: where access is checked, lists of 125,000 empty entries were made first, for 127 ms."""
    subscriptions = [d.SubscriptionEntry()] * 125_000
    many = d.Settings(subscription=d.Subscription(group=d.Resource(name="group"), subscriptions=subscriptions))
    sentences = set()
    async with guarded(tmp_path) as (checked, _), world() as open_to_all:
        for w in (checked, open_to_all):
            with measured_turns() as turns:
                answer = await answer_to(open_stream(w, signed(w)), many)
            assert turns.longest_s < TURN_S_MAX, str(turns)
            assert answer.status.code == Code.INVALID_CLIENT_PROPERTIES
            sentences.add(answer.status.message)
            assert w.metric("popwheel_proxy_limit_hits_total", {"limit": "settings_entries_max"}) == 1
    assert len(sentences) == 1
