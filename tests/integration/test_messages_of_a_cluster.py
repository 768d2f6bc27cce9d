"""Messages over the admin API of a cluster of two broker groups and two proxies: from all brokers, while one hangs."""

import asyncio
import os
import signal
import time
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path

import httpx

from tests.harness.cluster import ClusterCommand
from tests.integration.test_messages_over_http import BODY_BYTES_MAX, browsed, events, until_open


async def test_all_brokers_are_looked_at_and_messages_go_through_all_proxies(tmp_path: Path) -> None:
    with ClusterCommand(
        tmp_path, "--groups", "2", "--proxies", "2", "--set", "proxy.auto_create_topics=true"
    ) as cluster:
        pids = {name: one["pid"] for name, one in cluster.status().items()}
        async with httpx.AsyncClient(base_url=f"{cluster.url}/api/v1", timeout=20) as http:
            assert (await http.post("/topics", json={"name": "Spread"})).status_code == 201
            async with http.stream("GET", "/topics/Spread/tail") as answer, aclosing(events(answer)) as seen:
                assert (await anext(seen))[0] == "begun"
                proxies = set()
                for number in range(8):
                    sent = await http.post("/topics/Spread/messages", json={"body": str(number)})
                    assert sent.status_code == 201, sent.text
                    proxies.add(sent.json()["proxy"])
                assert len(proxies) == 2
                shown = [(await anext(seen))[1] for _ in range(8)]
                assert sorted(each["body"] for each in shown) == [str(number) for number in range(8)]
                assert len({each["broker"] for each in shown}) == 2
                found = await browsed(http, "Spread", limit=3)
                assert sorted(each["body"] for each in found) == [str(number) for number in range(8)]

                longest = b64encode(os.urandom(BODY_BYTES_MAX)).decode()
                sent = await http.post("/topics/Spread/messages", json={"body": longest, "body_encoding": "base64"})
                assert sent.status_code == 201, sent.text
                assert (await anext(seen))[1]["body_bytes"] == BODY_BYTES_MAX

                broker = next(name for name in pids if name.startswith("broker"))
                os.kill(pids[broker], signal.SIGSTOP)
                try:
                    async with asyncio.timeout(15):
                        kind, data = await anext(seen)
                        while kind != "unanswered":
                            kind, data = await anext(seen)
                        assert len(data["unanswered"]) == 1
                finally:
                    os.kill(pids[broker], signal.SIGCONT)
                async with asyncio.timeout(30):
                    while kind != "unanswered" or data["unanswered"]:
                        kind, data = await anext(seen)
            await until_open(http, 0)

            # A tail that is open keeps nothing from ending.
            async with http.stream("GET", "/topics/Spread/tail") as answer, aclosing(events(answer)) as seen:
                assert (await anext(seen))[0] == "begun"
                began_s = time.monotonic()
                cluster.interrupt()
                assert await asyncio.to_thread(cluster.wait) == 0
                assert time.monotonic() - began_s < 15
