"""Commands as people meet them: where they are reached, what they load, in which form they answer."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from popwheel_cli.admin.api import AdminApi, Connection
from popwheel_cli.admin.commands import admin
from popwheel_cli.admin.proxy_way import ProxyWay
from popwheel_cli.main import main
from popwheel_cli.table import print_table
from tests.unit.cli.fake_admin_api import GROUP, STATUS, FakeAdminApi

SERVICES = {"broker", "cluster", "controller", "proxy", "standalone"}
TOPICS = [{"name": name, "type": "NORMAL", "queues": 8, "id": 1} for name in ("orders", "größer")]
LISTED = {"GET /topics?prefix=&after=&limit=500": (200, {"topics": TOPICS, "total": 2, "next": None})}


def test_every_command_of_admin_is_a_verb_unless_a_service_has_its_name() -> None:
    assert main.commands.keys() >= SERVICES
    main.add_admin()
    for name, command in admin.commands.items():
        assert (main.commands[name] is command) is (name not in SERVICES)


def call(url: str, *words: str) -> str:
    result = CliRunner().invoke(main, ["--server", url, *words])
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_lists_come_in_four_forms() -> None:
    with FakeAdminApi(LISTED) as api:
        for words in (("topic", "list"), ("admin", "topic", "list")):
            assert call(api.url, *words).splitlines()[1].split() == ["orders", "NORMAL", "8", "1"]
            assert json.loads(call(api.url, *words, "-o", "json")) == TOPICS
            assert yaml.safe_load(call(api.url, *words, "--output", "yaml")) == TOPICS
            assert "größer" in call(api.url, *words, "-o", "yaml")
            assert call(api.url, *words, "-o", "name") == "orders\ngrößer\n"


def test_what_printed_json_by_itself_prints_yaml_too() -> None:
    stats = {"pending": 1, "horizons": [], "topics": [{"topic": "orders", "count": 1}], "brokers": [], "unanswered": []}
    answers: dict[str, tuple[int, Any]] = {
        "GET /timers/stats": (200, stats),
        "GET /cluster/status": (200, STATUS),
        "GET /brokers": (200, {"groups": [GROUP]}),
        "GET /brokers/broker-0": (200, GROUP),
        "GET /quarantine?limit=100": (200, {"entries": [], "total": 0, "unanswered": []}),
    }
    with FakeAdminApi(answers) as api:
        for words, whole, names in (
            (("timer", "stats"), stats, ["orders"]),
            (("admin", "cluster", "status"), STATUS, ["broker-0", "broker-0"]),
            (("admin", "broker", "list"), [GROUP], ["broker-0"]),
            (("admin", "broker", "describe", "broker-0"), GROUP, ["broker-0"]),
            (("quarantine", "list"), {"entries": [], "total": 0, "unanswered": []}, []),
        ):
            assert json.loads(call(api.url, *words, "-o", "json")) == whole
            assert yaml.safe_load(call(api.url, *words, "-o", "yaml")) == whole
            assert call(api.url, *words, "-o", "name").split() == names


def test_no_command_has_forms_of_its_own() -> None:
    def leaves(command: click.Command) -> list[click.Command]:
        if isinstance(command, click.Group):
            return [leaf for each in command.commands.values() for leaf in leaves(each)]
        return [command]

    for command in leaves(admin):
        for option in command.params:
            if option.name == "output":
                assert isinstance(option.type, click.Choice)
                assert list(option.type.choices) == ["table", "json", "yaml", "name"]


def test_rows_in_a_pipe_are_one_line_each_and_steer_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "a long title"), [("x" * 5_000, "two\nlines"), ("\x1b[31mred", "")])
    title, first, second = capsys.readouterr().out.splitlines()
    assert title.split() == ["NAME", "A", "LONG", "TITLE"]
    assert first.endswith(r"two\nlines")
    assert second == r"\x1b[31mred"


def test_options_stand_at_the_command_or_at_admin() -> None:
    with FakeAdminApi(LISTED) as api:
        assert call(api.url, "admin", "topic", "list", "-o", "name") == "orders\ngrößer\n"
        assert call("http://127.0.0.1:1", "admin", "--server", api.url, "topic", "list", "-o", "name").split()


def test_a_named_proxy_needs_no_controller() -> None:
    nobody = Connection("http://127.0.0.1:1", proxy="context:1")
    assert ProxyWay(AdminApi(lambda: nobody), "option:1", tls=False, tls_authority=None).address == "option:1"
    assert ProxyWay(AdminApi(lambda: nobody), "", tls=False, tls_authority=None).address == "context:1"


def test_names_are_completed_silently() -> None:
    answers = {
        "GET /topics?prefix=or&limit=100": (200, {"topics": TOPICS[:1], "total": 1, "next": None}),
        "GET /groups?prefix=r&limit=100": (401, {"code": "UNAUTHORIZED", "message": "show a token"}),
    }

    def completed(*words: str) -> list[str]:
        environment = {"_POPWHEEL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words)}
        environment["COMP_CWORD"] = str(len(words) - 1)
        result = CliRunner().invoke(main, [], env=environment, prog_name="popwheel")
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout.split()

    with FakeAdminApi(answers) as api:
        for words in (
            ("topic", "describe", "or"),
            ("message", "tail", "or"),
            ("timer", "list", "--topic", "or"),
            ("offset", "reset", "readers", "or"),
        ):
            assert completed("popwheel", "--server", api.url, *words) == ["plain,orders"]
        asked = len(api.asked)
        for refused in (("group", "describe", "r"), ("progress", "r"), ("topic", "create", "or")):
            assert completed("popwheel", "--server", api.url, *refused) == []
        assert completed("popwheel", "--server", api.url, "admin", "broker", "describe", "or") == []
        assert len(api.asked) == asked + 2


def test_files_of_contexts_are_found_where_the_desktop_says(tmp_path: Path) -> None:
    words = ["context", "add", "lab", "--server", "http://a:1"]
    assert CliRunner().invoke(main, words, env={"XDG_CONFIG_HOME": str(tmp_path)}).exit_code == 0
    assert (tmp_path / "popwheel" / "contexts.yaml").is_file()


def test_trouble_ends_with_1_if_anything_is_wrong_or_not_known() -> None:
    problem = {
        "id": "PopwheelNoMaster",
        "severity": "critical",
        "what": "The broker group b has no master.",
        "object": "b",
        "since_ms": 0,
        "fires": True,
        "what_to_do": "Start its replicas.",
        "link": "docs/operate/alerts.md#popwheelnomaster",
    }
    for problems, unanswered, code in (([], [], 0), ([problem], [], 1), ([], [{"broker": "b", "reason": "away"}], 1)):
        answer = {"problems": problems, "unanswered": unanswered}
        with FakeAdminApi({"GET /trouble": (200, answer)}) as api:
            result = CliRunner().invoke(main, ["--server", api.url, "trouble"])
            assert result.exit_code == code
            assert ("nothing is wrong" in result.stdout) is not bool(problems)
            assert ("critical" in result.stdout) is bool(problems)
            assert ("without the broker b" in result.stderr) is bool(unanswered)
            result = CliRunner().invoke(main, ["--server", api.url, "trouble", "-o", "json"])
            assert (json.loads(result.stdout), result.exit_code) == (answer, code)


def test_activity_shows_what_is_not_known_as_nothing() -> None:
    names = (
        "lag",
        "lag_ms",
        "waiting",
        "held",
        "retrying",
        "dead_letters",
        "poisoned",
        "in_rate",
        "out_rate",
        "topics",
    )
    row = {"name": "g", "fifo": False, **dict.fromkeys(names, 7), "in_rate": None}
    path = "GET /activity/groups?prefix=&after=&limit=100"
    with FakeAdminApi({path: (200, {"groups": [row], "total": 1, "next": None, "unanswered": []})}) as api:
        assert call(api.url, "activity").splitlines()[1].split() == ["g", *["7"] * 9]
        assert json.loads(call(api.url, "activity", "-o", "json")) == [row]
