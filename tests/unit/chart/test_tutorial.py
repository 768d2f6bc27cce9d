"""Values, names, the resource and the commands of docs/start/kubernetes.md are right, as far as no cluster is needed.

What they then do on a cluster is for tests/e2e.
"""

import re
import shlex
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from popwheel_cli.main import main
from popwheel_controller.kubernetes.api import BROKER_GROUPS, TOPICS
from tests.harness.chart import NAMESPACE, RenderedChart, Values
from tests.unit.chart.test_definitions import definition, schema_of
from tests.unit.source import ROOT
from tools.generate_values_schema import CHART

TEXT = (ROOT / "docs/start/kubernetes.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))


def objects(values: Values | None = None) -> dict[tuple[str, str], Any]:
    """Kind and name -> what the chart makes."""
    return {(made["kind"], made["metadata"]["name"]): made for made in RenderedChart(values).objects}


def test_the_chart_is_where_it_says_and_goes_into_the_namespace_that_follows() -> None:
    (chart, namespace) = re.findall(r"helm install popwheel (\S+) -n (\S+) ", COMMANDS)[0]
    assert ROOT / chart == CHART
    assert namespace == NAMESPACE == re.findall(r"--namespace=(\S+)", COMMANDS)[0]
    assert f"popwheel-proxy.{namespace}:8081" in TEXT


def test_it_takes_the_values_that_are_named() -> None:
    (file,) = re.findall(r"`-f (\S+)`", TEXT)
    objects(yaml.safe_load((ROOT / file).read_text(encoding="utf-8")))
    assert objects({"image": {"repository": "REGISTRY/popwheel"}})
    service = objects({"proxy": {"service": {"type": "LoadBalancer"}}})["Service", "popwheel-proxy"]
    assert "proxy.service.type=LoadBalancer" in TEXT
    assert service["spec"]["type"] == "LoadBalancer"


def test_there_is_as_much_as_it_says() -> None:
    made = objects()
    assert "two proxies, two broker groups of two\nreplicas each, and two controllers" in TEXT
    brokers = [each for (kind, name), each in made.items() if kind == "StatefulSet" and name.startswith("broker-")]
    assert [each["spec"]["replicas"] for each in brokers] == [2, 2]
    assert made["Deployment", "popwheel-proxy"]["spec"]["replicas"] == 2
    assert made["StatefulSet", "popwheel-controller"]["spec"]["replicas"] == 2


def test_services_and_pods_have_the_names_that_commands_use() -> None:
    made = objects()
    ports = {
        name: [port["port"] for port in each["spec"]["ports"]] for (_, name), each in made.items() if _ == "Service"
    }
    assert set(re.findall(r"--proxy (\S+?):8081", COMMANDS)) == {"popwheel-proxy"}
    assert 8081 in ports["popwheel-proxy"]
    (service, port) = re.findall(r"port-forward service/(\S+) (\d+)`", TEXT)[0]
    assert int(port) in ports[service]
    assert set(re.findall(r"kubectl exec (\S+)-0 ", COMMANDS)) == {"popwheel-controller"}


def test_the_topic_is_one_that_the_definition_takes() -> None:
    (text,) = re.findall(r"<<'END'\n(.*?)^END$", COMMANDS, re.DOTALL | re.MULTILINE)
    topic = yaml.safe_load(text)
    assert topic["kind"] == definition(TOPICS)["spec"]["names"]["kind"]
    Draft202012Validator(schema_of(TOPICS)).validate(topic)
    assert f"topics.{TOPICS.group}/{topic['metadata']['name']}" in COMMANDS
    assert f"kubectl get {BROKER_GROUPS.plural}" in COMMANDS


@pytest.mark.parametrize("line", [line for line in COMMANDS.splitlines() if " -- popwheel " in line])
def test_commands_of_popwheel_are_understood(line: str) -> None:
    words = shlex.split(line.partition(" -- popwheel ")[2])
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(command.name, list(words), parent=context, resilient_parsing=False)
