"""One drill: a recorder at work, a failure, and what that cost."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.harness.recorder import Recorder
from tests.harness.release import Release

CLIENT_IMAGE = os.environ.get("CLIENT_IMAGE") or "python:3.13-slim"

_BEFORE_S = 3.0
_SENT_AGAIN = {"repeated", "acked_again", "timers_twice", "elsewhere"}
"""Faults that two messages of one body look like; the client was answered for the second one alone."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What a drill cost.

    Args:
        drill: which.
        epochs: how many masters came after another.
        took_s: from the failure until the release was whole again.
        without_send_s: the longest time without a send that was answered.
        one_sender_s: the longest time that one sender was without an answered send.
        without_receive_s: the longest time without a message that came.
        usual_s: the longest such time of either before the failure.
        sent, lost, repeated: how many messages.
        late_ms: by how much the latest delayed message was late.
        failed: calls that the client noticed as errors, by their kind.
    """

    drill: str
    epochs: int
    took_s: float
    without_send_s: float
    one_sender_s: float
    without_receive_s: float
    usual_s: float
    sent: int
    lost: int
    repeated: int
    late_ms: float
    failed: dict[str, int]

    @property
    def errors(self) -> int:
        """Sends and receives that ended with an error. An ack may come too late, where the client's machine is slow."""
        return self.failed.get("send", 0) + self.failed.get("receive", 0)

    HEAD: ClassVar = (
        f"{'drill':<42}{'epochs':>7}{'whole after':>12}{'no send':>9}{'one sender':>11}{'no receive':>11}"
        f"{'usual':>7}{'sent':>7}{'lost':>6}{'repeated':>9}{'late':>9}  failed calls"
    )

    def __str__(self) -> str:
        failed = ", ".join(f"{kind} {count}" for kind, count in self.failed.items()) or "none"
        return (
            f"{self.drill:<42}{self.epochs:>7}{self.took_s:>10.1f} s{self.without_send_s:>7.2f} s"
            f"{self.one_sender_s:>9.2f} s{self.without_receive_s:>9.2f} s{self.usual_s:>5.2f} s"
            f"{self.sent:>7}{self.lost:>6}{self.repeated:>9}{self.late_ms:>6.0f} ms  {failed}"
        )


def drill(
    name: str,
    release: Release,
    strike: Callable[[], None],
    *,
    endpoint: str = "",
    not_on: Sequence[str] = (),
    keepalive: bool = False,
    ready: Callable[[], None] = lambda: None,
    client_sends_again: bool = False,
) -> Bill:
    """Strike a release under load, wait until it is whole again, and see that nothing was lost or came twice.

    Args:
        name: of the drill.
        release: that is struck.
        strike: makes the failure and takes it back.
        endpoint, not_on, keepalive: as `Recorder` takes them.
        ready: called once the client is connected.
        client_sends_again: whether the client itself may send a message twice, as it had no answer. The second one is
            another message to the brokers, though its body is the same.
    """
    release.wait_until_whole()
    run = f"{name.replace(' ', '-')}-{int(time.time())}"
    with Recorder(release, run, CLIENT_IMAGE, endpoint, not_on, keepalive=keepalive) as recorder:
        account = recorder.account
        recorder.flows(40)
        ready()
        recorder.flows()
        release.pause(_BEFORE_S)
        recorder.read()
        sends, receipts, before = len(account.sends), len(account.receipts), release.group()
        usual_s = max(recorder.without_s(account.sends[20:], 0), recorder.without_s(account.receipts[20:], 0))
        began = time.monotonic()
        strike()
        release.wait_until_whole()
        took_s = time.monotonic() - began
        recorder.read()
        recorder.flows()
        verdict = recorder.settle()
        failures = account.failures
        bill = Bill(
            drill=name,
            epochs=release.group().epoch - before.epoch,
            took_s=took_s,
            without_send_s=recorder.without_s(account.sends, sends),
            one_sender_s=recorder.longest_of_one_sender_s(),
            without_receive_s=recorder.without_s(account.receipts, receipts),
            usual_s=usual_s,
            sent=account.sent_count,
            lost=len(verdict.lost) + len(verdict.timers_lost),
            repeated=len(verdict.repeated) + len(verdict.acked_again) + len(verdict.timers_twice),
            late_ms=max(account.late_ms(), default=0.0),
            failed=dict(Counter(failure.partition(":")[0] for failure in failures)),
        )
        print(f"\n{Bill.HEAD}\n{bill}", *failures[:10], sep="\n", flush=True)
        faults = verdict.faults.keys() - (_SENT_AGAIN if client_sends_again else set())
        assert not faults, verdict.explain()
    return bill
