"""What `popwheel admin cluster` and `admin broker` say: a contract with those who script against it."""

import inspect
import json
from typing import Any

import pytest
from click.testing import Result

from popwheel_controller.store import leadership
from tests.unit.cli.fake_admin_api import GROUP, REPLICAS, STATUS, FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

WORD = "lose-broker-0"
LOSS = {"code": "BAD_REQUEST", "message": f"up to 96 bytes may be lost; say the word {WORD}"}
NOT_LEADING = {"code": "HA_NOT_AVAILABLE", "message": "no controller leads at this moment; ask again", "leader": ""}


def lines_of(result: Result) -> list[list[str]]:
    """The words of each line."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


def ask(answers: dict[str, tuple[int, Any]], *words: str) -> tuple[Result, list[tuple[str, Any]]]:
    """Call `admin` with an API that answers so; also what it was asked."""
    with FakeAdminApi(answers) as api:
        return call("admin", "--server", api.url, *words), api.asked


def test_status_shows_groups_and_processes() -> None:
    result, _ = ask({"GET /cluster/status": (200, STATUS)}, "cluster", "status")
    assert lines_of(result) == [
        ["GROUP", "EPOCH", "MASTER", "IN", "SYNC", "LAG", "CHECKPOINT", "TROUBLE"],
        ["broker-0", "3", "0", "0,", "1", "1:", "12", "B", "3", "ms", "1.2", "s", "-"],
        [],
        ["KIND", "NAME", "REPLICA", "ROLE", "ADDRESS", "PID", "SINCE", "READY"],
        ["broker", "broker-0", "0", "master", "127.0.0.1:41000", "100", "2023-11-14T22:13:20.000Z", "yes"],
        ["broker", "broker-0", "1", "slave", "127.0.0.1:41001", "101", "2023-11-14T22:13:20.000Z", "yes"],
    ]


def test_status_as_json_is_what_the_controller_says() -> None:
    result, _ = ask({"GET /cluster/status": (200, STATUS)}, "cluster", "status", "-o", "json")
    assert json.loads(result.stdout) == STATUS


def test_a_group_without_a_master_is_shown_with_its_trouble() -> None:
    dead = {**REPLICAS[0], "alive": False, "lag_bytes": None, "lag_ms": None}
    silent = {**REPLICAS[1], "lag_bytes": None, "lag_ms": None}
    group = {**GROUP, "master": None, "trouble": "all are dead", "checkpoint": None, "replicas": [dead, silent]}
    result, _ = ask({"GET /brokers": (200, {"groups": [group]})}, "broker", "list")
    line = lines_of(result)[1]
    assert line == ["broker-0", "3", "-", "0,", "1", "0:", "dead,", "1:", "?", "-", "all", "are", "dead"]


def test_one_group() -> None:
    answers = {"GET /brokers/broker-0": (200, GROUP)}
    result, _ = ask(answers, "broker", "describe", "broker-0")
    assert lines_of(result)[-1] == ["1", "slave", "yes", "yes", "no", "127.0.0.1:41001", "3", "4096", "12", "3"]
    result, _ = ask(answers, "broker", "describe", "broker-0", "-o", "json")
    assert json.loads(result.stdout) == GROUP
    result, _ = ask(answers, "broker", "list", "a/b")
    assert result.exit_code == 2


def test_switchover() -> None:
    after = {**GROUP, "master": 1, "epoch": 4}
    answers = {"POST /brokers/broker-0/switchover": (200, after)}
    result, asked = ask(answers, "broker", "switchover", "broker-0", "-o", "json")
    assert json.loads(result.stdout) == {"group": "broker-0", "master": 1, "epoch": 4}
    assert asked == [("POST /brokers/broker-0/switchover", {})]
    result, asked = ask(answers, "broker", "switchover", "broker-0", "--to", "1")
    assert asked == [("POST /brokers/broker-0/switchover", {"to": 1})]
    assert ["master", "1"] in lines_of(result)


CHANGES: dict[str, tuple[int, Any]] = {"GET /changes?limit=1": (200, {"changes": [], "next": None})}
ELECT, FORGET = "/brokers/broker-0/unclean-election", "/brokers/broker-0/forget"
LOOK = ("GET /changes?limit=1", None)


def test_an_unclean_election_wants_consent_or_a_word() -> None:
    loss = {"name": "broker-0", "replicas": [1], "loss": "some may be lost.", "word": WORD}
    answers = {**CHANGES, f"POST {ELECT}?dry_run=true": (200, loss), f"POST {ELECT}": (200, {**GROUP, "epoch": 4})}
    result, asked = ask(answers, "broker", "elect-unclean", "broker-0")
    assert (result.exit_code, asked) == (2, [])
    assert "no terminal to ask at; give --yes" in sentence_of(result)
    result, asked = ask(answers, "broker", "elect-unclean", "broker-0", "--dry-run", "-o", "json")
    assert (json.loads(result.stdout), asked) == (loss, [LOOK, (f"POST {ELECT}?dry_run=true", {})])
    result, asked = ask(answers, "broker", "elect-unclean", "broker-0", "--replica", "1", "--yes")
    assert (result.exit_code, asked[-1]) == (0, (f"POST {ELECT}", {"word": WORD, "replica": 1}))
    result, asked = ask(answers, "broker", "elect-unclean", "broker-0", "--word", WORD)
    assert (result.exit_code, asked) == (0, [(f"POST {ELECT}", {"word": WORD})])
    result, _ = ask({f"POST {ELECT}": (400, LOSS)}, "broker", "elect-unclean", "broker-0", "--word", "please")
    assert sentence_of(result) == f"BAD_REQUEST: {LOSS['message']}"


def test_a_replica_or_a_whole_group_is_forgotten_with_consent() -> None:
    none = {"name": "broker-0", "replicas": [1], "loss": "", "word": ""}
    answers = {**CHANGES, f"POST {FORGET}?dry_run=true": (200, none)}
    answers[f"POST {FORGET}"] = (200, {"name": "broker-0", "replicas": [0, 2]})
    result, asked = ask(answers, "broker", "forget", "broker-0", "--replica", "1")
    assert (result.exit_code, asked) == (2, [])
    result, asked = ask(answers, "broker", "forget", "broker-0", "--replica", "1", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {"group": "broker-0", "replicas": [0, 2]}
    assert asked[-1] == (f"POST {FORGET}", {"word": "", "replica": 1})
    answers[f"POST {FORGET}?dry_run=true"] = (200, {**none, "loss": "all may be lost.", "word": WORD})
    result, asked = ask(answers, "broker", "forget", "broker-0", "--yes")
    assert (result.exit_code, asked[-1]) == (0, (f"POST {FORGET}", {"word": WORD}))
    result, asked = ask(answers, "broker", "forget", "broker-0", "--word", WORD)
    assert (result.exit_code, asked) == (0, [(f"POST {FORGET}", {"word": WORD})])


RECOVERY = "POST /cluster/recovery"
RECOVERED = {
    "brokers": ["broker-0", "broker-1"],
    "topics": [
        {"name": "orders", "type": "FIFO", "queues": 4, "id": 17, "lite_expiration_ms": 0, "paused_since_ms": None},
        {"name": "old", "type": "NORMAL", "queues": 8, "id": 18, "lite_expiration_ms": 0, "paused_since_ms": 5},
    ],
    "topics_total": 2,
    "groups": [{"name": "workers", "max_attempts": 9, "fifo": True, "id": 19, "paused_since_ms": None}],
    "groups_total": 1_001,
    "kept_total": 3,
    "findings": [{"kind": "topic", "name": "old", "what": "no log has its settings"}],
    "findings_total": 1,
}


def test_a_recovery_shows_what_comes_back_and_what_could_not() -> None:
    answers: dict[str, tuple[int, Any]] = {f"{RECOVERY}?dry_run=true": (200, RECOVERED), RECOVERY: (200, RECOVERED)}
    result, asked = ask(answers, "cluster", "recover", "--dry-run")
    assert asked == [(f"{RECOVERY}?dry_run=true", {})]
    assert [line.split() for line in result.stdout.splitlines()[:4]] == [
        ["KIND", "NAME", "ID", "SETTINGS"],
        ["topic", "orders", "17", "FIFO,", "4", "queues"],
        ["topic", "old", "18", "NORMAL,", "8", "queues,", "paused"],
        ["group", "workers", "19", "9", "attempts,", "in", "order"],
    ]
    sentence = (
        "2 topics and 1001 groups would come back, 3 that were made since stay, by the logs of broker-0, broker-1; "
        "1000 lines are left out here"
    )
    assert result.stdout.splitlines()[5:] == [
        "KIND   NAME  FINDING",
        "topic  old   no log has its settings",
        "",
        sentence,
    ]
    result, asked = ask(answers, "cluster", "recover", "--yes", "--adopt", "-o", "json")
    assert json.loads(result.stdout) == RECOVERED and asked == [(RECOVERY, {"adopt": True})]
    result, _ = ask(answers, "cluster", "recover", "--yes", "-o", "name")
    assert result.stdout.split() == ["orders", "old", "workers"]
    result, _ = ask({RECOVERY: (409, {"code": "PRECONDITION_FAILED", "message": "no"})}, "cluster", "recover", "--yes")
    assert sentence_of(result) == "PRECONDITION_FAILED: no"


def test_of_several_controllers_the_one_that_leads_answers() -> None:
    with (
        FakeAdminApi({"GET /cluster/status": (500, NOT_LEADING)}) as one,
        FakeAdminApi({"GET /cluster/status": (200, STATUS)}) as other,
    ):
        servers = f"http://127.0.0.1:1,{one.url},{other.url}"
        result = call("admin", "--server", servers, "cluster", "status", "-o", "json")
        assert json.loads(result.stdout) == STATUS
        result = call("admin", "--server", f"{other.url},{one.url}", "broker", "list")
        assert sentence_of(result).startswith("NOT_FOUND"), "a refusal is an answer"
        result = call("admin", "--server", f"http://127.0.0.1:1,{one.url}", "cluster", "status")
        assert sentence_of(result) == f"HA_NOT_AVAILABLE: {NOT_LEADING['message']}"


SWITCHOVER = "POST /brokers/broker-0/switchover"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((500, {"code": "HA_NOT_AVAILABLE", "message": "replica 1 did not catch up"}), "replica 1 did not catch up"),
        (None, "check whether it was done before you retry"),
    ],
)
def test_a_switchover_that_the_leader_may_have_made_is_asked_of_no_other(
    answer: tuple[int, Any] | None, sentence: str
) -> None:
    with (
        FakeAdminApi({SWITCHOVER: answer} if answer else {}, silent=answer is None) as leader,
        FakeAdminApi({SWITCHOVER: (200, GROUP)}) as other,
    ):
        servers = f"http://127.0.0.1:1,{leader.url},{other.url}"
        result = call("admin", "--server", servers, "broker", "switchover", "broker-0")
        assert result.exit_code == 1
        assert sentence in sentence_of(result)
        assert (len(leader.asked), other.asked) == (1, [])


def test_where_nothing_is_changed_a_controller_that_ends_is_passed_by() -> None:
    with FakeAdminApi({}, silent=True) as one, FakeAdminApi({"GET /cluster/status": (200, STATUS)}) as other:
        result = call("admin", "--server", f"{one.url},{other.url}", "cluster", "status", "-o", "json")
    assert json.loads(result.stdout) == STATUS


def test_what_a_controller_that_does_not_lead_says_begins_as_earlier_releases_know_it() -> None:
    source = inspect.getsource(leadership)
    begins = ("this controller does not lead", "no controller leads", "this controller is stopping")
    assert all(f'"{words}' in source for words in begins)
    assert source.count("NotLeadingError(") == len(begins)


def test_a_controller_that_does_not_lead_says_who_does() -> None:
    with FakeAdminApi({"GET /cluster/status": (200, STATUS)}) as leader:
        refusal = {"code": "HA_NOT_AVAILABLE", "message": "not I", "leader": leader.url.removeprefix("http://")}
        with FakeAdminApi({"GET /cluster/status": (500, refusal)}) as other:
            result = call("admin", "--server", other.url, "cluster", "status", "-o", "json")
    assert json.loads(result.stdout) == STATUS


def test_watching_shows_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    aged = {**GROUP, "checkpoint": {"version": 18, "age_ms": 9, "duration_ms": 1}}
    later = {**GROUP, "epoch": 4, "master": 1}
    answers: dict[str, tuple[int, Any]] = {}
    states = iter([GROUP, aged, later])

    def advance() -> None:
        try:
            answers["GET /cluster/status"] = (200, {**STATUS, "broker_groups": [next(states)]})
        except StopIteration:
            raise KeyboardInterrupt from None

    advance()
    monkeypatch.setattr("popwheel_cli.admin.cluster._wait", lambda _: advance())
    with FakeAdminApi(answers) as api:
        result = call("admin", "--server", api.url, "cluster", "status", "-w", "-o", "json")
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["broker_groups"][0]["epoch"] for each in shown] == [3, 4]


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_deletion_by_an_older_controller_is_shown(kind: str) -> None:
    """It answers without a body: the seen fault was a TypeError after the deletion was done."""
    with FakeAdminApi({f"DELETE /{kind}s/orders": (200, None)}) as api:
        result = call("admin", "--server", api.url, kind, "delete", "orders", "--yes")
    assert result.exit_code == 0, result.stderr
    assert "orders" in result.stdout and "deleted" in result.stdout
