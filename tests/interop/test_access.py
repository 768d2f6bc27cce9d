"""The official Python client with right, wrong and missing credentials."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.programs import Outcome, run_program
from tests.harness.standalone import StandaloneProcess

SECRET = "secret of the service"
CREDENTIALS = {
    "right": ("service", SECRET),
    "wrong-secret": ("service", "not the secret"),
    "wrong-key": ("nobody", SECRET),
    "missing": (),
    "producer": ("producer", SECRET),
    "push-right": ("service", SECRET),
    "push-wrong-secret": ("service", "not the secret"),
}
RULES = {
    "service": [{"topic": "Access*", "allow": ["admin"]}, {"group": "access*", "allow": ["admin"]}],
    "producer": [{"topic": "Access*", "allow": ["publish", "admin"]}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Iterator[dict[str, Outcome]]:
    root = new_authority()
    volume = CertificateVolume(folder / "certificates")
    volume.hold(certificate_by(root), root)
    users = [{"access_key": key, "secret": SECRET, "rules": rules} for key, rules in RULES.items()]
    (folder / "access.json").write_text(json.dumps({"users": users}))
    words = (
        *("--set", f"access.file={folder / 'access.json'}"),
        *("--set", f"proxy.tls.certificate_file={volume.certificate}"),
        *("--set", f"proxy.tls.key_file={volume.key}"),
        *("--set", "proxy.grpc_client_consumer_min_long_polling_timeout_ms=0"),
        *("--set", "proxy.grpc_client_consumer_max_long_polling_timeout_ms=2000"),
    )
    with StandaloneProcess(folder / "data", words) as server, ThreadPoolExecutor(len(CREDENTIALS)) as pool:

        def run(name: str, credentials: tuple[str, ...]) -> Outcome:
            names = (f"Access-{name}", f"access-{name}", "push" if name.startswith("push") else "simple")
            arguments = ["-m", "tests.interop.access_client", server.grpc_address, *names, *credentials]
            trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(volume.authority)}
            return run_program(arguments, folder / name, environment=trusted)

        running = {name: pool.submit(run, name, credentials) for name, credentials in CREDENTIALS.items()}
        yield {name: each.result() for name, each in running.items()}


def refusals(outcome: Outcome) -> dict[str, str]:
    """What was refused, and in which words."""
    assert outcome.exit_code == 0, outcome.explain()
    return {event["what"]: event["text"] for event in outcome.of("refused")}


@pytest.mark.parametrize("name", ["right", "push-right"])
def test_right_credentials_send_receive_and_ack(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
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


def test_a_push_consumer_with_a_wrong_secret_gets_nothing_and_is_in_the_log(
    outcomes: dict[str, Outcome], folder: Path
) -> None:
    outcome = outcomes["push-wrong-secret"]
    assert outcome.of("sent") == outcome.of("acked") == []
    assert "send" in refusals(outcome), outcome.explain()
    assert "the access key or its secret is wrong" in outcome.explain()
    reported = [line for line in (folder / "data.log").read_text().splitlines() if "access denied" in line]
    assert any("wrong_signature" in line and "'service'" in line for line in reported), reported


def test_a_group_without_a_rule_is_forbidden(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["producer"]
    assert len(outcome.of("sent")) == 1
    assert outcome.of("acked") == []
    assert "may not subscribe with the group access-producer" in outcome.explain()
