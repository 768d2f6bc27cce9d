"""Refusals of requests over HTTP: a status, a code, and a sentence."""

from collections.abc import Mapping

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from popwheel_common.errors import NotLeadingError, StatusError, code_name
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_MESSAGE_LENGTH_MAX = 1_000
_PATH_LENGTH_MAX = 300
_SENTENCES_MAX = 10
_HTTP_STATUS_OF_CODE = {Code.PRECONDITION_FAILED: 409, Code.PROXY_TIMEOUT: 504}
_HTTP_STATUSES = frozenset((400, 401, 402, 403, 404, 408, 409, 413, 429, 431, 500, 501, 504))


def http_status(code: int) -> int:
    """Return the HTTP status that says the same as a code of `apache.rocketmq.v2.Code`."""
    status = _HTTP_STATUS_OF_CODE.get(Code.ValueType(code), code // 100)
    return status if status in _HTTP_STATUSES else (400 if 40000 <= code < 50000 else 500)


def refusal(
    status: int,
    code: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an answer that refuses.

    Args:
        status: of HTTP.
        code: of `apache.rocketmq.v2.Code`.
        message: a sentence; it may hold what a caller wrote.
        headers: of the answer.
        more: further fields.
    """
    content = {"code": code_name(code), "message": printable(message), **(more or {})}
    return JSONResponse(content, status_code=status, headers=headers)


def printable(message: str) -> str:
    """Return a sentence that may hold what a caller wrote, as terminals and logs can bear it."""
    escaped = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message[:_MESSAGE_LENGTH_MAX])
    return escaped if len(message) <= _MESSAGE_LENGTH_MAX else f"{escaped}..."


async def refused(request: Request, error: Exception) -> Response:
    """Answer what a handler has refused."""
    assert isinstance(error, StatusError)
    more = {"leader": error.leader} if isinstance(error, NotLeadingError) else {}
    return refusal(http_status(error.code), error.code, error.message, more=more)


async def not_understood(request: Request, error: Exception) -> Response:
    """Answer a request whose values cannot be."""
    assert isinstance(error, RequestValidationError)
    sentences = [
        f"{'.'.join(str(part) for part in details['loc'][1:]) or 'the request'}: {details['msg']}"
        for details in error.errors()[:_SENTENCES_MAX]
    ]
    return refusal(400, Code.BAD_REQUEST, "; ".join(sentences))


async def no_such_route(request: Request, error: Exception) -> Response:
    """Answer a request for which there is no handler."""
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.BAD_REQUEST
    path = request.url.path[:_PATH_LENGTH_MAX]
    return refusal(error.status_code, code, f"{request.method} {path}: {error.detail}")
