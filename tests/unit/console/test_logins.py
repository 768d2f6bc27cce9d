"""Who may use the console: sessions, logins by token and password, forms of other sites."""

from pathlib import Path

import pytest

from popwheel_common.web.caller import Rights, Role
from popwheel_common.web.signed_callers import USER, Identity, SignedCallers
from popwheel_common.web.users import users_of
from popwheel_console.login.attempts import FAILURES_MAX, WITHIN_S, Attempts
from tests.unit.console.login_world import HASH, SECRET, TOKEN, login_world

MINUTE_MS = 60_000


async def test_where_nobody_logs_in_pages_are_shown_and_forms_are_of_this_console_alone(tmp_path: Path) -> None:
    async with login_world(tmp_path) as w:
        assert (await w.browser.get("/")).status_code == 200
        assert w.calls[-1][:3] == ("192.0.2.7", "ADMINISTER", True)
        assert (await w.browser.get("/login?next=/topics")).headers["location"] == "/topics"
        for csrf in ("", "same-site", "forged.text.here"):
            refused = await w.browser.post("/topics", data={"name": "t", "csrf": csrf})
            assert refused.status_code == 403 and "open the page again" in refused.text
        other = await w.browser.post("/topics", data={"csrf": "x"}, headers={"origin": "http://evil.example"})
        assert other.status_code == 403 and "another site" in other.text


async def test_a_token_logs_in_and_its_role_is_what_the_api_sees(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_tokens=True) as w:
        page = await w.browser.get("/topics?prefix=a")
        assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Ftopics%3Fprefix%3Da")
        wrong = await w.log_in(secret="no-token-of-the-admin-api")
        assert wrong.status_code == 401 and "this is no token" in wrong.text
        right = await w.log_in(secret=TOKEN, following="/topics?prefix=a")
        assert (right.status_code, right.headers["location"]) == (303, "/topics?prefix=a")
        assert "robot" in (await w.browser.get("/")).text
        assert w.calls[-1] == ("robot", "OPERATE", False, "192.0.2.7")
        assert w.metric('popwheel_console_logins_total{outcome="done"} 1.0')
        assert w.metric('popwheel_console_logins_total{outcome="refused"} 1.0')


async def test_a_cookie_alone_calls_no_api(tmp_path: Path) -> None:
    """Else any page that a browser shows could call it."""
    async with login_world(tmp_path, with_users=True) as w:
        await w.log_in("anna")
        assert (await w.browser.get("/")).status_code == 200
        assert (await w.browser.get("/api/v1/cluster")).status_code == 401
        assert (await w.browser.get("/docs")).status_code == 401
        cookie = next(iter(w.browser.cookies.jar)).value
        for header in (f"Bearer {cookie}", f"Bearer pws.{cookie}", "Bearer pws.", "Bearer pws.a.b.c"):
            assert (await w.browser.get("/api/v1/cluster", headers={"authorization": header})).status_code == 401


async def test_what_is_signed_for_the_api_is_good_for_two_minutes_and_by_this_secret(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        assert w.signed is not None
        anna = Identity(USER, "anna", Rights(Role.READ, False))
        header = {"authorization": w.signed.header(anna, "192.0.2.9")}
        assert (await w.browser.get("/api/v1/cluster", headers=header)).status_code == 200
        assert w.calls[-1] == ("anna", "ADMINISTER", True, "192.0.2.9"), "the role is that of the file"
        w.clock.advance(121_000)
        assert (await w.browser.get("/api/v1/cluster", headers=header)).status_code == 401
        others = SignedCallers(SECRET + b"!", None, None, w.clock).header(anna, "")
        assert (await w.browser.get("/api/v1/cluster", headers={"authorization": others})).status_code == 401


async def test_a_role_that_is_changed_and_a_user_that_is_gone_count_at_once(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        await w.log_in("anna")
        await w.browser.get("/")
        assert w.calls[-1][1:3] == ("ADMINISTER", True)
        w.users_path.write_text(f"anna read {HASH}\n")
        await w.browser.get("/")
        assert w.calls[-1][1:3] == ("READ", False)
        w.users_path.write_text(f"someone-else read {HASH}\n")
        assert (await w.browser.get("/")).status_code == 303


async def test_a_wrong_password_and_an_unknown_name_are_refused_alike_and_not_for_ever(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        answers = {(await w.log_in(name, "wrong password")).text.partition("role=")[2] for name in ("anna", "nobody")}
        assert len({each.partition("</p>")[0] for each in answers}) == 1
        for _ in range(FAILURES_MAX - 2):
            assert (await w.log_in("anna", "wrong password")).status_code == 401
        limited = await w.log_in("anna")
        assert limited.status_code == 429 and "try again in" in limited.text
        w.clock.advance(WITHIN_S * 1000 + 1)
        assert (await w.log_in("anna")).status_code == 303


async def test_a_session_ends_when_nobody_opens_a_page(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        await w.log_in("anna")
        for _ in range(4):
            w.clock.advance(20 * MINUTE_MS)
            assert (await w.browser.get("/")).status_code == 200
        for _ in range(2):
            w.clock.advance(20 * MINUTE_MS)
            live = await w.browser.get("/", headers={"x-popwheel-live": "1"})
        assert (live.status_code, live.text) == (401, "the session has ended: log in again")
        assert (await w.browser.get("/")).status_code == 303


async def test_a_session_ends_after_half_a_day_whatever_is_done(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        await w.log_in("anna")
        for _ in range(12 * 3):
            assert (await w.browser.get("/")).status_code == 200
            w.clock.advance(20 * MINUTE_MS)
        assert (await w.browser.get("/")).status_code == 303


async def test_a_login_begins_a_new_session_and_a_logout_ends_it(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        before = await w.csrf()
        await w.log_in("anna")
        cookie = next(iter(w.browser.cookies.jar))
        assert cookie.has_nonstandard_attr("HttpOnly") and cookie.get_nonstandard_attr("SameSite") == "lax"
        refused = await w.browser.post("/logout", data={"csrf": before})
        assert refused.status_code == 403, "a form of the session before"
        out = await w.browser.post("/logout", data={"csrf": await w.csrf("/")})
        assert out.headers["location"] == "/login"
        assert (await w.browser.get("/")).status_code == 303


async def test_a_form_is_good_in_its_own_session_while_that_lasts(tmp_path: Path) -> None:
    async with login_world(tmp_path) as w, w.new_browser() as other:
        await other.get("/topics")
        of_other = await w.csrf("/topics", other)
        for csrf in (of_other, "", of_other + "x"):
            assert (await w.browser.post("/topics", data={"name": "t", "csrf": csrf})).status_code == 403
        mine = await w.csrf("/topics")
        w.clock.advance(31 * MINUTE_MS)
        assert (await w.browser.post("/topics", data={"name": "t", "csrf": mine})).status_code == 403


@pytest.mark.parametrize("following", ["//evil.example", "/\\evil.example", "https://evil.example", "/%0d%0a\r\nx: y"])
async def test_a_login_leads_to_own_pages_alone(tmp_path: Path, following: str) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        done = await w.log_in("anna", following=following)
        assert (done.status_code, done.headers["location"]) == (303, "/")


async def test_behind_https_the_cookie_goes_over_tls_only(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True, url="https://console.test") as w:
        await w.log_in("anna")
        (cookie,) = w.browser.cookies.jar
        assert (cookie.name, cookie.secure, cookie.path) == ("__Host-popwheel_session", True, "/")


async def test_the_login_page_asks_for_what_there_is(tmp_path: Path) -> None:
    async with login_world(tmp_path, with_users=True) as w:
        page = (await w.browser.get("/login?next=%2Ftopics%3Fa%3D%3Cb%3E")).text
        assert 'type="password"' in page and "token of the admin API" not in page and "&lt;b&gt;" in page
        assert (await w.browser.get("/static/x/console.css")).status_code == 200


def test_failures_are_kept_of_a_bounded_number_of_names() -> None:
    attempts = Attempts()
    for number in range(30_000):
        attempts.failed(f"n{number}", f"a{number}", 0.0)
    assert len(attempts) == 10_000
    assert attempts.wait_s("n29999", "a", 1.0) == 0.0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("anna administer", "NAME ROLE HASH"),
        (f"an/na administer {HASH}", "no good name"),
        (f"controller administer {HASH}", "no good name"),
        (f"anna owner {HASH}", "no good role"),
        ("anna administer secret", "no hash of Argon2id"),
        (f"anna read {HASH}\nanna read {HASH}", "line 2 has the name of a line before"),
        ("# nobody", "there is no user"),
    ],
)
def test_what_is_no_file_of_users_is_refused_without_its_secrets(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        users_of(line.encode())
    assert HASH not in str(refused.value) and "secret" not in str(refused.value)
