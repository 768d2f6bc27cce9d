"""Start Popwheel, let the official Python client work with it, and show what happened (run by `make demo`).

The exit code is 0 only if all went as it should.
"""

import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo import client
from tests.harness.programs import Outcome, run_program
from tests.harness.standalone import StandaloneProcess

LATE_S_MAX = 1.0


@dataclass
class Life:
    """What became of one message."""

    key: str
    id_sent: str
    ids_received: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    received_at: list[float] = field(default_factory=list)
    tag: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    body: str = ""
    acks: int = 0

    @property
    def came_again_after_s(self) -> float | None:
        """Seconds between the first two times it was received."""
        return self.received_at[1] - self.received_at[0] if len(self.received_at) > 1 else None

    def faults(self) -> list[str]:
        """What is not as it should be."""
        number = self.key.removeprefix("order-")
        again = self.key == client.LEFT_UNACKED
        expected = {
            "attempts": [1, 2] if again else [1],
            "ids": [self.id_sent] * (2 if again else 1),
            "tag": "paid",
            "properties": {"amount": str(100 + int(number))},
            "body": f"order {number} paid",
            "acks": 1,
        }
        seen = {
            "attempts": self.attempts,
            "ids": self.ids_received,
            "tag": self.tag,
            "properties": self.properties,
            "body": self.body,
            "acks": self.acks,
        }
        faults = [f"{name}: {seen[name]}, not {expected[name]}" for name in expected if seen[name] != expected[name]]
        pause = self.came_again_after_s
        if pause is not None and not client.INVISIBLE_S - 0.5 <= pause <= client.INVISIBLE_S + 5:
            faults.append(f"came again after {pause:.1f} s, not {client.INVISIBLE_S} s")
        return faults


@dataclass
class Reminder:
    """What became of one message with a delivery time."""

    key: str
    due_s: float
    came_s: list[float] = field(default_factory=list)

    @property
    def late_s(self) -> float | None:
        """Seconds between its delivery time and when it first was in the consumer's hands."""
        return self.came_s[0] - self.due_s if self.came_s else None

    def faults(self) -> list[str]:
        """What is not as it should be."""
        if self.late_s is None or len(self.came_s) > 1:
            return [f"came {len(self.came_s)} times"]
        if self.late_s < 0:
            return [f"came {-self.late_s * 1000:.1f} ms early"]
        return [f"came {self.late_s:.1f} s late"] if self.late_s > LATE_S_MAX else []


def main() -> int:
    """Run the demonstration; the exit code."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="popwheel-demo-") as name:
        folder = Path(name)
        server = StandaloneProcess(folder / "data")
        console.print(f"Popwheel starts: clients at {server.grpc_address}, HTTP at {server.http_url}")
        with server:
            make_topic(server, client.REMINDERS, "DELAY")
            console.print(
                f"The official Python client sends {client.MESSAGES} messages, receives them, acks all but one, and "
                f"waits {client.INVISIBLE_S} seconds for that one to come again. Meanwhile it sends some that are to "
                f"come only {' and '.join(f'{ahead_s:g}' for ahead_s in client.AHEAD_S)} seconds later ..."
            )
            outcome = run_program(["-m", "demo.client", server.grpc_address], folder / "client")
    lives = read(outcome)
    console.print(table(lives))
    reminders = read_reminders(outcome)
    console.print(reminder_table(reminders))
    faults = [f"{life.key}: {fault}" for life in lives for fault in life.faults()]
    faults += [f"{reminder.key}: {fault}" for reminder in reminders for fault in reminder.faults()]
    if len(lives) != client.MESSAGES:
        faults.append(f"{len(lives)} messages were sent, not {client.MESSAGES}")
    if len(reminders) != len(client.AHEAD_S):
        faults.append(f"{len(reminders)} messages were sent ahead, not {len(client.AHEAD_S)}")
    if outcome.exit_code != 0:
        faults.append(outcome.explain())
    for fault in faults:
        console.print(fault, style="red", markup=False)
    if not faults:
        console.print(
            "All as it should be: every message was consumed, the one left unacked came again, and none came before "
            "its delivery time."
        )
    return 1 if faults else 0


def make_topic(server: StandaloneProcess, name: str, kind: str) -> None:
    """Make a topic as an operator would."""
    words = ("admin", "--server", server.http_url, "topic", "create", name, "--type", kind)
    subprocess.run([sys.executable, "-m", "popwheel_cli.main", *words], check=True, stdout=subprocess.DEVNULL)


def read(outcome: Outcome) -> list[Life]:
    """The lives of the messages, from what the client told."""
    lives = {event["key"]: Life(event["key"], event["id"]) for event in outcome.of("sent")}
    for event in outcome.of("received"):
        take(lives[event["key"]], event)
    for event in outcome.of("acked"):
        lives[event["key"]].acks += 1
    return list(lives.values())


def take(life: Life, event: dict[str, Any]) -> None:
    """Note one delivery."""
    life.ids_received.append(event["id"])
    life.attempts.append(event["attempt"])
    life.received_at.append(event["at"])
    life.tag, life.properties, life.body = event["tag"], event["properties"], event["body"]


def read_reminders(outcome: Outcome) -> list[Reminder]:
    """The messages with a delivery time, from what the client told."""
    reminders = {event["key"]: Reminder(event["key"], event["due_s"]) for event in outcome.of("delayed")}
    for event in outcome.of("came"):
        reminders[event["key"]].came_s.append(event["came_s"])
    return list(reminders.values())


def table(lives: list[Life]) -> Table:
    """One row per message."""
    result = Table(title="What happened")
    for heading in ("key", "tag", "properties", "body", "attempts", "again after", "acked"):
        result.add_column(heading)
    for life in lives:
        pause = life.came_again_after_s
        result.add_row(
            life.key,
            life.tag,
            ", ".join(f"{name}={value}" for name, value in life.properties.items()),
            life.body,
            ", ".join(map(str, life.attempts)),
            "" if pause is None else f"{pause:.1f} s",
            "yes" if life.acks else "no",
            style="bold" if len(life.attempts) > 1 else "",
        )
    return result


def reminder_table(reminders: list[Reminder]) -> Table:
    """One row per message with a delivery time."""
    result = Table(title="What was sent ahead of its time")
    for heading in ("sent to come", "due (UTC)", "came", "late"):
        result.add_column(heading)
    for reminder in reminders:
        result.add_row(
            reminder.key,
            clock_time(reminder.due_s),
            ", ".join(map(clock_time, reminder.came_s)) or "never",
            "" if reminder.late_s is None else f"{reminder.late_s * 1000:.1f} ms",
        )
    return result


def clock_time(time_s: float) -> str:
    """The time of day, to the millisecond."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S.%f")[:-3]


if __name__ == "__main__":
    sys.exit(main())
