"""What official clients of other languages did is what must be. Run by `make interop`."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.harness.programs import Outcome
from tests.interop.clients.access import CREDENTIALS
from tests.interop.clients.conftest import Stage
from tests.interop.clients.plan import Item, Plan

pytestmark = pytest.mark.timeout(1800)

LINES = 5
MESSAGES = 100
ALWAYS = 1_000_000
REFUSED_PATIENCE_S = 40.0
"""Some clients try to start for ever while they are refused."""


def finished(outcome: Outcome) -> Outcome:
    assert outcome.exit_code == 0, outcome.explain()
    assert outcome.of("finished")[0]["all"], outcome.explain()
    return outcome


def bodies(outcome: Outcome, event: str) -> list[str]:
    return [each["body"] for each in outcome.of(event)]


def in_order() -> list[list[Item]]:
    """Five message groups of a hundred messages."""
    return [
        [Item(f"{line} {number}", message_group=f"line-{line}") for number in range(MESSAGES)] for line in range(LINES)
    ]


def dead(stage: Stage, plan: Plan) -> list[str]:
    """What is in the dead letter queue of the plan's group, read by a simple consumer."""
    reads = Plan(plan.endpoint, f"%DLQ%{plan.group}", f"{plan.group}-undertaker", consumer="simple", count=1)
    return bodies(finished(stage.play(reads)), "received")


def test_fifo_push(stage: Stage) -> None:
    """Each message group in its order, through failures, and past a message that never works."""
    stage.needs("push")
    plan = stage.plan("fifo")
    stage.make(plan, "FIFO", fifo=True, max_attempts=3)
    failing = {f"{line} {number}": 1 for line in range(LINES) for number in (7 + line, 57 + line)}
    plan = replace(
        plan,
        messages=in_order(),
        consumer="push",
        consume_first=True,
        fail={**failing, "2 30": ALWAYS},
        count=LINES * MESSAGES - 1,
        patience_s=90.0,
    )
    story = finished(stage.play(plan))
    received = bodies(story, "received")
    for line in range(LINES):
        expected = [f"{line} {number}" for number in range(MESSAGES)]
        times = {body: 1 + failing.get(body, 0) for body in expected} | ({"2 30": 3} if line == 2 else {})
        assert [body for body in received if body.startswith(f"{line} ")] == [
            body for body in expected for _ in range(times[body])
        ], story.explain()
    assert dead(stage, plan) == ["2 30"]


def test_fifo_simple(stage: Stage) -> None:
    """What is not acknowledged comes again before its successors."""
    plan = stage.plan("fifo-simple")
    stage.make(plan, "FIFO", fifo=True, max_attempts=3)
    failing = {"1 3": 1, "2 5": 2, "2 6": 1}
    plan = replace(
        plan,
        messages=in_order(),
        consumer="simple",
        fail=failing,
        count=LINES * MESSAGES,
        invisible_s=3.0,
        patience_s=90.0,
    )
    story = finished(stage.play(plan))
    received = [(each["body"], each["attempt"]) for each in story.of("received")]
    for line in range(LINES):
        of_line = [each for each in received if each[0].startswith(f"{line} ")]
        expected = [
            (body, attempt + 1)
            for body in (f"{line} {number}" for number in range(MESSAGES))
            for attempt in range(1 + failing.get(body, 0))
        ]
        assert of_line == expected, story.explain()


def test_transactions(stage: Stage) -> None:
    """Committed, rolled back, and left to be asked about, once or twice."""
    plan = stage.plan("transactions")
    stage.make(plan, "TRANSACTION")
    items = (
        Item("commit now", end="commit"),
        Item("roll back now", end="rollback"),
        Item("commit if asked", end="open"),
        Item("roll back if asked", end="open"),
        Item("commit if asked twice", end="open"),
    )
    answers = {
        "commit if asked": ["commit"],
        "roll back if asked": ["rollback"],
        "commit if asked twice": ["unknown", "commit"],
    }
    plan = replace(plan, messages=[items], answers=answers, consumer="simple", count=3, linger_s=6.0)
    story = finished(stage.play(plan))
    assert bodies(story, "sent") == [item.body for item in items], story.explain()
    assert sorted(bodies(story, "received")) == ["commit if asked", "commit if asked twice", "commit now"]
    assert {body: bodies(story, "asked").count(body) for body in answers} == {
        body: len(each) for body, each in answers.items()
    }, story.explain()


def test_sql(stage: Stage) -> None:
    """A condition on properties chooses; a bad one is refused, and the position named."""
    plan = stage.plan("sql")
    stage.make(plan)
    items = [Item(f"body {number}", properties={"amount": str(number * 10)}) for number in range(12)]
    chooses = replace(plan, consumer="simple", sql=True, expression="amount BETWEEN 20 AND 50", count=4)
    story = finished(stage.play(replace(chooses, messages=[items])))
    assert sorted(bodies(story, "received")) == [f"body {number}" for number in range(2, 6)]
    bad = stage.play(replace(chooses, group=f"{plan.group}-bad", expression="amount > 'a'", patience_s=5.0))
    assert not bad.of("received")
    assert "at position 10 of the filter" in bad.output + bad.errors + bad.client_log, bad.explain()
    if "push" in stage.language.offers:
        pushes = replace(chooses, consumer="push", group=f"{plan.group}-push", expression="amount > 95", count=2)
        assert sorted(bodies(finished(stage.play(pushes)), "received")) == ["body 10", "body 11"]


def test_dead_letters(stage: Stage) -> None:
    """What a listener fails at, or what is never acknowledged, is in the dead letter queue; the rest is done."""
    plan = stage.plan("dead-letters")
    stage.make(plan, max_attempts=2)
    plan = replace(
        plan,
        messages=[[Item(body) for body in ("fine", "poison", "fails once")]],
        consumer=stage.best_consumer,
        fail={"poison": ALWAYS, "fails once": 1},
        count=2,
        invisible_s=2.0,
        linger_s=8.0,
    )
    story = finished(stage.play(plan))
    attempts = [(each["body"], each["attempt"]) for each in story.of("received")]
    assert sorted(attempts) == [("fails once", 1), ("fails once", 2), ("fine", 1), ("poison", 1), ("poison", 2)]
    assert dead(stage, plan) == ["poison"]


def test_priorities(stage: Stage) -> None:
    """The highest first, whatever was sent first."""
    stage.needs("priority")
    plan = stage.plan("priorities")
    stage.make(plan, "PRIORITY")
    items = [Item(f"{number % 10} {number}", priority=number % 10) for number in range(30)]
    plan = replace(plan, messages=[items], consumer="simple", count=len(items))
    received = bodies(finished(stage.play(plan)), "received")
    assert sorted(received) == sorted(item.body for item in items)
    levels = [body.split()[0] for body in received]
    assert levels == sorted(levels, reverse=True), received


def test_lite_topics(stage: Stage) -> None:
    """What was subscribed to, each lite topic in its order, also through failures; nothing of others."""
    stage.needs("lite")
    plan = stage.plan("lite-topics")
    stage.make(plan, "LITE", max_attempts=3)
    lists = [[Item(f"{name} {number}", lite_topic=f"lite-{name}") for number in range(10)] for name in "abc"]
    failing = {"a 3": 1, "b 7": 2}
    plan = replace(
        plan, messages=lists, consumer="lite", lite_topics=("lite-a", "lite-b"), fail=failing, count=20, linger_s=3.0
    )
    story = finished(stage.play(plan))
    assert not story.of("refused"), story.explain()
    received = bodies(story, "received")
    for name in "ab":
        expected = [f"{name} {number}" for number in range(10) for _ in range(1 + failing.get(f"{name} {number}", 0))]
        assert [body for body in received if body.startswith(name)] == expected, story.explain()
    assert {each["lite_topic"] for each in story.of("received")} == {"lite-a", "lite-b"}, story.explain()


def test_tls(stage: Stage) -> None:
    """Over TLS with right credentials: sent, received, acknowledged. Access is tried with plain text elsewhere."""
    stage.needs("tls")
    assert_right(stage.play(guarded(stage, "right", "tls", tls=True)))


def test_access(stage: Stage) -> None:
    """With right keys all goes; with wrong or missing ones nothing, and a line is in the log; rules hold."""
    with ThreadPoolExecutor(2) as pool:
        running = {
            name: pool.submit(stage.play, guarded(stage, name, name), REFUSED_PATIENCE_S) for name in CREDENTIALS
        }
        stories = {name: each.result() for name, each in running.items()}
    assert_right(stories["right"])
    for name in ("wrong-secret", "wrong-key", "missing"):
        assert not stories[name].of("sent"), stories[name].explain()
        assert not stories[name].of("received"), stories[name].explain()
        assert stories[name].of("refused") or stories[name].exit_code != 0, stories[name].explain()
        said = "access key" if name == "missing" else "the access key or its secret is wrong"
        assert said in stories[name].output + stories[name].errors + stories[name].client_log
    assert bodies(stories["producer"], "sent") == ["with a key"], stories["producer"].explain()
    assert not stories["producer"].of("received"), stories["producer"].explain()
    denials = [line for line in stage.guarded.log_text().splitlines() if "access denied" in line]
    # Without keys some clients send no header, others one without a signature.
    for reason in (("no_credentials", "no_signature"), ("unknown_access_key",), ("wrong_signature",), ("forbidden",)):
        assert any(each in line for line in denials for each in reason), (reason, denials[-10:])


def guarded(stage: Stage, user: str, name: str, *, tls: bool = False) -> Plan:
    key, secret = CREDENTIALS[user]
    return replace(
        stage.plan(name),
        endpoint=stage.guarded.grpc_address,
        tls=tls,
        access_key=key,
        secret=secret,
        messages=[[Item("with a key")]],
        consumer=stage.best_consumer,
        count=1,
        patience_s=10.0,
    )


def assert_right(outcome: Outcome) -> None:
    story = finished(outcome)
    assert bodies(story, "sent") == bodies(story, "done") == ["with a key"], story.explain()
    assert not story.of("refused"), story.explain()
