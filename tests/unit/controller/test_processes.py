"""What operators are notified of brokers and proxies."""

from popwheel_common.pb.popwheel.v1.controller_pb2 import WatchRequest
from popwheel_controller.cluster.processes import Member, Processes, Registration

ADDRESS = "10.0.0.1:8082"


def proxy(name: str) -> WatchRequest:
    return WatchRequest(process=name, kind=WatchRequest.PROXY, address="10.0.0.2:8081", pid=7, http_port=8091)


def broker(name: str, replica: int = 0) -> WatchRequest:
    return WatchRequest(process=name, kind=WatchRequest.BROKER, pid=8, http_port=8090, replica=replica)


def registered(name: str, replica: int = 0, role: str = "master") -> Registration:
    return Registration(name, replica, ADDRESS, 1000, role)


def test_a_broker_is_shown_while_it_is_registered_or_watches() -> None:
    processes = Processes()
    (member,) = processes.members([registered("broker-0")])
    assert member == Member("broker", "broker-0", ADDRESS, None, 1000, "", "", 0, "master")
    watching = processes.register(broker("broker-0"), "127.0.0.1:4000", 900)
    (member,) = processes.members([registered("broker-0")])
    assert member == Member("broker", "broker-0", ADDRESS, 8, 1000, "127.0.0.1:8090", "", 0, "master")
    (member,) = processes.members([])
    assert (member.name, member.since_ms, member.trouble) == ("broker-0", 900, "it is not registered")
    processes.left(watching)
    processes.left(watching)
    assert processes.members([]) == []


def test_each_replica_of_a_group_is_shown() -> None:
    processes = Processes()
    for number in (1, 0):
        processes.register(broker("broker-0", number), "local", 5)
    members = processes.members([registered("broker-0", 1), registered("broker-0", 0, "slave")])
    assert [(member.replica, member.role, member.pid) for member in members] == [(0, "slave", 8), (1, "master", 8)]


def test_a_pid_is_shown_only_of_this_machine() -> None:
    processes = Processes()
    for peer in ("127.0.0.1:1", "[::1]:1", "local", "10.0.0.2:1", "unix:/x"):
        processes.register(proxy(peer), peer, 5)
    assert {member.name: (member.pid, member.health) for member in processes.members([])} == {
        "127.0.0.1:1": (7, "127.0.0.1:8091"),
        "[::1]:1": (7, "[::1]:8091"),
        "local": (7, ""),
        "10.0.0.2:1": (None, "10.0.0.2:8091"),
        "unix:/x": (None, "unix:8091"),
    }


def test_brokers_come_first_and_numbers_are_numbers() -> None:
    processes = Processes()
    for name in ("proxy-10", "proxy-9", "proxy"):
        processes.register(proxy(name), "local", 5)
    processes.register(broker("broker-2"), "local", 5)
    processes.register(WatchRequest(process="of an older release"), "local", 5)
    brokers = [registered(name) for name in ("broker-11", "broker-2")]
    names = [member.name for member in processes.members(brokers)]
    assert names == ["broker-2", "broker-11", "proxy", "proxy-9", "proxy-10"]


def test_two_proxies_of_one_name_are_two() -> None:
    processes = Processes()
    for since_ms in (6, 5):
        processes.register(proxy("proxy"), "local", since_ms)
    assert [member.since_ms for member in processes.members([])] == [5, 6]


def test_one_that_listens_everywhere_is_reached_where_it_calls_from() -> None:
    processes = Processes()
    for name, address in (("one", "0.0.0.0:8081"), ("two", "[::]:8081"), ("three", "messages.example.com:443")):
        processes.register(WatchRequest(process=name, kind=WatchRequest.PROXY, address=address), "10.0.0.9:4000", 5)
    assert {member.name: member.address for member in processes.members([])} == {
        "one": "10.0.0.9:8081",
        "two": "10.0.0.9:8081",
        "three": "messages.example.com:443",
    }
