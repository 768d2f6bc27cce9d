"""gRPC over HTTP/2: length prefixes, time-outs, statuses."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc.http2 import grpc_messages as grpc
from popwheel_rpc.status import GrpcStatus, RpcError


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(0, 500), max_size=12))
def test_any_split_gives_the_same_messages(messages: list[bytes], cuts: list[int]) -> None:
    data = grpc.frame_messages(messages)
    reader = grpc.MessageReader(1000)
    read = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        read += reader.feed(data[at:cut])
        at = max(at, min(cut, len(data)))
    assert read == messages
    assert reader.partial_bytes == 0


def test_a_message_in_two_parts() -> None:
    reader = grpc.MessageReader(10)
    assert reader.feed(b"\0\0\0\0\3a") == []
    assert reader.partial_bytes == 6
    assert reader.feed(b"bc\0") == [b"abc"]
    assert reader.partial_bytes == 1


def test_single_bytes_cost_no_more_than_what_they_are() -> None:
    reader = grpc.MessageReader(2**20)
    reader.feed(b"\0\0\x10\0\0")
    tracemalloc.start()
    for _ in range(100_000):
        reader.feed(b"x")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 300_000


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\0\0\0\0\x0b", GrpcStatus.RESOURCE_EXHAUSTED), (b"\1\0\0\0\1x", GrpcStatus.UNIMPLEMENTED)],
)
def test_messages_that_are_refused_by_their_prefix(data: bytes, status: GrpcStatus) -> None:
    with pytest.raises(RpcError) as raised:
        grpc.MessageReader(10).feed(data)
    assert raised.value.status is status


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("1H", 3600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("100m", 0.1),
        ("99999999u", 99.999999),
        ("5n", 5e-9),
        ("525600H", 365.0 * 24 * 3600),  # 60 years: cut to one
    ],
)
def test_timeouts(text: str, seconds: float | None) -> None:
    assert grpc.parse_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["S", "-1S", "1", "1x", "123456789S", "1.5S", " 1S", "\u00b2S"])
def test_what_is_no_timeout(text: str) -> None:
    with pytest.raises(RpcError):
        grpc.parse_timeout(text)


@given(st.floats(0, 1e9))
def test_a_written_timeout_is_never_shorter_by_more_than_a_second(seconds: float) -> None:
    read = grpc.parse_timeout(grpc.format_timeout(seconds).decode())
    assert read is not None
    assert read >= min(seconds, grpc.TIMEOUT_S_MAX, 99_999_999) - 1


@given(st.text(max_size=200))
def test_messages_of_a_status_come_back(text: str) -> None:
    quoted = grpc.quote_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in quoted)
    assert grpc.unquote_message(quoted.decode()).strip() == text.encode("utf-8", "replace").decode().strip()


@pytest.mark.parametrize("text", ["100%", "%zz", "%", "%4"])
def test_what_is_no_percent_encoding_stays(text: str) -> None:
    assert grpc.unquote_message(text) in (text, text.replace("%4", "\x04"))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.BAD_REQUEST, GrpcStatus.INVALID_ARGUMENT),
        (Code.TOPIC_NOT_FOUND, GrpcStatus.NOT_FOUND),
        (Code.MESSAGE_NOT_FOUND, GrpcStatus.NOT_FOUND),
        (Code.TOO_MANY_REQUESTS, GrpcStatus.RESOURCE_EXHAUSTED),
        (Code.INTERNAL_SERVER_ERROR, GrpcStatus.INTERNAL),
        (Code.HA_NOT_AVAILABLE, GrpcStatus.UNAVAILABLE),
        (Code.PROXY_TIMEOUT, GrpcStatus.DEADLINE_EXCEEDED),
    ],
)
def test_how_refusals_travel(code: Code.ValueType, status: GrpcStatus) -> None:
    fields = {name.decode(): value.decode() for name, value in grpc.trailers_of_error(StatusError(code, "naïve 100%"))}
    assert fields["grpc-status"] == str(int(status))
    error = grpc.error_of_trailers(fields)
    assert isinstance(error, StatusError)
    assert (error.code, error.message) == (code, "naïve 100%")


def test_a_refusal_of_one_that_does_not_lead_travels_as_such() -> None:
    fields = {name.decode(): value.decode() for name, value in grpc.trailers_of_error(NotLeadingError("not I"))}
    assert fields["grpc-status"] == str(int(GrpcStatus.UNAVAILABLE))
    error = grpc.error_of_trailers(fields)
    assert isinstance(error, NotLeadingError)
    assert (error.code, error.message) == (Code.HA_NOT_AVAILABLE, "not I")
    del fields[grpc.NOT_LEADING_TRAILER]
    assert not isinstance(grpc.error_of_trailers(fields), NotLeadingError)


def test_other_endings() -> None:
    assert grpc.error_of_trailers({"grpc-status": "0"}) is None
    lost = grpc.error_of_trailers({"grpc-status": "14", "grpc-message": "away"})
    assert isinstance(lost, RpcError) and lost.status is GrpcStatus.UNAVAILABLE
    unknown = grpc.error_of_trailers({"grpc-status": "banana"})
    assert isinstance(unknown, RpcError) and unknown.status is GrpcStatus.UNKNOWN
    newer = grpc.error_of_trailers({"grpc-status": "3", grpc.CODE_TRAILER: "49999"})
    assert isinstance(newer, StatusError) and newer.code == Code.INTERNAL_SERVER_ERROR
