"""The methods of our own services (proto/popwheel/v1), declared once for those who call and those who serve."""

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from popwheel_common.contract.pop_answer import PopAnswer, decode_pop_answer, encode_pop_answer
from popwheel_common.contract.put import MessageRun, PutResult, decode_results, decode_runs, encode_results, encode_runs
from popwheel_common.pb.popwheel.v1 import broker_pb2 as broker
from popwheel_common.pb.popwheel.v1 import controller_pb2 as controller
from popwheel_rpc.service import RAW, Codec, Method, protobuf

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


def _method(service: str, name: str, request: type[Request], response: type[Response]) -> Method[Request, Response]:
    return Method(service, name, protobuf(request), protobuf(response))


PUT: Method[Sequence[MessageRun], Sequence[PutResult]] = Method(
    "popwheel.v1.Broker", "Put", Codec(encode_runs, decode_runs), Codec(encode_results, decode_results)
)
POP: Method[broker.PopRequest, PopAnswer] = Method(
    "popwheel.v1.Broker", "Pop", protobuf(broker.PopRequest), Codec(encode_pop_answer, decode_pop_answer)
)
ACK = _method("popwheel.v1.Broker", "Ack", broker.AckRequest, broker.AckResponse)
CHANGE_INVISIBLE = _method(
    "popwheel.v1.Broker", "ChangeInvisible", broker.ChangeInvisibleRequest, broker.ChangeInvisibleResponse
)
RENEW = _method("popwheel.v1.Broker", "Renew", broker.RenewRequest, broker.RenewResponse)
RELEASE = _method("popwheel.v1.Broker", "Release", broker.ReleaseRequest, broker.ReleaseResponse)
DEAD_LETTER = _method("popwheel.v1.Broker", "DeadLetter", broker.DeadLetterRequest, broker.DeadLetterResponse)
PULL = _method("popwheel.v1.Broker", "Pull", broker.PullRequest, broker.PullResponse)
PULL_RECORDS: Method[broker.PullRequest, bytes] = Method(
    "popwheel.v1.Broker", "PullRecords", protobuf(broker.PullRequest), RAW
)
"""Answers bytes of PullRecordsResponse (`popwheel_common.contract.record_block`)."""
QUERY_OFFSET = _method("popwheel.v1.Broker", "QueryOffset", broker.QueryOffsetRequest, broker.QueryOffsetResponse)
GET_OFFSET = _method("popwheel.v1.Broker", "GetOffset", broker.GetOffsetRequest, broker.GetOffsetResponse)
UPDATE_OFFSET = _method("popwheel.v1.Broker", "UpdateOffset", broker.UpdateOffsetRequest, broker.UpdateOffsetResponse)
RESET_OFFSETS = _method("popwheel.v1.Broker", "ResetOffsets", broker.ResetOffsetsRequest, broker.ResetOffsetsResponse)
DEAD_LETTER_LIST = _method(
    "popwheel.v1.Broker", "DeadLetterList", broker.DeadLetterListRequest, broker.DeadLetterListResponse
)
DEAD_LETTER_REDRIVE = _method(
    "popwheel.v1.Broker", "DeadLetterRedrive", broker.DeadLetterRedriveRequest, broker.DeadLetterRedriveResponse
)
NOTIFY = _method("popwheel.v1.Broker", "Notify", broker.NotifyInterest, broker.NotifyEvents)
SYNC_LITE = _method("popwheel.v1.Broker", "SyncLite", broker.SyncLiteRequest, broker.SyncLiteResponse)
LITE_TOPIC_LIST = _method(
    "popwheel.v1.Broker", "LiteTopicList", broker.LiteTopicListRequest, broker.LiteTopicListResponse
)
RECALL = _method("popwheel.v1.Broker", "Recall", broker.RecallRequest, broker.RecallResponse)
END_TRANSACTION = _method(
    "popwheel.v1.Broker", "EndTransaction", broker.EndTransactionRequest, broker.EndTransactionResponse
)
CHECK_TRANSACTIONS = _method(
    "popwheel.v1.Broker", "CheckTransactions", broker.TransactionProducers, broker.TransactionCheck
)
TIMER_STATS = _method("popwheel.v1.Broker", "TimerStats", broker.TimerStatsRequest, broker.TimerStatsResponse)
TIMER_LIST = _method("popwheel.v1.Broker", "TimerList", broker.TimerListRequest, broker.TimerListResponse)
IN_FLIGHT_LIST = _method("popwheel.v1.Broker", "InFlightList", broker.InFlightListRequest, broker.InFlightListResponse)
IN_FLIGHT_SUMMARY = _method(
    "popwheel.v1.Broker", "InFlightSummary", broker.InFlightSummaryRequest, broker.InFlightSummaryResponse
)
IN_FLIGHT_RELEASE = _method(
    "popwheel.v1.Broker", "InFlightRelease", broker.InFlightReleaseRequest, broker.InFlightReleaseResponse
)
MESSAGE_EVENTS = _method(
    "popwheel.v1.Broker", "MessageEvents", broker.MessageEventsRequest, broker.MessageEventsResponse
)
NAME_LIST = _method("popwheel.v1.Broker", "NameList", broker.NameListRequest, broker.NameListResponse)
DESCRIBE_USE = _method("popwheel.v1.Broker", "DescribeUse", broker.DescribeUseRequest, broker.DescribeUseResponse)
PROGRESS_LIST = _method("popwheel.v1.Broker", "ProgressList", broker.ProgressListRequest, broker.ProgressListResponse)
MESSAGE_TRACE = _method("popwheel.v1.Broker", "MessageTrace", broker.MessageTraceRequest, broker.MessageTraceResponse)
MESSAGE_LIST = _method("popwheel.v1.Broker", "MessageList", broker.MessageListRequest, broker.MessageListResponse)
MESSAGE_TAIL = _method("popwheel.v1.Broker", "MessageTail", broker.MessageTailRequest, broker.MessageTailResponse)
DEAD_LETTER_SELECT = _method(
    "popwheel.v1.Broker", "DeadLetterSelect", broker.DeadLetterSelectRequest, broker.DeadLetterSelectResponse
)
QUARANTINE_LIST = _method(
    "popwheel.v1.Broker", "QuarantineList", broker.QuarantineListRequest, broker.QuarantineListResponse
)
QUARANTINE_SHOW = _method(
    "popwheel.v1.Broker", "QuarantineShow", broker.QuarantineShowRequest, broker.QuarantineShowResponse
)
QUARANTINE_RETRY = _method(
    "popwheel.v1.Broker", "QuarantineRetry", broker.QuarantineRetryRequest, broker.QuarantineRetryResponse
)
QUARANTINE_DROP = _method(
    "popwheel.v1.Broker", "QuarantineDrop", broker.QuarantineDropRequest, broker.QuarantineDropResponse
)
SAMPLE_ACTIVITY = _method(
    "popwheel.v1.Broker", "SampleActivity", broker.SampleActivityRequest, broker.SampleActivityResponse
)
DESCRIBE_GROUPS = _method(
    "popwheel.v1.Broker", "DescribeGroups", broker.DescribeGroupsRequest, broker.DescribeGroupsResponse
)
DESCRIBE_TOPICS = _method(
    "popwheel.v1.Broker", "DescribeTopics", broker.DescribeTopicsRequest, broker.DescribeTopicsResponse
)
GROUP_BALANCE = _method("popwheel.v1.Broker", "GroupBalance", broker.GroupBalanceRequest, broker.GroupBalanceResponse)
TIMER_HISTOGRAM = _method(
    "popwheel.v1.Broker", "TimerHistogram", broker.TimerHistogramRequest, broker.TimerHistogramResponse
)

REPLICATE = _method("popwheel.v1.Broker", "Replicate", broker.ReplicateProgress, broker.LogChunk)
READ_RECORDS = _method("popwheel.v1.Broker", "ReadRecords", broker.ReadRecordsRequest, broker.ReadRecordsResponse)
REPLICA_STATUS = _method(
    "popwheel.v1.Broker", "ReplicaStatus", broker.ReplicaStatusRequest, broker.ReplicaStatusResponse
)
HAND_OVER = _method("popwheel.v1.Broker", "HandOver", broker.HandOverRequest, broker.HandOverResponse)
FETCH_CHECKPOINT = _method(
    "popwheel.v1.Broker", "FetchCheckpoint", broker.FetchCheckpointRequest, broker.ReplicaCheckpoint
)
STORE_CHECKPOINT = _method(
    "popwheel.v1.Broker", "StoreCheckpoint", broker.ReplicaCheckpoint, broker.StoreCheckpointResponse
)

WATCH = _method("popwheel.v1.Controller", "Watch", controller.WatchRequest, controller.ClusterUpdate)
ENSURE_TOPIC = _method(
    "popwheel.v1.Controller", "EnsureTopic", controller.EnsureTopicRequest, controller.EnsureTopicResponse
)
ENSURE_GROUP = _method(
    "popwheel.v1.Controller", "EnsureGroup", controller.EnsureGroupRequest, controller.EnsureGroupResponse
)
REGISTER_BROKER = _method("popwheel.v1.Controller", "RegisterBroker", controller.ReplicaReport, controller.BrokerGroup)
CHANGE_SYNC_STATE_SET = _method(
    "popwheel.v1.Controller", "ChangeSyncStateSet", controller.SyncStateSetRequest, controller.BrokerGroup
)
DESCRIBE_BROKER_GROUP = _method(
    "popwheel.v1.Controller", "DescribeBrokerGroup", controller.DescribeBrokerGroupRequest, controller.BrokerGroup
)
INSPECT = _method("popwheel.v1.Controller", "Inspect", controller.InspectAnswer, controller.InspectQuestion)
