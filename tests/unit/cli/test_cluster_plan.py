"""Which processes a cluster and `standalone --workers` are made of."""

from pathlib import Path

from popwheel_cli.cluster.cluster import console_address
from popwheel_cli.cluster.cluster_plan import Plan, Planner, Shape
from popwheel_cli.options import StandaloneOptions
from popwheel_cli.process.ports import Ports
from popwheel_common.settings.config import load


def plan(shape: Shape, *assignments: str) -> Plan:
    options = load(StandaloneOptions, assignments=("proxy.grpc_port=0", "controller.http_port=0", *assignments))
    with Ports() as ports:
        return Planner(options, ("--set", "broker.flush=async"), shape, Path("data"), ports).make()


def settings(made: Plan, name: str) -> dict[str, str]:
    (child,) = (child for tier in made.tiers for child in tier if child.name == name)
    return dict(word.split("=", 1) for word in child.words if "=" in word)


def folder(made: Plan, name: str) -> str:
    (child,) = (child for tier in made.tiers for child in tier if child.name == name)
    return child.words[child.words.index("--data-dir") + 1]


def test_one_replica_of_each_group() -> None:
    made = plan(Shape(groups=2, proxies=1))
    assert [[child.name for child in tier] for tier in made.tiers] == [
        ["controller"],
        ["broker-0", "broker-1"],
        ["proxy-0"],
    ]
    assert sorted(row[0] for row in made.rows) == ["broker-0", "broker-1", "controller", "proxy-0"]
    assert settings(made, "broker-1")["broker.name"] == '"broker-1"'
    assert settings(made, "broker-1")["broker.advertised_address"] == '""'
    assert settings(made, "broker-1")["broker.flush"] == "async"
    assert folder(made, "broker-1") == "data/broker-1"
    assert "controller.store.folder" not in settings(made, "controller")
    assert made.relays == []


def test_replicas_and_controllers() -> None:
    made = plan(Shape(groups=1, proxies=1, replicas=2, controllers=2))
    assert [[child.name for child in tier] for tier in made.tiers] == [
        ["controller-0", "controller-1"],
        ["broker-0-0", "broker-0-1"],
        ["proxy-0"],
    ]
    for number in range(2):
        of_replica = settings(made, f"broker-0-{number}")
        assert (of_replica["broker.name"], of_replica["broker.replica"]) == ('"broker-0"', str(number))
    assert [folder(made, f"controller-{number}") for number in range(2)] == ["data/controller", "data/controller-1"]
    stores = {settings(made, f"controller-{number}")["controller.store.folder"] for number in range(2)}
    assert stores == {f'"{Path("data/controller/controller").absolute()}"'}, "where one alone has its state"
    assert [folder(made, f"broker-0-{number}") for number in range(2)] == ["data/broker-0", "data/broker-0-1"]
    ports = [settings(made, f"controller-{number}")["controller.grpc_port"] for number in range(2)]
    both = f'"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"'
    assert settings(made, "broker-0-1")["broker.controller"] == both
    assert settings(made, "proxy-0")["proxy.controller"] == both


def test_the_console_is_at_the_first_controller() -> None:
    made = plan(Shape(groups=1, proxies=1, replicas=2, controllers=2))
    (http,) = (row[2] for row in made.rows if row[0] == "controller-0")
    assert console_address(made.rows) == f"{http}/"


def test_relays_stand_before_brokers_and_controllers() -> None:
    made = plan(Shape(groups=1, proxies=1, replicas=2, relays=True))
    relays = {relay.name: relay for relay in made.relays}
    assert sorted(relays) == ["broker-0-0", "broker-0-1", "controller"]
    of_replica = settings(made, "broker-0-1")
    assert of_replica["broker.grpc_port"] == str(relays["broker-0-1"].target_port)
    assert of_replica["broker.advertised_address"] == f'"127.0.0.1:{relays["broker-0-1"].port}"'
    assert of_replica["broker.controller"] == f'"127.0.0.1:{relays["controller"].port}"'
    assert settings(made, "proxy-0")["proxy.controller"] == f'"127.0.0.1:{relays["controller"].target_port}"'


def test_standalone_has_its_workers_and_brokers_as_children_and_is_the_controller_itself() -> None:
    made = plan(Shape(standalone=True, groups=2, workers=2))
    port = f"127.0.0.1:{made.grpc_port}"
    assert [[child.name for child in tier] for tier in made.tiers] == [
        [],
        ["broker", "broker-1"],
        [f"{port}/0", f"{port}/1"],
    ]
    children = [child for tier in made.tiers for child in tier]
    assert [child.label for child in children] == ["broker", "broker-1", "0", "1"]
    assert {child.log for child in children} == {None}, "their output goes where the parent's goes"
    assert len({child.port for child in children} | {made.grpc_port, made.http_port}) == 6
    for number in range(2):
        of_worker = settings(made, f"{port}/{number}")
        assert of_worker["proxy.grpc_port"] == str(made.grpc_port)
        assert of_worker["proxy.controller"] == f'"{made.controllers}"'
        assert of_worker["proxy.http_host"] == '"127.0.0.1"', "the parent has all on its own page"
        assert of_worker["proxy.auto_create_topics"] == "true"


def test_the_first_broker_of_standalone_is_that_of_one_process() -> None:
    made = plan(Shape(standalone=True, groups=2))
    assert (folder(made, "broker"), folder(made, "broker-1")) == ("data", "data/broker-1")
    first, second = made.tiers[1]
    assert "--lock-inherited" in first.words, "the parent has locked that folder"
    assert "--lock-inherited" not in second.words
    assert [settings(made, name)["broker.name"] for name in ("broker", "broker-1")] == ['"broker-0"', '"broker-1"']
    assert settings(made, "broker-1")["broker.flush"] == "async"


def test_brokers_of_standalone_are_named_after_the_first() -> None:
    made = plan(Shape(standalone=True, groups=2), "broker.name=mq", "broker.replica=3", "proxy.name=gate")
    assert [settings(made, name)["broker.name"] for name in ("broker", "broker-1")] == ['"mq"', '"mq-1"']
    assert settings(made, "broker")["broker.replica"] == "3", "as the superblock has it"
    assert [child.name for child in made.tiers[2]] == ["gate/0"]
