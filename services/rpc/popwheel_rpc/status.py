"""gRPC's own status codes, and the error that carries one."""

from enum import IntEnum


class GrpcStatus(IntEnum):
    """The status codes of gRPC (grpc.io, "Status codes and their use in gRPC")."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """Failure of a call that is no handler's refusal: no connection, deadline, unknown method, limit.

    Args:
        status: gRPC's code.
        message: one sentence for a person.
    """

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(f"{status.name}: {message}")
        self.status = status
        self.message = message


class NotProcessedError(RpcError):
    """Failure before the server processed the call: it can be retried, on another connection or elsewhere.

    Args:
        message: one sentence for a person.
        status: gRPC's code.
    """

    def __init__(self, message: str, status: GrpcStatus = GrpcStatus.UNAVAILABLE) -> None:
        super().__init__(status, message)
