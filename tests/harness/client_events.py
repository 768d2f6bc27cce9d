"""What `tests.interop.failover_client` tells, entered into an account."""

import json
from typing import Any

from popwheel_cli.drills.account import Account, Delivery, place_of


class ClientEvents:
    """Reads the client's lines.

    Args:
        name: what its messages begin with; those of an earlier client are passed over.
    """

    def __init__(self, name: str) -> None:
        self.account = Account()
        self.quiet = False
        """Whether it sends no more."""
        self.read_bytes = 0
        """How much of its output was taken in."""
        self._name = name

    def feed(self, output: bytes) -> None:
        """Take in what follows what was read; half a line at the end is left for the next time."""
        for line in output.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            self.read_bytes += len(line)
            self._enter(json.loads(line))

    def _enter(self, event: dict[str, Any]) -> None:
        account, body = self.account, str(event.get("body", ""))
        match event["event"]:
            case "trying":
                account.trying(body, event["sender"], event["number"], event["due_ms"])
            case "sent":
                account.sent(body, event["at"], event["offset"])
            case "failed":
                account.failed(f"{event['call']}: {event['error']}")
            case "delivered":
                if body.startswith(f"{self._name}-"):
                    place = place_of(event["topic"], event["handle"])
                    account.delivered(body, Delivery(event["at"], event["at_ms"], event["attempt"], place))
            case "acking":
                account.ack_asked(body)
            case "acked":
                account.acked(body)
            case "quiet":
                self.quiet = True
