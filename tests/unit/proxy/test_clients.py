"""The clients, their users, and when they have gone: by the given time, nothing else."""

import pytest

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.session import clients as module
from popwheel_proxy.session.clients import Clients


def clients_of(clients_max: int = 100) -> Clients:
    return Clients(clients_max, 60.0, 15.0)


def test_clients_are_gone_when_they_have_not_been_learned_of() -> None:
    clients = clients_of(2)
    clients.seen("a", 0.0)
    clients.seen("b", 10.0)
    with pytest.raises(StatusError):
        clients.seen("c", 10.0)
    clients.seen("a", 50.0)
    assert clients.is_alive("a", 100.0)
    assert not clients.is_alive("b", 100.0)
    assert clients.expire(100.0) == ["b"]
    assert len(clients) == 1
    clients.remove("a")
    assert not clients.is_alive("a", 51.0)


def test_a_client_whose_last_call_has_broken_is_gone_after_a_grace() -> None:
    clients = clients_of()
    clients.seen("a", 0.0)
    for _ in range(2):
        clients.call_opened("a")
    clients.call_closed("a", 1.0, broken=True)
    assert clients.expire(30.0) == [], "the other one is open"
    clients.call_closed("a", 30.0, broken=True)
    assert (clients.broken, clients.expire(44.9), clients.expire(45.0)) == (1, [], ["a"])
    assert (len(clients), clients.broken) == (0, 0)


@pytest.mark.parametrize("sign", ["seen", "opened"])
def test_a_client_that_comes_back_within_the_grace_is_not_gone(sign: str) -> None:
    clients = clients_of()
    clients.seen("a", 40.0)
    clients.call_opened("a")
    clients.call_closed("a", 40.0, broken=True)
    if sign == "seen":
        clients.seen("a", 54.0)
    else:
        clients.call_opened("a")
    assert (clients.expire(90.0), clients.broken) == ([], 0)


def test_a_poll_that_was_answered_is_no_broken_call() -> None:
    clients = clients_of()
    clients.seen("a", 0.0)
    clients.call_opened("a")
    clients.call_closed("a", 0.0, broken=False)
    assert clients.expire(59.0) == []


def test_calls_of_clients_that_said_goodbye_or_never_spoke_leave_nothing() -> None:
    clients = clients_of()
    clients.seen("a", 0.0)
    clients.call_opened("a")
    clients.call_opened("stranger")
    clients.remove("a")
    clients.call_closed("a", 0.0, broken=True)
    clients.call_closed("stranger", 0.0, broken=True)
    assert (clients.broken, clients.expire(1e9)) == (0, [])


def test_calls_that_others_opened_under_a_client_id_say_nothing_of_it() -> None:
    clients = clients_of()
    clients.call_opened("a", "bob")
    clients.seen("a", 40.0, "alice")
    clients.call_opened("a", "alice")
    clients.call_closed("a", 40.0, "bob", broken=True)
    assert clients.broken == 0
    clients.call_opened("a", "bob")
    clients.call_closed("a", 40.0, "alice", broken=True)
    assert (clients.broken, clients.expire(55.0)) == (1, ["a"])


def test_a_client_id_is_one_users_as_long_as_it_lives() -> None:
    clients = clients_of()
    clients.seen("a", 0.0, "alice")
    assert (clients.user_of("a"), clients.user_of("b")) == ("alice", None)
    with pytest.raises(StatusError) as refused:
        clients.seen("a", 1.0, "bob")
    assert refused.value.code == Code.FORBIDDEN
    assert clients.expire(60.0) == ["a"]
    clients.seen("a", 61.0, "bob")
    assert clients.user_of("a") == "bob"


def test_many_that_are_gone_at_one_time_are_found_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOST_AT_ONCE_MAX", 2)
    clients = clients_of()
    for client_id in "abcde":
        clients.seen(client_id, 0.0)
    for client_id in "ab":
        clients.call_opened(client_id)
        clients.call_closed(client_id, 0.0, broken=True)
    assert [clients.expire(100.0) for _ in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]


def test_whether_clients_read_lite_topics_is_known_as_long_as_they_are() -> None:
    clients = clients_of()
    clients.is_of("a", lite=True)
    assert clients.reads_lite("a") is None
    clients.seen("a", 0.0)
    clients.is_of("a", lite=True)
    assert (clients.reads_lite("a"), clients.any_lite) == (True, True)
    clients.remove("a")
    assert (clients.reads_lite("a"), clients.any_lite) == (None, False)
