"""What a broker says that can open no further file: a sentence, by a named status, and nothing is changed."""

import errno
from pathlib import Path
from typing import NoReturn

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_rpc import methods
from tests.unit.broker.served_broker import Broker
from tests.unit.broker.test_cold_calls import bodies, popped, serve, stored


def refuse(path: Path) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def test_a_pop_whose_queue_can_not_be_read_is_notified_so_and_takes_all_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(broker: Broker) -> None:
        await stored(broker, 3)
        with monkeypatch.context() as patch:
            patch.setattr(broker.disk, "open", refuse)
            with pytest.raises(StatusError) as refused:
                await popped(broker)
        assert refused.value.code == Code.INTERNAL_ERROR
        assert "Too many open files" in refused.value.message and "nothing was changed" in refused.value.message
        assert bodies((await popped(broker)).messages) == [b"0", b"1", b"2"]

    serve(work)


def test_a_send_that_is_tried_again_and_can_not_be_looked_up_is_notified_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        run = (await stored(broker, 2))[-1]
        run.is_retry = True
        with monkeypatch.context() as patch:
            patch.setattr(broker.disk, "open", refuse)
            with pytest.raises(StatusError) as refused:
                await broker.channel.call(methods.PUT, [run])
        assert refused.value.code == Code.INTERNAL_ERROR
        assert "Too many open files" in refused.value.message and "none was stored by this one" in refused.value.message
        assert (await broker.channel.call(methods.PUT, [run]))[0].queue_offset == 1
        assert bodies((await popped(broker)).messages) == [b"0", b"1"]

    serve(work)
