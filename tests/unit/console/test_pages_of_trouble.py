"""Pages of what goes wrong, and their forms: trouble, dead letters, polls, balance, settings."""

import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from popwheel_console.answer import PENDING, Answer, Row
from popwheel_console.pages.balance import PLACES, balance_of
from popwheel_console.pages.dead_letters import dead_letters_page
from popwheel_console.pages.retries import retries_page
from popwheel_console.pages.settings import settings_page
from popwheel_console.pages.trouble import trouble_page
from popwheel_console.visit import ROWS, Listed, Refused
from tests.unit.console.canned import ANSWERS, CannedServer, form_of
from tests.unit.console.read_page import ReadPage

NOT_THERE = Answer(404, {}, "NOT_FOUND", "GET /x: Not Found")
REFUSED = (403, {"code": "FORBIDDEN", "message": "ann may read"})


def changes(server: CannedServer) -> list[tuple[str, Any]]:
    """What a page had the API do, with the bodies."""
    return [(path, json.loads(body)) for path, _, body in server.asked if not path.startswith("GET")]


async def send(server: CannedServer, address: str, **fields: str) -> httpx.Response:
    async with server.browser() as browser:
        return await browser.post(address, data={**await form_of(browser), **fields})


async def test_the_oldest_dead_letters_of_a_broker_come_again() -> None:
    server = CannedServer()
    answer = await send(
        server, "/groups/billing/dead-letters/redrive", broker="broker-0", limit="8", end_offset="9007199254740993"
    )
    assert (answer.status_code, urlsplit(answer.headers["location"]).path) == (303, "/groups/billing/dead-letters")
    path = "POST /groups/billing/dead-letters/broker-0/redrive"
    assert changes(server) == [(path, {"limit": 8, "end_offset": 9007199254740993})]


@pytest.mark.parametrize("limit", ["", "-1", "many", "٣", "9" * 40])
async def test_what_is_no_number_is_the_api_s_to_refuse(limit: str) -> None:
    path = "POST /groups/billing/dead-letters/broker-0/redrive"
    refusal = (400, {"code": "BAD_REQUEST", "message": "limit: at least 1"})
    server = CannedServer({**ANSWERS, path: refusal})
    answer = await send(server, "/groups/billing/dead-letters/redrive", broker="broker-0", limit=limit)
    assert answer.status_code == 400 and "limit: at least 1" in ReadPage(answer.text).shown
    assert changes(server) == [(path, {"limit": 0, "end_offset": 0})]


async def test_a_broker_s_name_leads_to_no_other_route() -> None:
    server = CannedServer()
    answer = await send(server, "/groups/billing/dead-letters/redrive", broker="../../../topics/x?", limit="1")
    assert answer.status_code in (404, 405)
    assert not [path for path, _ in changes(server) if path.startswith("POST /topics")]


async def test_dead_letters_are_purged_only_if_the_group_s_name_was_typed() -> None:
    server = CannedServer()
    refused = await send(server, "/groups/billing/dead-letters/purge", typed="bill")
    assert refused.status_code == 400
    assert "type billing to purge its dead letters" in ReadPage(refused.text).shown
    assert {body["dry_run"] for _, body in changes(server)} == {True}
    done = await send(server, "/groups/billing/dead-letters/purge", typed="billing")
    assert done.status_code == 303
    assert changes(server)[-1] == ("POST /groups/billing/dead-letters/purge", {"dry_run": False})


async def test_a_record_that_was_quarantined_is_retried_or_dropped() -> None:
    server = CannedServer()
    assert (await send(server, "/trouble/broker-0/17.0/retry")).status_code == 303
    refused = await send(server, "/trouble/broker-0/17.0/drop", typed="17")
    assert refused.status_code == 400 and "type 17.0 to drop it" in ReadPage(refused.text).shown
    assert (await send(server, "/trouble/broker-0/17.0/drop", typed="17.0")).status_code == 303
    assert [path for path, _ in changes(server)] == [
        f"POST /quarantine/broker-0/17.0/{verb}" for verb in ("retry", "drop")
    ]


@pytest.mark.parametrize(
    "address",
    [
        *("/groups/billing/dead-letters/redrive", "/groups/billing/dead-letters/purge"),
        *("/trouble/broker-0/17.0/retry", "/trouble/broker-0/17.0/drop"),
    ],
)
async def test_forms_of_others_change_nothing(address: str) -> None:
    server = CannedServer()
    async with server.browser() as browser:
        answer = await browser.post(address, data={"typed": "billing", "broker": "broker-0", "limit": "1", "csrf": "x"})
    assert answer.status_code == 403
    assert changes(server) == []


async def test_settings_are_for_those_who_may_administer() -> None:
    async with CannedServer({**ANSWERS, "GET /settings": REFUSED}).browser() as browser:
        answer = await browser.get("/settings")
    assert answer.status_code == 403 and "ann may read" in ReadPage(answer.text).shown


async def test_a_problem_leads_to_the_page_that_shows_it() -> None:
    async with CannedServer().browser() as browser:
        page = ReadPage((await browser.get("/trouble")).text)
    assert "/replicas?at=broker-1" in [each.attributes["href"] for each in page.all("a")]
    assert page.shown.count("its alert fires") == 1 and "its alert does not fire yet" not in page.shown
    assert "These are the oldest 1." in page.shown


def test_an_older_server_knows_no_trouble_and_the_page_says_so() -> None:
    view = trouble_page(NOT_THERE, PENDING)
    assert (view.problems, view.why) == (None, "this server does not report it")
    assert (view.set_aside, view.poison_why) == (None, "")


def _balance(*rows: dict[str, Any], more: bool = False, silent: bool = False) -> Answer:
    unanswered = [{"broker": "b", "reason": "away"}] if silent else []
    return Answer(200, {"rows": [Row(each) for each in rows], "more": more, "unanswered": unanswered, "explained": "x"})


def _row(**numbers: int | None) -> dict[str, Any]:
    return {"topic": "t", "broker": "b", "stored": 5, "difference": 0, **dict.fromkeys(PLACES, 1), **numbers}


def test_a_sum_is_known_only_if_all_of_it_is() -> None:
    sums = balance_of(_balance(_row(), _row(done=4, difference=-3)), 0).sums
    assert (sums["stored"], sums["done"], sums["difference"]) == (10, 5, -3)
    sums = balance_of(_balance(_row(), _row(dead=None, difference=None)), 0).sums
    assert (sums["stored"], sums["dead"], sums["difference"]) == (10, None, None)
    for part in (_balance(_row(), more=True), _balance(_row(), silent=True)):
        assert set(balance_of(part, 0).sums.values()) == {None}


def test_a_long_balance_comes_in_pages() -> None:
    answer = _balance(*(_row() for _ in range(ROWS + 1)))
    first, last, beyond = (balance_of(answer, at) for at in (0, ROWS, 5 * ROWS))
    assert (len(first.rows), first.next, len(last.rows), last.next) == (ROWS, ROWS, 1, None)
    assert (list(beyond.rows), beyond.next, beyond.total) == ([], None, ROWS + 1)


async def test_a_difference_cannot_be_overlooked() -> None:
    name = "GET /groups/billing/balance"
    answers = {**ANSWERS, name: {**ANSWERS[name], "rows": [_row(difference=-1)]}}
    async with CannedServer(answers).browser() as browser:
        page = ReadPage((await browser.get("/balance?group=billing&after=-3")).text)
    assert "A message is lost or doubled: please report it with a debug bundle." in page.shown
    assert [each for each in page.elements if each.attributes.get("class") == "state bad"]


def _settings(*processes: list[tuple[str, Any, str]]) -> Answer:
    reported = [
        {
            "process": f"p{number}",
            "settings": [{"key": key, "value": value, "source": source} for key, value, source in each],
        }
        for number, each in enumerate(processes)
    ]
    return Answer(200, {"processes": reported, "unanswered": []})


ASKED = {"process": "", "find": "", "after": "", "which": "changed"}


def test_a_setting_that_one_process_changed_is_shown_of_all() -> None:
    view = settings_page(ASKED, _settings([("a", 1, "default"), ("b", 1, "default")], [("a", "1", "file")]))
    assert view.rows is not None
    (row,) = view.rows
    assert [(each.value, each.source, each.processes) for each in row.variants] == [
        ("1", "default", ["p0"]),
        ('"1"', "file", ["p1"]),
    ]


def test_many_settings_come_in_pages_and_long_values_are_cut() -> None:
    settings = [(f"k{number:04}", "x" * 10_000, "file") for number in range(250)]
    first = settings_page(ASKED, _settings(*[settings] * 9))
    assert first.rows is not None and (len(first.rows), first.total, first.next) == (60, 250, "k0059")
    assert len(first.rows[0].variants[0].value) < 130
    assert (len(first.rows[0].variants[0].processes), first.rows[0].variants[0].others) == (3, 6)
    last = settings_page({**ASKED, "after": "k0189"}, _settings(*[settings] * 9))
    assert last.rows is not None and (last.rows[0].key, last.next) == ("k0190", "")


def test_settings_of_processes_that_all_differ_are_cut_too() -> None:
    view = settings_page({**ASKED, "find": "A"}, _settings(*[[("a", number, "file")] for number in range(9)]))
    assert view.rows is not None
    assert (len(view.rows[0].variants), view.rows[0].others) == (4, 5)


def _letters(total: int, *offsets: int) -> Answer:
    letters = [Row(broker="b", queue_offset=each, stored_ms=each) for each in offsets]
    return Answer(200, {"letters": letters, "total": total, "max_offset": 9, "next": None})


def test_dead_letters_of_all_brokers_stand_by_age() -> None:
    view = dead_letters_page("g", "", 0, {"a": _letters(2, 3, 7), "b": _letters(1, 5)})
    assert [each["queue_offset"] for each in view.letters] == [3, 5, 7]
    assert view.total == 3


def test_a_number_of_dead_letters_is_known_only_if_all_brokers_report_it() -> None:
    away = Answer(504, {}, "BROKER_AWAY", "it is away")
    view = dead_letters_page("g", "", 0, {"a": _letters(2, 3), "b": away}, ["c"])
    assert view.total is None
    assert [each.split(":")[0] for each in view.unanswered] == ["b", "c"]
    assert dead_letters_page("g", "", 0, {"a": PENDING}).deposits is None
    with pytest.raises(Refused, match="it is away"):
        dead_letters_page("g", "", 0, {"b": away})


def _problems(count: int) -> Answer:
    problem = ANSWERS["GET /trouble"]["problems"][0]
    return Answer(
        200, {"problems": [Row({**problem, "object": f"b{each}"}) for each in range(count)], "unanswered": []}
    )


def test_many_problems_are_counted() -> None:
    view = trouble_page(_problems(130), PENDING)
    assert view.problems is not None and (len(view.problems), view.more) == (100, 30)


async def test_the_overview_shows_the_worst_problems_and_counts_the_rest() -> None:
    problem = ANSWERS["GET /trouble"]["problems"][0]
    answers = {**ANSWERS, "GET /trouble": {"problems": [problem] * 1_000, "unanswered": []}}
    async with CannedServer(answers).browser() as browser:
        page = ReadPage((await browser.get("/")).text)
    assert page.shown.count("has no master.") == 8 and "992 problems more" in page.shown


def test_a_page_asks_some_brokers_and_names_the_rest() -> None:
    view = dead_letters_page("g", "", 0, {"a": _letters(1, 3)}, ["z"])
    assert (view.total, list(view.unanswered)) == (None, ["z: a page asks at most 16 brokers; name this one"])


def _held(attempt: int, due_ms: int = 0, topic: str = "t") -> Row:
    return Row(topic=topic, attempt=attempt, popped_ms=0, due_ms=due_ms, message_id=f"m{due_ms}")


def _listed(*rows: Row, following: str = "") -> Listed:
    return Listed(rows, following, [], Answer(200))


LADDER = Row(name="g", max_attempts=3, backoff_ms=[1_000, 5_000], exponential_backoff=None)


def test_each_attempt_has_the_messages_that_are_in_it() -> None:
    messages = (*(_held(2, due) for due in (9, 3, 5, 7, 1)), _held(3), _held(0), _held(7))
    view = retries_page(LADDER, NOT_THERE, _listed(*messages, following="x"), 0)
    assert view.rungs is not None
    reported = [(each.attempt, each.wait_ms, each.is_last, each.held, each.share) for each in view.rungs]
    assert reported == [
        (1, None, False, 0, 0.0),
        (2, 1_000, False, 5, 100.0),
        (3, 5_000, True, 1, 20.0),
        (7, None, False, 1, 20.0),
        (0, None, False, 1, 20.0),
    ]
    assert [each.message["due_ms"] for each in view.rungs[1].examples] == [1, 3, 5]
    assert (view.scanned, view.is_part) == (8, True)


def test_what_has_not_answered_is_no_empty_ladder() -> None:
    assert retries_page(LADDER, PENDING, None, 0).rungs is None
    nobody_holds = retries_page(LADDER, PENDING, _listed(), 0).rungs
    assert nobody_holds is not None and [each.held for each in nobody_holds] == [0, 0, 0]


LONG = "x" * 4_096


async def test_settings_that_all_differ_make_no_endless_page() -> None:
    processes = [
        {
            "process": f"broker/broker-{process}/0",
            "settings": [
                {"key": f"some.setting.{key}", "value": f"{process}{LONG}", "source": "file"} for key in range(90)
            ],
        }
        for process in range(6)
    ]
    answers = {**ANSWERS, "GET /settings": {"processes": processes, "unanswered": []}}
    async with CannedServer(answers).browser() as browser:
        answer = await browser.get("/settings")
    assert answer.status_code == 200 and len(answer.content) < 150_000


async def test_long_keys_of_dead_letters_make_no_endless_page() -> None:
    name = "GET /groups/billing/dead-letters/broker-0"
    letters = [{**ANSWERS[name]["letters"][0], "queue_offset": each, "keys": [LONG] * 4} for each in range(ROWS)]
    async with CannedServer({**ANSWERS, name: {**ANSWERS[name], "letters": letters}}).browser() as browser:
        answer = await browser.get("/groups/billing/dead-letters")
    assert answer.status_code == 200 and len(answer.content) < 150_000


@pytest.mark.parametrize("value", [LONG, "-1", "9" * 40, "../../etc", "%00", "٣"])
@pytest.mark.parametrize(
    "address",
    [
        *("/polls?group=billing&after=", "/polls?topic=", "/balance?group=billing&after=", "/settings?find="),
        *("/settings?after=", "/settings?which=", "/groups/billing/dead-letters?broker=broker-0&begin="),
        *("/trouble?do=", "/groups/billing/dead-letters?do=", "/groups/billing/retries?after="),
    ],
)
async def test_what_an_address_may_have_breaks_no_page(address: str, value: str) -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get(address + value)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", [LONG, "..", "%2e%2e", "a%2fb", "%3Cscript%3E"])
@pytest.mark.parametrize("address", ["/trouble/broker-0/{}", "/groups/{}/dead-letters", "/groups/{}/retries"])
async def test_a_name_that_nobody_has_is_not_found(address: str, name: str) -> None:
    async with CannedServer().browser() as browser:
        answer = await browser.get(address.format(name))
    assert answer.status_code in (200, 404) and "<script>" not in answer.text


def test_some_processes_are_compared_at_once_and_the_rest_counted() -> None:
    view = settings_page(ASKED, _settings(*[[("a", number, "file")] for number in range(30)]))
    assert view.rows is not None and (len(view.processes), view.rows[0].others) == (30, 8)
    assert list(view.unanswered) == ["18 of the processes: a page compares 12; name another one"]
