"""Which cluster a command means, and what a file of contexts may hold."""

import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from popwheel_cli.admin.connection import connection_from
from popwheel_cli.admin.contexts import (
    CONTEXTS_MAX,
    FILE_BYTES_MAX,
    Context,
    Contexts,
    contexts_file,
    load_contexts,
    save_contexts,
)
from popwheel_cli.errors import CommandError
from popwheel_cli.main import main
from popwheel_common.contract.credentials import Credentials
from popwheel_common.settings.config import load
from popwheel_proxy.options import ProxyOptions

LAB = Context("http://lab:1", proxy="lab:2", token_variable="LAB_TOKEN", access_key="me", secret_variable="LAB_SECRET")
SECRETS = {"LAB_TOKEN": "lab-token", "LAB_SECRET": "lab-secret"}
BOTH = Contexts({"lab": LAB, "prod": Context("http://prod:1")}, current="lab")


def server_of(given: Mapping[str, str], environment: Mapping[str, str], contexts: Contexts = BOTH) -> str:
    return connection_from(given, {**SECRETS, **environment}, lambda: contexts).servers


@pytest.mark.parametrize(
    ("given", "environment", "server"),
    [
        ({}, {}, "http://lab:1"),
        ({}, {"POPWHEEL_CONTEXT": "prod"}, "http://prod:1"),
        ({}, {"POPWHEEL_CONTEXT": "prod", "POPWHEEL_SERVER": "http://variable"}, "http://variable"),
        ({"context": "prod"}, {"POPWHEEL_SERVER": "http://variable"}, "http://prod:1"),
        ({"server": "http://option"}, {"POPWHEEL_CONTEXT": "prod", "POPWHEEL_SERVER": "http://x"}, "http://option"),
    ],
)
def test_options_come_before_variables_and_those_before_contexts(
    given: dict[str, str], environment: dict[str, str], server: str
) -> None:
    assert server_of(given, environment) == server


def test_without_any_word_this_machine_is_meant() -> None:
    assert server_of({}, {}, Contexts()) == "http://127.0.0.1:8080"


def test_a_context_has_all_that_a_command_needs() -> None:
    found = connection_from({}, SECRETS, lambda: BOTH)
    assert (found.token, found.credentials, found.proxy) == ("lab-token", Credentials("me", "lab-secret"), "lab:2")
    found = connection_from({"token": "mine", "access_key": "you", "secret": "yours"}, SECRETS, lambda: BOTH)
    assert (found.token, found.credentials) == ("mine", Credentials("you", "yours"))
    found = connection_from({}, {**SECRETS, "POPWHEEL_TOKEN": "of a variable"}, lambda: BOTH)
    assert (found.token, found.credentials) == ("of a variable", Credentials("me", "lab-secret"))


def test_secrets_of_a_context_go_to_no_other_server() -> None:
    found = connection_from({"server": "http://elsewhere"}, SECRETS, lambda: BOTH)
    assert (found.token, found.credentials, found.proxy) == ("", Credentials("", ""), "")


def test_a_file_is_not_read_where_no_context_is_meant() -> None:
    def broken() -> Contexts:
        raise CommandError("it is broken")

    assert connection_from({"server": "http://option"}, {}, broken).servers == "http://option"
    with pytest.raises(CommandError):
        connection_from({}, {}, broken)


@pytest.mark.parametrize(
    ("given", "environment", "says"),
    [
        ({"server": "http://a", "context": "lab"}, SECRETS, "choose one of --server and --context"),
        ({"context": ""}, SECRETS, "there is no context ''"),
        ({"context": "nope"}, SECRETS, "there is no context 'nope' (lab, prod)"),
        ({}, {}, "the variable LAB_TOKEN, which is not set"),
    ],
)
def test_what_cannot_be_is_said(given: dict[str, str], environment: dict[str, str], says: str) -> None:
    with pytest.raises(CommandError) as refused:
        connection_from(given, environment, lambda: BOTH)
    assert says in refused.value.message


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    context = Context("http://a", token_file=str(file))
    with pytest.raises(CommandError, match="cannot be read"):
        context.connection({})
    file.write_text("secret\n")
    assert context.connection({}).token == "secret"
    file.write_text("x" * 5_000)
    with pytest.raises(CommandError, match="more than 4096 bytes"):
        context.connection({})
    file.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="not text"):
        context.connection({})


def test_a_file_of_contexts_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "contexts.yaml"
    assert load_contexts(file) == Contexts()
    save_contexts(file, BOTH)
    assert load_contexts(file) == BOTH
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["contexts.yaml"]
    (tmp_path / "plain").touch()
    with pytest.raises(CommandError, match="cannot be saved"):
        save_contexts(tmp_path / "plain" / "contexts.yaml", BOTH)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a", "keys current and contexts alone"),
        ("{", "not YAML"),
        ("\0", "not YAML"),
        ("other: 1", "keys current and contexts alone"),
        ("contexts: [a]", "by name"),
        ("contexts: {a: {}}", "must have a server"),
        ("contexts: {a: {server: 1}}", "wrong entry 'server'"),
        ("contexts: {a: {server: 'http://a', token: x}}", "wrong entry 'token'"),
        ("contexts: {a: {server: ftp}}", "--server must be like"),
        ("contexts: {'a b': {server: 'http://a'}}", "no name of a context"),
        ("contexts: {" + ", ".join(f"a{n}: {{server: 'http://a'}}" for n in range(CONTEXTS_MAX + 1)) + "}", "at most"),
        ("x" * (FILE_BYTES_MAX + 1), "more than"),
    ],
)
def test_a_file_that_is_none_of_contexts_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "contexts.yaml"
    file.write_text(text)
    with pytest.raises(CommandError) as refused:
        load_contexts(file)
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("context", "says"),
    [
        (Context("http://a", proxy="a"), "--proxy must be host:port"),
        (Context("http://a,b"), "--server must be like"),
        (Context("http://a", token_file="a", token_variable="B"), "choose one of --token-file and --token-variable"),
        (Context("http://a", secret_file="a"), "--access-key"),
    ],
)
def test_a_context_that_cannot_be_is_not_kept(context: Context, says: str) -> None:
    with pytest.raises(CommandError) as refused:
        Contexts().add("a", context, overwrite=False)
    assert says in refused.value.message


def test_there_is_a_limit_of_contexts() -> None:
    full = Contexts({f"a{number}": LAB for number in range(CONTEXTS_MAX)})
    with pytest.raises(CommandError, match="remove one first"):
        full.add("b", LAB, overwrite=False)
    assert full.add("a0", Context("http://b"), overwrite=True).get("a0").server == "http://b"
    with pytest.raises(CommandError, match="is there"):
        full.add("a0", LAB, overwrite=False)
    assert BOTH.remove("lab").current == ""
    assert BOTH.remove("prod").current == "lab"


def test_a_broken_file_spoils_no_help_and_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts_file().parent.mkdir()
    contexts_file().write_text("{")
    for words in (["topic", "--help"], ["standalone", "--help"], ["topic", "list", "--help"]):
        assert CliRunner().invoke(main, words).exit_code == 0
    failed = CliRunner().invoke(main, ["topic", "list"])
    assert (failed.exit_code, "is no file of contexts: it is not YAML" in failed.stderr) == (2, True)


def test_variables_of_commands_are_no_settings_of_services() -> None:
    load(ProxyOptions, environment={"POPWHEEL_SERVER": "http://a", "POPWHEEL_CONTEXT": "lab"})
