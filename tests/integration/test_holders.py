"""Who has which message, at a real process: shown, summed up, ended by hand, and told as a time line."""

import json
from typing import Any

import httpx

from tests.harness.client import MessagingClient
from tests.harness.programs import run_popwheel
from tests.harness.standalone import StandaloneProcess

TOPIC, GROUP = "Held", "holding"


def admin(server: StandaloneProcess, *words: str) -> Any:
    done = run_popwheel(["admin", "--server", server.http_url, *words, "-o", "json"])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_who_has_a_message_and_what_becomes_of_it(server: StandaloneProcess) -> None:
    def get(path: str, **asked: Any) -> Any:
        answer = httpx.get(f"{server.http_url}/api/v1{path}", params=asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async with MessagingClient(server.grpc_address) as one, MessagingClient(server.grpc_address) as two:
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        first = (await one.receive_all(GROUP, TOPIC, 1, invisible_s=60.0))[0]
        others = await two.receive_all(GROUP, TOPIC, 3, invisible_s=60.0)
        assert len(others) == 3
        page = get("/inflight", group=GROUP)
        assert sorted(each["client_id"] for each in page["messages"]) == sorted([one.client_id, *[two.client_id] * 3])
        assert page["known_since_ms"] > 0
        of_two = admin(server, "inflight", "--topic", TOPIC, "--client", two.client_id)["messages"]
        assert {each["message_id"] for each in of_two} == {each.system_properties.message_id for each in others}
        summary = admin(server, "inflight", "summary")
        (group,) = [each for each in summary["groups"] if each["group"] == GROUP]
        assert (group["held"], group["clients"]) == (4, 2)
        held = {each["client_id"]: each["held"] for each in summary["clients"] if each["group"] == GROUP}
        assert held == {one.client_id: 1, two.client_id: 3}

        message_id = first.system_properties.message_id
        (place,) = [each for each in page["messages"] if each["message_id"] == message_id]
        named = {"broker": "broker", "group": "group", "topic": "topic", "queue_id": "queue", "queue_offset": "offset"}
        words = [word for name, option in named.items() for word in (f"--{option}", str(place[name]))]
        would = admin(server, "inflight", "release", *words, "--dry-run")
        assert (would["released"], would["message_id"], would["attempt"]) == (False, message_id, 1)
        assert admin(server, "inflight", "release", *words, "--yes")["released"] is True
        wanted = {name: place[name] for name in named}
        gone = httpx.post(f"{server.http_url}/api/v1/inflight/release", json=wanted)
        assert (gone.status_code, gone.json()["code"]) == (404, "MESSAGE_NOT_FOUND")

        (again,) = await two.receive_all(GROUP, TOPIC, 1, invisible_s=60.0)
        assert again.system_properties.message_id == message_id
        assert again.system_properties.delivery_attempt == 2
        await two.ack(GROUP, TOPIC, [again])
        trace = admin(server, "message", "trace", message_id, "--topic", TOPIC)
        reported = [(each["kind"], each["client_id"], each["attempt"]) for each in trace["events"]]
        assert reported == [
            ("stored", None, None),
            ("delivered", one.client_id, 1),
            ("released", one.client_id, 1),
            ("revived", None, 2),
            ("delivered", two.client_id, 2),
            ("acked", two.client_id, 2),
        ]
        assert [each["dropped"] for each in trace["known_since"]] == [0]
        metrics = httpx.get(f"{server.http_url}/metrics").text
        assert f'popwheel_consumer_inflight_clients{{consumer_group="{GROUP}"}} 1.0' in metrics
