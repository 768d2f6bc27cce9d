"""Make a topic and a group over the admin API, look at both, and delete them again.

The page `/docs` of the same server lists all calls; `popwheel admin` is made of them.
"""

import sys

import httpx


def main(url: str) -> None:
    """Ask the admin API below this URL."""
    with httpx.Client(base_url=f"{url}/api/v1") as api:
        topic = {"name": "Invoices", "type": "NORMAL", "queues": 4}
        api.post("/topics", json=topic).raise_for_status()
        api.post("/groups", json={"name": "printers", "max_attempts": 3}).raise_for_status()

        shown = api.get("/topics/Invoices").raise_for_status().json()
        print("topic", shown["name"], "of", shown["queues"], "queues")
        shown = api.get("/groups/printers").raise_for_status().json()
        print("group", shown["name"], "with", shown["max_attempts"], "attempts")

        refused = api.post("/topics", json=topic)
        print("again:", refused.status_code, refused.json())

        api.delete("/topics/Invoices").raise_for_status()
        api.delete("/groups/printers").raise_for_status()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
