"""Answers of the admin API for tests of pages: plain ones, hostile ones, none at all."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry

from popwheel_common.http import make_http_app
from popwheel_common.settings.console_options import ConsoleOptions
from popwheel_common.web.security_headers import SecurityHeaders
from popwheel_common.web.signatures import Signatures
from popwheel_console.console import Console
from popwheel_console.login.login_methods import LoginMethods
from popwheel_console.login.logins import Logins
from popwheel_console.login.pages import LoginPages
from popwheel_console.static_files import StaticFiles
from popwheel_console.view.renderer import Renderer
from tests.harness.manual_clock import ManualClock

SECRET: Final = b"a secret of thirty-two bytes at least"
NOW_MS: Final = 1_800_000_000_000
HOSTILE: Final = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}</title>%RETRY%"
_MESSAGE: Final = {
    "broker": "broker-0",
    "topic": "Orders",
    "queue_id": 3,
    "queue_offset": 9_007_199_254_740_993,
    "attempts": 1,
    "message_id": "01AB",
    "stored_ms": NOW_MS - 90_000,
    "tag": "paid",
    "keys": ["order-1"],
    "hidden": False,
    "body": "hello",
    "body_encoding": "text",
    "body_bytes": 5,
    "properties": {"amount": "100"},
    "kind": "stored",
    "position": 1,
    "pending": False,
    "due_ms": None,
    "checks": 0,
    "redriven": False,
    "set_aside": "",
}
_IN_FLIGHT: Final = {
    "group": "billing",
    "topic": "%RETRY%billing+Orders",
    "broker": "broker-0",
    "queue_id": 0,
    "queue_offset": 7,
    "message_id": "01AB",
    "attempt": 2,
    "popped_ms": NOW_MS - 20_000,
    "due_ms": NOW_MS + 10_000,
    "client_id": "c@1",
    "message_group": "cart-1",
    "holds_back": 3,
}
_CLIENT: Final = {
    "id": "c@1",
    "proxy": "proxy",
    "kind": "simple",
    "language": "PYTHON",
    "version": "5.1.2",
    "platform": "Linux",
    "hostname": "host",
    "address": "10.0.0.7:1",
    "user": "",
    "group": "billing",
    "since_ms": NOW_MS - 60_000,
    "seen_ms": NOW_MS - 1_000,
    "publishes": ["Orders"],
    "publishes_total": 1,
    "polls": 1,
    "held": None,
    "subscriptions": [{"group": "billing", "topic": "Orders", "filter": "paid", "polled_ms": NOW_MS - 2_000}],
    "subscriptions_total": 1,
    "held_since_ms": None,
    "lite_topics": 0,
}
_REPLICA: Final = {
    "number": 0,
    "role": "master",
    "address": "10.0.0.1:1",
    "alive": True,
    "in_sync": True,
    "wiped": False,
    "leaving": False,
    "doubtful": False,
    "epoch": 3,
    "last_epoch": 3,
    "end_position": 4096,
    "lag_bytes": None,
    "confirmed_position": 4096,
    "lag_ms": None,
    "heard_ms": 210,
    "checkpoint_version": 0,
}
_SLAVE: Final = {**_REPLICA, "number": 1, "role": "slave", "in_sync": False, "lag_bytes": 2048, "lag_ms": 90}
_BROKER_GROUP: Final = {
    "name": "broker-0",
    "version": 12,
    "epoch": 3,
    "master": 0,
    "sync_state_set": [0],
    "trouble": "",
    "checkpoint": {"version": 17, "age_ms": 1_200, "duration_ms": 8},
    "replicas": [_REPLICA, _SLAVE],
}
_GROUP_NUMBERS: Final = {
    "name": "billing",
    "fifo": True,
    "lag": 12,
    "lag_ms": 61_000,
    "waiting": 10,
    "held": 2,
    "retrying": 1,
    "dead_letters": 3,
    "poisoned": 0,
    "in_rate": 1.25,
    "out_rate": None,
    "topics": 1,
}
_PROCESS: Final = {
    "kind": "broker",
    "name": "broker-0",
    "address": "10.0.0.1:1",
    "pid": 7,
    "since_ms": NOW_MS - 60_000,
    "ready": True,
    "reason": "",
    "replica": 0,
    "role": "master",
}
_LETTER: Final = {
    **{name: _MESSAGE[name] for name in ("broker", "message_id", "topic", "tag", "keys", "body", "body_bytes")},
    "queue_offset": 38,
    "stored_ms": NOW_MS - 70_000,
}
_QUARANTINED: Final = {
    "broker": "broker-0",
    "id": "17.0",
    "step": "redelivery",
    "reason": "KeyError: 'amount'",
    "set_aside_ms": NOW_MS - 70_000,
    "group": "billing",
    "topic": "Orders",
    "queue_id": 3,
    "queue_offset": 5,
    "position": 4096,
    "taken": True,
}
_SILENT: Final = [{"broker": "broker-1", "reason": "the broker broker-1 is not there now; try again"}]
_PLACE: Final = {
    **_MESSAGE,
    "groups": [
        {
            "group": "billing",
            "holding": "delivered",
            "popped_ms": NOW_MS - 20_000,
            "due_ms": NOW_MS + 10_000,
            "attempts": 0,
            "put_off": False,
            "ended": False,
            "kept_back_by": "",
            "set_aside": "",
        }
    ],
}
_EVENT: Final = {"broker": "broker-0", "topic": "Orders", "queue_id": 3, "queue_offset": 5, "client_id": None}
_EVENTS: Final = [
    {**_EVENT, "time_ms": NOW_MS - 90_000, "kind": "stored", "group": "", "attempt": None, "until_ms": None},
    {
        **_EVENT,
        "time_ms": NOW_MS - 80_000,
        "kind": "delivered",
        "group": "billing",
        "client_id": "c@1",
        "attempt": 1,
        "until_ms": NOW_MS - 50_000,
    },
    {**_EVENT, "time_ms": NOW_MS - 50_000, "kind": "expired", "group": "billing", "attempt": 1, "until_ms": None},
    {
        **_EVENT,
        "time_ms": NOW_MS - 20_000,
        "kind": "delivered",
        "group": "billing",
        "client_id": "c@2",
        "attempt": 2,
        "until_ms": NOW_MS + 10_000,
    },
]
_LINES: Final = {name: [None, 1, 2, 3] for name in ("in_rate", "out_rate", "lag", "lag_ms", "held", "delayed")}

ANSWERS: Final[Mapping[str, Any]] = {
    "GET /cluster": {"name": "acceptance", "id": "x", "version": 3, "topics": 1, "groups": 1, "brokers": []},
    "GET /cluster/status": {
        "name": "acceptance",
        "version": 3,
        "processes": [_PROCESS, {**_PROCESS, "ready": False, "reason": "ill"}],
        "broker_groups": [_BROKER_GROUP, {**_BROKER_GROUP, "name": "broker-1", "master": None, "trouble": "gone"}],
    },
    "GET /brokers": {
        "groups": [_BROKER_GROUP, {**_BROKER_GROUP, "name": "broker-1", "master": None, "trouble": "gone"}]
    },
    "GET /activity/overview": {
        "time_ms": NOW_MS,
        "in_rate": 1.0,
        "out_rate": 2.0,
        "stored": 2**63,
        "lag": 12,
        "lag_ms": 61_000,
        "held": 2,
        "delayed": 4,
        "dead_letters": 3,
        "poisoned": 1,
        "topics": 1,
        "groups": 1,
        "worst_groups": [_GROUP_NUMBERS],
        "unanswered": _SILENT,
    },
    "GET /activity/history": {"kind": "cluster", "name": "", "since_ms": NOW_MS, "interval_ms": 60_000, **_LINES},
    "GET /activity/groups": {"groups": [_GROUP_NUMBERS], "total": 1, "next": None, "unanswered": []},
    "GET /activity/topics": {
        "topics": [{"name": "Orders", "type": "NORMAL", "queues": 8, "stored": 9_007_199_254_740_993, "in_rate": 0.5}],
        "total": 1,
        "next": None,
        "unanswered": _SILENT,
    },
    "GET /topics": {
        "topics": [{"name": "Orders", "type": "NORMAL", "queues": 8, "id": 1, "lite_expiration_ms": 0}],
        "total": 1,
        "next": "Orders",
    },
    "GET /topics/Orders": {"name": "Orders", "type": "NORMAL", "queues": 8, "id": 1, "lite_expiration_ms": 0},
    "DELETE /topics/Orders": {
        "name": "Orders",
        "deleted": False,
        "unread": 5,
        "in_flight": 2,
        "delayed": 0,
        "half_messages": 0,
        "dead_letters": 0,
        "used_with": ["billing"],
        "used_with_total": 1,
        "polling_proxies": 1,
        "rests_until_ms": NOW_MS,
        "unanswered": [],
    },
    "DELETE /groups/billing": {
        "name": "billing",
        "deleted": False,
        "unread": 12,
        "in_flight": 2,
        "delayed": 0,
        "half_messages": 0,
        "dead_letters": 3,
        "used_with": ["Orders"],
        "used_with_total": 1,
        "polling_proxies": 0,
        "rests_until_ms": NOW_MS,
        "unanswered": _SILENT,
    },
    "PATCH /topics/Orders": {
        "outcome": "changed",
        "name": "Orders",
        "changes": [{"field": "queues", "before": 8, "after": 16}],
    },
    "PATCH /groups/billing": {"outcome": "unchanged", "name": "billing", "changes": []},
    "POST /groups": {"name": "billing", "max_attempts": 3, "fifo": True},
    "GET /topics/Orders/browse": {
        "messages": [_MESSAGE, {**_MESSAGE, "queue_id": 4, "stored_ms": NOW_MS - 1_000, "hidden": True}],
        "looked_through": 9,
        "unreadable": 0,
        "unanswered": _SILENT,
        "next": "1.5",
    },
    "POST /groups/billing/dead-letters/redrive": {"redriven": 2, "kept": 0, "moved": 0, "refused": []},
    "POST /groups/billing/reset": {
        "queues": [
            {
                "broker": "broker-0",
                "queue_id": 0,
                "from_offset": 9_007_199_254_740_993,
                "to_offset": 3,
                "max_offset": 9_007_199_254_740_999,
                "clamped": True,
            }
        ],
        "in_flight": 2,
        "retries": 1,
        "retries_kept": 0,
        "consumers": 1,
        "unanswered": [],
    },
    "POST /topics/Orders/messages": {"topic": "Orders", "message_id": "01CD", "queue_offset": 3, "recall_handle": None},
    "POST /topics/Orders/pause": {},
    "POST /groups/billing/resume": {},
    "POST /inflight/release": {"released": True, "message_id": "01AB", "attempt": 2},
    "POST /timers/recall": {"topic": "Orders", "message_id": "01AB", "recalled": True},
    "GET /brokers/broker-0/history": {
        "name": "broker-0",
        "since_ms": NOW_MS - 99_000,
        "dropped": 0,
        "changes": [
            {
                "time_ms": NOW_MS - 9_000,
                "version": 6,
                "epoch": 2,
                "master": None,
                "sync_state_set": [0, 1],
                "what": ["replica 0 is master no more"],
            },
            {
                "time_ms": NOW_MS - 7_000,
                "version": 7,
                "epoch": 3,
                "master": 1,
                "sync_state_set": [1],
                "what": ["replica 1 is master, in epoch 3; before it nobody", "replica 0 is in sync no more"],
            },
        ],
    },
    "POST /brokers/broker-0/kill-master": {"name": "broker-0", "replica": 1, "pid": 4711, "killed": True},
    "POST /brokers/broker-0/switchover": {"name": "broker-0", "master": 1},
    "POST /topics": {"name": "Orders", "type": "NORMAL", "queues": 8, "id": 1, "lite_expiration_ms": 0},
    "GET /groups": {
        "groups": [{"name": "billing", "max_attempts": 3, "fifo": True, "backoff_ms": [1_000], "id": 1}],
        "total": 1,
        "next": None,
    },
    "GET /groups/billing": {
        "name": "billing",
        "max_attempts": 3,
        "fifo": True,
        "backoff_ms": [1_000, 5_000],
        "id": 1,
        "exponential_backoff": None,
    },
    "GET /groups/billing/progress": {
        "broker": "broker-0",
        "epoch": 1,
        "unanswered": [],
        "next": None,
        "group": "billing",
        "kind": "pop",
        "dead_letters": 3,
        "queues": [
            {
                "topic": "Orders",
                "broker": "broker-0",
                "queue_id": 0,
                "min_offset": 0,
                "next_offset": 4,
                "committed_offset": None,
                "max_offset": 9,
                "in_flight": 2,
                "lag": 7,
            }
        ],
    },
    "GET /inflight": {"broker": "broker-0", "epoch": 1, "unanswered": [], "next": None, "messages": [_IN_FLIGHT]},
    "GET /inflight/summary": {
        "total": 1,
        "groups": [{"group": "billing", "held": 1, "clients": 1, "oldest_popped_ms": NOW_MS - 20_000}],
        "clients": [{"client_id": "c@1", "group": "billing", "held": 1, "oldest_popped_ms": None}],
        "other_groups": 0,
        "other_clients": 0,
        "unanswered": [],
    },
    "GET /messages": {
        "broker": "broker-0",
        "epoch": 1,
        "unanswered": [],
        "next": None,
        "messages": [_MESSAGE],
        "looked_through": 9,
        "unreadable": 0,
    },
    "GET /messages/01AB": {
        "broker": "broker-0",
        "epoch": 1,
        "unanswered": [],
        "next": None,
        "message_id": "01AB",
        "places": [_PLACE],
    },
    "GET /messages/01AB/events": {
        "events": _EVENTS,
        "known_since": [{"broker": "broker-0", "since_ms": NOW_MS - 99_000, "dropped": 2}],
        "unanswered": [],
    },
    "GET /timers": {
        "timers": [
            {
                "due_ms": NOW_MS + 5_000,
                "topic": "Orders",
                "message_id": "01AC",
                "tag": "t",
                "keys": ["k"],
                "broker": "broker-0",
                "recall_handle": "h",
                "body": "",
                "body_encoding": "text",
                "body_bytes": 0,
            }
        ],
        "more": False,
        "next": None,
        "unanswered": [],
    },
    "GET /timers/stats": {
        "pending": 4,
        "horizons": [{"within_ms": 60_000, "count": 1}, {"within_ms": 0, "count": 3}],
        "topics": [{"topic": "Orders", "count": 4}],
        "brokers": [{"broker": "broker-0", "pending": 4, "recalled": 1, "behind_ms": 5_000}],
        "unanswered": _SILENT,
    },
    "GET /clients": {"clients": [_CLIENT], "unanswered": [{"proxy": "p2", "reason": "away"}], "next": None},
    "GET /clients/c@1": {"id": "c@1", "at": [_CLIENT], "messages": [], "unanswered": []},
    "GET /quarantine": {"entries": [_QUARANTINED], "total": 60, "unanswered": []},
    "GET /quarantine/broker-0/17.0": {
        **_QUARANTINED,
        **{name: _MESSAGE[name] for name in ("message_id", "tag", "keys", "body", "body_encoding", "body_bytes")},
        "properties": {"amount": "100"},
        "hidden": False,
        "unreadable": "",
    },
    "POST /quarantine/broker-0/17.0/retry": {"broker": "broker-0", "id": "17.0", "changed": True},
    "POST /quarantine/broker-0/17.0/drop": {"broker": "broker-0", "id": "17.0", "changed": True},
    "GET /groups/billing/dead-letters/broker-0": {"letters": [_LETTER], "total": 61, "max_offset": 99, "next": 50},
    "GET /groups/billing/dead-letters/broker-1": (504, {"code": "BROKER_AWAY", "message": "it is not there now"}),
    "POST /groups/billing/dead-letters/broker-0/redrive": {"redriven": 7, "kept": 1},
    "POST /groups/billing/dead-letters/purge": {"purged": 61, "unanswered": _SILENT},
    "GET /trouble": {
        "problems": [
            {
                "id": "PopwheelNoMaster",
                "severity": "critical",
                "what": "The broker group broker-1 has no master.",
                "object": "broker-1",
                "since_ms": NOW_MS - 95_000,
                "fires": True,
                "what_to_do": "Start its replicas.",
                "link": "docs/operate/alerts.md#popwheelnomaster",
            },
            {
                "id": "ProcessNotReady",
                "severity": "warning",
                "what": "The process proxy/p2 is not ready: ill.",
                "object": "proxy/p2",
                "since_ms": None,
                "fires": False,
                "what_to_do": "Look at it.",
                "link": "docs/operate/monitor.md#trouble",
            },
        ],
        "unanswered": _SILENT,
    },
    "GET /polls": {
        "polls": [
            {
                "proxy": "proxy",
                "group": "billing",
                "topic": "Orders",
                "mode": "notify",
                "polls": 3,
                "brokers_waited_at": 2,
                "is_long_polling": 40,
                "is_short_polling_hit": 12,
                "is_pop_with_notify": 28,
                "wakeups": 20,
                "empty_wakeups": 5,
            }
        ],
        "unanswered": [{"proxy": "p2", "reason": "away"}],
        "next": None,
    },
    "GET /groups/billing/balance": {
        "rows": [
            {
                "topic": "Orders",
                "broker": "broker-0",
                "stored": 9_007_199_254_740_993,
                "done": 9_007_199_254_740_980,
                "held": 2,
                "waiting": 7,
                "delayed": 0,
                "dead": 3,
                "poisoned": 1,
                "expired": 0,
                "difference": 0,
            }
        ],
        "more": False,
        "unanswered": [],
        "explained": "stored = done + held + waiting + delayed + dead + poisoned + expired",
    },
    "GET /settings": {
        "processes": [
            {
                "process": "controller",
                "settings": [
                    {"key": "broker.flush", "value": "SYNC", "source": "file"},
                    {"key": "cluster", "value": "acceptance", "source": "default"},
                ],
            },
            {
                "process": "proxy/p1",
                "settings": [
                    {"key": "broker.flush", "value": "ASYNC", "source": "default"},
                    {"key": "proxy.listen", "value": ["a", 1], "source": "command line"},
                ],
            },
        ],
        "unanswered": [{"process": "broker/broker-1/0", "reason": "it takes no questions now"}],
    },
    "GET /changes": {
        "changes": [
            {
                "id": "1",
                "time_ms": NOW_MS - 5,
                "who": "ann",
                "address": "10.0.0.9",
                "verb": "topic create",
                "object": "Orders",
                "before": "",
                "after": "{}",
                "outcome": "done",
                "times": 2,
            }
        ],
        "next": "1",
    },
}
"""By method and path: what the API answers. A route that is not here is not there, as at an older server."""

EMPTY: Final[Mapping[str, Any]] = {
    name: {key: [] if isinstance(value, list) else None if key == "next" else value for key, value in answer.items()}
    if name in ("GET /topics", "GET /groups", "GET /inflight", "GET /messages", "GET /timers", "GET /clients")
    or name in ("GET /quarantine", "GET /trouble", "GET /polls", "GET /groups/billing/balance", "GET /settings")
    or name in ("GET /changes", "GET /timers/stats", "GET /brokers", "GET /inflight/summary", "GET /cluster/status")
    else {**answer, "topics": 0, "groups": 0}
    if name == "GET /cluster"
    else {"letters": [], "total": 0, "max_offset": 0, "next": None}
    if "/dead-letters/broker-" in name
    else answer
    for name, answer in ANSWERS.items()
    if not name.startswith("GET /activity")
}
"""Of a server where nothing has been done yet."""

_WORDS: Final = frozenset(
    [
        *(
            "name",
            "id",
            "group",
            "topic",
            "client_id",
            "message_id",
            "tag",
            "body",
            "reason",
            "who",
            "object",
            "before",
        ),
        *("after", "broker", "proxy", "hostname", "platform", "address", "user", "filter", "fate", "keys", "used_with"),
        *("publishes", "trouble", "verb", "outcome", "set_aside", "what", "what_to_do", "link", "step", "unreadable"),
        *("process", "key", "value", "source", "explained", "mode"),
    ]
)
"""Fields that hold what somebody outside may have written."""


def hostile(value: Any, key: str = "") -> Any:
    """The same answer with script in every text that somebody outside may have written."""
    if isinstance(value, dict):
        found = {name: hostile(each, name) for name, each in value.items()}
        return found | {HOSTILE: HOSTILE} if key == "properties" else found
    if isinstance(value, list):
        return [hostile(each, key) for each in value]
    is_word = key in _WORDS
    return f"{value}{HOSTILE}" if isinstance(value, str) and is_word else value


@cache
def _console() -> Console:
    """The console of all tests: it compiles its templates once."""
    clock, options, registry = ManualClock(NOW_MS), ConsoleOptions(), CollectorRegistry()
    renderer, files = Renderer(clock), StaticFiles()
    logins = Logins(options, SECRET, None, clock)
    on_the_way = Signatures(SECRET, "oidc", clock)
    pages = LoginPages(logins, renderer, files.version, LoginMethods(), on_the_way, clock, registry)
    return Console(clock, logins, pages, renderer, files)


async def form_of(browser: httpx.AsyncClient) -> dict[str, str]:
    """What each form of a page sends."""
    page = await browser.get("/topics")
    return {"csrf": page.text.partition('name="csrf" value="')[2].partition('"')[0]}


class CannedServer:
    """A server whose API says what a test wants.

    Args:
        answers: by method and path.
    """

    def __init__(self, answers: Mapping[str, Any] = ANSWERS) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, str, Any]] = []
        """Each request to the API: method and path, query, body."""
        self.streams: dict[str, Callable[[], Response]] = {}
        """The same of answers that come in parts."""
        router = APIRouter()
        router.add_api_route("/api/v1/{path:path}", self._answer, methods=["GET", "POST", "PATCH", "DELETE"])
        self.app: FastAPI = make_http_app("test", "0", CollectorRegistry(), {}, [router, _console().router()])

    def browser(self) -> httpx.AsyncClient:
        """A browser that asks it."""
        transport = httpx.ASGITransport(SecurityHeaders(self.app), client=("10.1.2.3", 4))
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers={"accept": "text/html"})

    async def _answer(self, request: Request, path: str) -> Response:
        body = await request.body()
        self.asked.append((f"{request.method} /{path}", str(request.url.query), body))
        known = re.sub(re.escape(HOSTILE), "", path)
        if f"{request.method} /{known}" in self.streams:
            return self.streams[f"{request.method} /{known}"]()
        found = self.answers.get(f"{request.method} /{known}")
        if isinstance(found, tuple):
            status, content = found
            return JSONResponse(content, status_code=status)
        if found is None:
            return JSONResponse({"code": "NOT_FOUND", "message": f"GET /{path}: Not Found"}, status_code=404)
        return JSONResponse(found)
