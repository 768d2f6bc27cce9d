"""Errors that are answered keep no frame, and with it no request, until a collection."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from popwheel_common.errors import StatusError, forget_frames
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class Request:
    """Stands for megabytes."""


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _refuse(request: Request) -> None:
    try:
        raise StatusError(Code.BAD_REQUEST, "first")
    except StatusError as error:
        kept = error
    raise kept from kept


def _refused() -> tuple[weakref.ref[Request], StatusError]:
    request = Request()
    try:
        _refuse(request)
    except StatusError as error:
        return weakref.ref(request), error
    raise AssertionError


def test_a_frame_that_keeps_its_error_is_let_go() -> None:
    request, error = _refused()
    assert request() is not None  # by the error's traceback
    forget_frames(error)
    assert request() is None
