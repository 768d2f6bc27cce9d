"""The official Python client with right, wrong and missing credentials."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness.programs import Outcome, run_program
from tests.harness.standalone import StandaloneProcess

SECRET = "secret of the service"
CREDENTIALS = {
    "right": ("service", SECRET),
    "wrong-secret": ("service", "not the secret"),
    "wrong-key": ("nobody", SECRET),
    "missing": (),
    "producer": ("producer", SECRET),
}
RULES = {
    "service": [{"topic": "Access*", "allow": ["admin"]}, {"group": "access*", "allow": ["admin"]}],
    "producer": [{"topic": "Access*", "allow": ["publish", "admin"]}],
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("access")
    users = [{"access_key": key, "secret": SECRET, "rules": rules} for key, rules in RULES.items()]
    (folder / "access.json").write_text(json.dumps({"users": users}))
    words = ("--set", f"access.file={folder / 'access.json'}")
    with StandaloneProcess(folder / "data", words) as server, ThreadPoolExecutor(len(CREDENTIALS)) as pool:

        def run(name: str, credentials: tuple[str, ...]) -> Outcome:
            arguments = ("-m", "tests.interop.access_client", server.grpc_address, f"Access-{name}", f"access-{name}")
            return run_program([*arguments, *credentials], folder / name)

        running = {name: pool.submit(run, name, credentials) for name, credentials in CREDENTIALS.items()}
        yield {name: each.result() for name, each in running.items()}


def refusals(outcome: Outcome) -> dict[str, str]:
    """What was refused, and in which words."""
    assert outcome.exit_code == 0, outcome.explain()
    return {event["what"]: event["text"] for event in outcome.of("refused")}


def test_right_credentials_send_receive_and_ack(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["right"]
    assert refusals(outcome) == {}, outcome.explain()
    assert [event["id"] for event in outcome.of("acked")] == [event["id"] for event in outcome.of("sent")]
    assert len(outcome.of("acked")) == 1


@pytest.mark.parametrize("name", ["wrong-secret", "wrong-key", "missing"])
def test_wrong_or_missing_credentials_get_nothing(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert outcome.of("sent") == outcome.of("acked") == []
    assert refusals(outcome).keys() == {"send", "receive"}, outcome.explain()
    sentence = "the client was given no access key" if name == "missing" else "the access key or its secret is wrong"
    assert sentence in outcome.explain()


def test_a_group_without_a_rule_is_forbidden(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["producer"]
    assert len(outcome.of("sent")) == 1
    assert outcome.of("acked") == []
    assert "may not subscribe with the group access-producer" in outcome.explain()
