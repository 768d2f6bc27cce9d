"""A newcomer's first session, with the command `popwheel` alone: real processes, as a shell would start them."""

import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from popwheel_cli.main import main
from tests.harness.standalone import ROOT, StandaloneProcess

TIMEOUT_S = 60.0


class Shell:
    """Runs `popwheel` as a newcomer does, with a home of its own.

    Args:
        server: that it calls.
        home: for the file of contexts.
    """

    def __init__(self, server: StandaloneProcess, home: Path) -> None:
        self.server = server
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(home), "POPWHEEL_SERVER": server.http_url}

    def begin(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "popwheel_cli.main", *words],
            cwd=ROOT,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, stdin: bytes | None = None, code: int = 0) -> tuple[str, str]:
        """Run a command; what it prints."""
        process = self.begin(*words, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        out, err = process.communicate(stdin, TIMEOUT_S)
        assert process.returncode == code, (words, out, err)
        assert b"Traceback" not in err
        return out.decode(), err.decode()

    def lines(self, *words: str, stdin: bytes | None = None) -> list[str]:
        """The lines that a command prints."""
        return self.run(*words, stdin=stdin)[0].splitlines()

    def rows(self, *words: str, stdin: bytes | None = None) -> list[dict[str, object]]:
        """The same of a command that prints one JSON document a line."""
        return [json.loads(line) for line in self.lines(*words, "-o", "json", stdin=stdin)]

    def refused(self, *words: str, code: int, stdin: bytes | None = None) -> str:
        """The one sentence of a command that fails."""
        out, err = self.run(*words, code=code, stdin=stdin)
        (line,) = err.splitlines()
        assert (out, line[:10]) == ("", "popwheel: ")
        return line


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A server, and a shell that knows by a variable where its admin API is."""
    folder = tmp_path_factory.mktemp("newcomer")
    with StandaloneProcess(folder / "data") as server:
        shell = Shell(server, folder / "home")
        # Which proxy a standalone server has is not to be found out where its port is not the usual one.
        shell.run("context", "add", "lab", "--server", server.http_url, "--proxy", server.grpc_address)
        del shell.environment["POPWHEEL_SERVER"]
        shell.environment["POPWHEEL_CONTEXT"] = "lab"
        yield shell


def bodies(rows: Sequence[dict[str, object]]) -> list[object]:
    return [row.get("body") for row in rows]


def test_a_first_message_is_sent_and_seen(shell: Shell, tmp_path: Path) -> None:
    shell.run("topic", "create", "Greetings", "--type", "MIXED")
    table, _ = shell.run(
        *("message", "send", "Greetings", "hello, world", "--key", "k1", "--key", "k2", "--tag", "morning"),
        *("--property", "color=red"),
    )
    sent = table.split()[-1]
    (by_input,) = shell.lines("message", "send", "Greetings", "-o", "name", stdin=b"from a pipe\n")
    (tmp_path / "body").write_bytes(b"\x00\xff")
    shell.run("message", "send", "Greetings", "--file", str(tmp_path / "body"))
    out, err = shell.run("message", "send", "Greetings", "--lines", "-o", "name", stdin=b"one\r\n\ntwo\nthree")
    assert (len(set(out.splitlines())), err) == (3, "3 messages were sent\n")

    browsed = shell.rows("message", "browse", "Greetings")
    assert bodies(browsed) == ["hello, world", "from a pipe\n", None, "one", "two", "three"]
    first = browsed[0]
    assert (first["message_id"], first["tag"], first["keys"]) == (sent, "morning", ["k1", "k2"])
    assert first["properties"] == {"color": "red"}
    assert browsed[1]["message_id"] == by_input
    assert b64decode(str(browsed[2]["body_base64"])) == b"\x00\xff"
    assert sent in shell.run("message", "get", sent, "--topic", "Greetings")[0]
    groups = shell.lines("group", "list", "-o", "name")
    assert "TOOLS_CONSUMER" not in groups  # who just looks leaves no group behind


def test_messages_are_found_by_place_key_and_tag(shell: Shell) -> None:
    """In this process, as many take long to start."""

    def reported(*words: str) -> str:
        result = CliRunner().invoke(main, ["message", *words], env=shell.environment)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def browsed(*words: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in reported("browse", "Places", *words, "-o", "json").splitlines()]

    reported("send", "Places", "hello, world", "--key", "k1", "--key", "k2", "--tag", "morning")
    for body in ("one", "two", "three"):
        reported("send", "Places", body)
    everything = browsed()
    assert bodies(everything) == ["hello, world", "one", "two", "three"]
    assert bodies(browsed("--key", "k2")) == bodies(browsed("--tag", "morning || noon")) == ["hello, world"]
    assert bodies(browsed("--from", "latest", "--limit", "2")) == ["two", "three"]
    assert browsed("--from", "-1h") == everything
    assert browsed("--from", "2100-01-01T00:00:00Z") == []
    place = ("--queue", str(everything[1]["queue_id"]), "--from", f"offset:{everything[1]['queue_offset']}")
    assert reported("browse", "Places", *place, "--limit", "1", "--raw") == "one\n"
    assert "hello, world" in reported("browse", "Places")


def test_messages_are_received_and_come_again(shell: Shell) -> None:
    shell.run("message", "send", "Received", "--lines", "--tag", "t", "--property", "a=1", stdin=b"1\n2\n3\n")
    group = ("message", "receive", "Received", "--group", "readers", "--count", "3")
    out, err = shell.run(*group, "--no-ack", "--invisible", "10s")
    assert (len(out.splitlines()), out.splitlines()[0].split()[0]) == (4, "STORED")
    assert err == "3 messages were not acknowledged: they come again when 10 s are over\n"
    rows = shell.rows(*group, "--wait", "60s")
    assert {row["delivery_attempt"] for row in rows} == {2}
    assert set(bodies(rows)) == {"1", "2", "3"}
    assert shell.run(*group, "--wait", "0s")[1] == "no message of Received came to readers within 0 s\n"
    progress = json.loads(shell.run("progress", "readers", "-o", "json")[0])
    assert sum(queue["lag"] + queue["in_flight"] for queue in progress["queues"]) == 0
    assert json.loads(shell.run("dlq", "list", "readers", "-o", "json")[0]) == {"letters": [], "total": 0}

    shell.run("offset", "reset", "readers", "Received", "--to", "earliest", "--force", "--yes")
    assert len(shell.rows(*group)) == 3
    for name, chosen in (("odd", ("--sql", "a = 1")), ("tagged", ("--filter", "t"))):
        by_filter = ("message", "receive", "Received", "--group", name, "--count", "3", "--raw")
        assert sorted(shell.lines(*by_filter, *chosen)) == ["1", "2", "3"]


def test_a_tail_shows_what_comes_and_takes_nothing(shell: Shell) -> None:
    shell.run("topic", "create", "Comings", "--type", "MIXED")
    shell.run("message", "send", "Comings", "before")
    tail = shell.begin("message", "tail", "Comings", "--count", "2", "-o", "json")
    endless = shell.begin("message", "tail", "Comings", "--filter", "b", "--raw")
    for process in (tail, endless):
        assert process.stderr is not None
        assert process.stderr.readline() == b"waiting for messages of Comings; Ctrl-C ends it\n"
    shell.run("message", "send", "Comings", "during", "--tag", "a")
    begun = time.time()
    delayed = yaml.safe_load(shell.run("message", "send", "Comings", "later", "--delay", "2s", "-o", "yaml")[0])
    assert delayed["recall_handle"]
    rows = [json.loads(line) for line in tail.communicate(timeout=TIMEOUT_S)[0].splitlines()]
    assert (tail.returncode, bodies(rows)) == (0, ["during", "later"])
    assert time.time() - begun >= 2
    shell.run("message", "send", "Comings", "last", "--tag", "b")
    assert endless.stdout is not None
    assert endless.stdout.readline() == b"last\n"
    endless.send_signal(signal.SIGINT)
    assert endless.communicate(timeout=TIMEOUT_S) == (b"", b"")
    assert endless.returncode == 0


def test_messages_of_each_type(shell: Shell) -> None:
    shell.run("topic", "create", "Ordered", "--type", "FIFO")
    shell.run("topic", "create", "Urgent", "--type", "PRIORITY")
    shell.run("message", "send", "Ordered", "--lines", "--group", "one", stdin=b"1\n2\n3\n")
    (first, *_) = rows = shell.rows("message", "browse", "Ordered")
    assert (bodies(rows), first["message_group"]) == (["1", "2", "3"], "one")
    shell.run("message", "send", "Urgent", "now", "--priority", "7")
    assert shell.rows("message", "browse", "Urgent")[0]["priority"] == 7
    assert "takes FIFO" in shell.refused("message", "send", "Ordered", "x", code=1)


def test_messages_over_tls(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "proxy.pem"
    file.write_text(ssl.get_server_certificate(("127.0.0.1", shell.server.grpc_port)))
    shell.run("message", "send", "Secrets", "over TLS", "--tls-ca", str(file))
    assert shell.lines("message", "browse", "Secrets", "--raw", "--tls-ca", str(file)) == ["over TLS"]


def test_contexts(shell: Shell, tmp_path: Path) -> None:
    own = Shell(shell.server, tmp_path / "home")
    (tmp_path / "token").write_text("s3cret\n")
    add = ("context", "add", "prod", "--server", shell.server.http_url, "--proxy", shell.server.grpc_address)
    own.run(*add, "--token-file", str(tmp_path / "token"))
    del own.environment["POPWHEEL_SERVER"]
    own.run("context", "use", "prod")
    file = tmp_path / "home/popwheel/contexts.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "s3cret" not in file.read_text()
    own.run("topic", "list")
    assert json.loads(own.run("context", "list", "-o", "json")[0])[0]["current"] is True
    assert own.lines("context", "list", "-o", "name") == ["prod"]
    assert yaml.safe_load(own.run("context", "show", "-o", "yaml")[0])["proxy"] == shell.server.grpc_address
    assert own.run("admin", "--context", "prod", "topic", "list") == own.run("topic", "list")
    assert "is there" in own.refused(*add, code=2)
    assert "'nope'" in own.refused("--context", "nope", "topic", "list", code=2)
    own.run("context", "remove", "prod")
    assert own.lines("context", "list", "-o", "name") == []


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("message", "send", "Wrong", "x", "--file", "y"), 2, "choose one of BODY and --file"),
        (("message", "send", "Wrong", "x", "--lines"), 2, "--lines is for a file"),
        (("message", "send", "Wrong", "--file", "/nonexistent/x"), 2, "No such file"),
        (("message", "send", "Wrong", "x", "--delay", "1s", "--at", "2100-01-01T00:00:00Z"), 2, "--delay and --at"),
        (("message", "send", "Wrong", "x", "--delay", "soon"), 2, "not a span of time"),
        (("message", "send", "Wrong", "x", "--delay", "9999d"), 1, "ILLEGAL_DELIVERY_TIME"),
        (("message", "send", "Wrong", "x", "--group", "g", "--priority", "1"), 2, "a message is of one type"),
        (("message", "send", "Wrong", "x", "--property", "color"), 2, "NAME=VALUE"),
        (("message", "send", "Wrong", ""), 1, "MESSAGE_BODY_EMPTY"),
        (("message", "send", "rmq_sys_x", "x"), 1, "ILLEGAL_TOPIC"),
        (("message", "browse", "Nowhere"), 1, "popwheel topic create Nowhere"),
        (("message", "tail", "Nowhere"), 1, "TOPIC_NOT_FOUND"),
        (("message", "receive", "Nowhere", "--group", "g"), 1, "TOPIC_NOT_FOUND"),
        (("message", "receive", "Wrong"), 2, "--group"),
        (("message", "receive", "Wrong", "--group", "g", "--filter", "a", "--sql", "a = 1"), 2, "--filter and --sql"),
        (("message", "receive", "Wrong", "--group", "g", "--sql", "a >"), 1, "ILLEGAL_FILTER_EXPRESSION"),
        (("message", "receive", "Wrong", "--group", "no group"), 1, "ILLEGAL_CONSUMER_GROUP"),
        (("message", "browse", "Wrong", "--from", "yesterday"), 2, "earliest, latest, offset:17, -1h"),
        (("message", "browse", "Wrong", "--from", "2026-01-31T12:00:00"), 2, "of which zone"),
        (("message", "browse", "Wrong", "--queue", "99"), 2, "has no queue 99"),
        (("message", "browse", "Wrong", "--proxy", "nowhere"), 2, "--proxy must be host:port"),
        (("message", "browse", "Wrong", "--proxy", "127.0.0.1:1"), 1, "could not be called"),
        (("message", "browse", "Wrong", "--tls"), 1, "--tls-ca"),
        (("message", "browse", "Wrong", "--tls-ca", "pyproject.toml"), 2, "holds no certificates"),
        (("--server", "nonsense", "topic", "list"), 2, "--server must be like"),
        (("--server", "http://127.0.0.1:1", "message", "send", "Wrong", "x"), 1, "no controller answers"),
        (("topic", "list", "-o", "xml"), 2, "'xml'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(shell: Shell, words: tuple[str, ...], code: int, says: str) -> None:
    """In this process, as many take long to start; the end of a command is the same as a process has it."""
    send = ("message", "send", "Wrong", "there")
    assert CliRunner().invoke(main, send, env=shell.environment).exit_code == 0
    result = CliRunner().invoke(main, words, env=shell.environment)
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout, line[:10]) == (code, "", "popwheel: ")
    assert says in line


def test_a_process_that_fails_says_no_more_than_that(shell: Shell) -> None:
    assert "create it first: popwheel topic create Nowhere" in shell.refused("message", "browse", "Nowhere", code=1)
    assert "NAME=VALUE" in shell.refused("message", "send", "Nowhere", "x", "--property", "color", code=2)


def test_a_reader_that_goes_is_no_error_to_speak_of(shell: Shell) -> None:
    shell.run(
        "message", "send", "Pipes", "--lines", stdin=b"".join(b"%d%s\n" % (each, b"x" * 900) for each in range(500))
    )
    for words in (
        ("message", "browse", "Pipes", "--limit", "500"),
        ("message", "browse", "Pipes", "--limit", "500", "-o", "json"),
        ("message", "browse", "Pipes", "--limit", "500", "--raw"),
        ("message", "receive", "Pipes", "--group", "pipes", "--count", "500"),
    ):
        process = shell.begin(*words)
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 1
        process.stderr.close()
    # What was not printed was not acknowledged.
    waiting = json.loads(shell.run("progress", "pipes", "-o", "json")[0])
    assert sum(each["in_flight"] + each["lag"] for each in waiting["queues"]) > 0


def test_a_shell_completes_names(shell: Shell) -> None:
    shell.run("topic", "create", "Completed")
    shell.run("group", "create", "completers")

    def completed(*words: str) -> list[str]:
        environment = {
            **shell.environment,
            "_POPWHEEL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("popwheel", *words)),
            "COMP_CWORD": str(len(words)),
        }
        command = [sys.executable, "-m", "popwheel_cli.main"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("mess") == ["plain,message"]
    assert completed("topic", "describe", "Compl") == ["plain,Completed"]
    assert completed("message", "receive", "Completed", "--group", "compl") == ["plain,completers"]
    assert completed("admin", "progress", "compl") == ["plain,completers"]
    assert completed("context", "use", "l") == ["plain,lab"]
    assert completed("--server", "http://127.0.0.1:1", "topic", "describe", "Compl") == []


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_shells_are_given_a_script(kind: str) -> None:
    environment = {**os.environ, "_POPWHEEL_COMPLETE": f"{kind}_source"}
    command = [sys.executable, "-m", "popwheel_cli.main"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert f"_POPWHEEL_COMPLETE={kind}_complete" in done.stdout
