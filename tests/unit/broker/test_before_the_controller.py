"""A broker that has started while the controller is away has no key for receipt handles: it asks to be asked again."""

from collections.abc import Callable

import pytest

from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Cluster, ClusterUpdate
from tests.unit.broker.world import KEY, World, handles


def started_alone() -> tuple[World, str]:
    """A broker that holds one message, and has delivered another one before it started again."""
    w = World()
    w.add_topic("t")
    w.put("t", b"held")
    handle = handles(w.pop("g", "t"))[0]
    w.put("t", b"new")
    w.view = ClusterView()
    w.crash("process")
    return w, handle


@pytest.mark.parametrize(
    "ask",
    [
        lambda w, handle: w.pop("g", "t"),
        lambda w, handle: w.core.acks.ack("g", "t", [handle]),
        lambda w, handle: w.core.acks.change_invisible("g", "t", handle, 1000),
        lambda w, handle: w.core.acks.dead_letter("g", "t", handle),
    ],
)
def test_nothing_is_delivered_or_refused_for_good_before_the_key_is_known(ask: Callable[[World, str], object]) -> None:
    w, handle = started_alone()
    end = w.core.store.log.end_position
    with pytest.raises(StatusError) as refused:
        ask(w, handle)
    assert refused.value.code == Code.HA_NOT_AVAILABLE
    assert w.core.store.log.end_position == end

    w.view.apply(ClusterUpdate(version=1, snapshot=True, cluster=Cluster(name="test", receipt_key=KEY)))
    assert not w.core.acks.ack("g", "t", [handle])
    assert [message.body for message in w.pop("g", "t")] == [b"new"]
