"""The official Python client, unmodified, against both transports: what its scenarios saw is what must be."""

import hashlib

from tests.harness.programs import Outcome

Outcomes = dict[str, Outcome]

PUSH_FIRST_BACKOFF_S = 1.0


def finished(outcomes: Outcomes, name: str) -> Outcome:
    outcome = outcomes[name]
    assert outcome.exit_code == 0, outcome.explain()
    return outcome


def test_what_is_sent_is_received_and_acked_once(outcomes: Outcomes) -> None:
    story = finished(outcomes, "send_receive_ack")
    sent = {event["id"]: event["body"] for event in story.of("sent")}
    received = {event["id"]: event for event in story.of("received")}
    assert len(sent) == len(story.of("received")) == 10, story.explain()
    assert {identity: event["body"] for identity, event in received.items()} == sent
    for event in received.values():
        number = event["body"].removeprefix("body ")
        assert event["topic"] == "InteropFirst"
        assert (event["tag"], event["keys"], event["properties"]) == ("greeting", [f"key-{number}"], {"number": number})
        assert (event["attempt"], event["corrupted"]) == (1, False)
        assert event["born_host"]
        assert event["born_timestamp"] > 1_700_000_000_000
    assert {event["id"] for event in story.of("acked")} == set(sent)
    assert story.of("left")[0]["count"] == 0


def test_what_is_not_acked_comes_again_when_its_time_is_over(outcomes: Outcomes) -> None:
    story = finished(outcomes, "redelivery")
    first, second = story.of("received")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["id"] == second["id"] == story.of("sent")[0]["id"]
    assert 1.9 <= second["at"] - first["at"] <= 8.0
    assert story.of("left")[0]["count"] == 0


def test_a_changed_invisible_duration_counts_and_voids_the_old_handle(outcomes: Outcomes) -> None:
    story = finished(outcomes, "changed_invisible_duration")
    assert [event["new_handle"] for event in story.of("changed")] == [True, True], story.explain()
    refusal = story.of("old handle")[0]
    assert (refusal["error"], refusal["code"]) == ("BadRequestException", 40013)
    first, second = story.of("received")
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert 1.9 <= second["at"] - story.of("changed")[0]["at"] <= 8.0
    assert story.of("left")[0]["count"] == 0


def test_tags_choose(outcomes: Outcomes) -> None:
    story = finished(outcomes, "tags")
    got = {event["expression"]: event for event in story.of("got")}
    assert got["red"]["bodies"] == ["red 1", "red 2"]
    assert got["red || green"]["bodies"] == ["green 1", "green 2", "red 1", "red 2"]
    assert got["*"]["bodies"] == ["blue 1", "blue 2", "green 1", "green 2", "none", "red 1", "red 2"]
    assert [event["left"] for event in story.of("got")] == [0, 0, 0]


def test_sql_filters_choose(outcomes: Outcomes) -> None:
    story = finished(outcomes, "sql_filters")
    got = {event["group"]: event for event in story.of("got")}
    expected = {"amount": (2, 3, 4, 5), "region": (3, 6, 9), "tag": (1, 5, 7, 11)}
    for group, numbers in expected.items():
        bodies = sorted(f"body {number}" for number in numbers)
        assert (got[group]["first"], got[group]["again"]) == (bodies, bodies), story.explain()
        assert (got[group]["attempts"], got[group]["left"]) == ([2], 0)
    assert story.of("pushed")[0]["all"], story.explain()
    assert {event["body"] for event in story.of("received")} == {
        f"body {number}" for number in (*range(2, 8), 9, 10, 11, 1)
    }
    (refused,) = story.of("refused")
    assert refused["code"] == 40010
    assert "at position 10 of the filter" in refused["text"] + story.client_log


def test_what_fails_too_often_is_a_dead_letter(outcomes: Outcomes) -> None:
    story = finished(outcomes, "dead_letters")
    attempts = [event["attempt"] for event in story.of("received") if event["topic"] == "InteropDeadLetters"]
    assert attempts[:2] == [1, 2], story.explain()
    assert [event["body"] for event in story.of("dead")] == ["poison"]
    assert story.of("dead")[0]["id"] == story.of("sent")[0]["id"]
    assert story.of("left")[0]["count"] == 0


def test_bodies_of_three_mebibytes(outcomes: Outcomes) -> None:
    story = finished(outcomes, "big_bodies")
    sent = sorted(event["digest"] for event in story.of("sent"))
    assert sorted(event["body"] for event in story.of("received")) == sent
    assert hashlib.sha256(hashlib.sha512(b"0").digest() * (3 * 1024 * 16)).hexdigest() in sent
    assert not any(event["corrupted"] for event in story.of("received"))
    assert story.of("too big")[0]["error"] is not None


def test_one_client_of_four_topics(outcomes: Outcomes) -> None:
    story = finished(outcomes, "four_topics")
    assert sorted(event["body"] for event in story.of("received")) == [f"for InteropFour{each}" for each in range(4)]


def test_a_push_consumer_gets_all_and_its_failure_once_more(outcomes: Outcomes) -> None:
    story = finished(outcomes, "push")
    assert story.of("finished")[0]["all"], story.explain()
    attempts: dict[str, list[int]] = {}
    for event in story.of("received"):
        attempts.setdefault(event["body"], []).append(event["attempt"])
    assert attempts == {f"push {number}": [1, 2] if number == 7 else [1] for number in range(20)}
    first, second = (event["at"] for event in story.of("received") if event["body"] == "push 7")
    assert second - first >= 0.9 * PUSH_FIRST_BACKOFF_S
    assert story.of("left")[0]["count"] == 0


def test_transactions_commit_roll_back_and_are_asked_about(outcomes: Outcomes) -> None:
    story = finished(outcomes, "transactions")
    assert all(event["transaction"] for event in story.of("half")), story.explain()
    assert sorted(event["body"] for event in story.of("received")) == [
        *("commit for the dead", "commit if asked", "commit if asked, late", "commit now")
    ], story.explain()
    assert story.of("left")[0]["count"] == 0
    asked = [event["body"] for event in story.of("asked")]
    assert set(asked) == {"commit for the dead", "commit if asked", "commit if asked, late", "roll back if asked"}
    assert asked.count("commit if asked, late") == 2
    assert not any(event["corrupted"] for event in story.of("asked"))


def test_a_push_consumer_gets_each_message_group_in_its_order(outcomes: Outcomes) -> None:
    story = finished(outcomes, "fifo_push")
    assert story.of("finished")[0]["all"], story.explain()
    for line in range(5):
        consumed = [event["body"] for event in story.of("consumed") if event["body"].startswith(f"{line} ")]
        assert consumed == [f"{line} {number}" for number in range(100) if (line, number) != (2, 30)]
    # A message that fails is tried again before its successors, and no other message group waits for that.
    for line, number in ((0, 7), (1, 8), (2, 30), (4, 61)):
        of_line = [event["body"] for event in story.of("received") if event["body"].startswith(f"{line} ")]
        at = of_line.index(f"{line} {number}")
        assert of_line[at : at + 3] == [f"{line} {number}", f"{line} {number}", f"{line} {number + 1}"]
    assert [event["body"] for event in story.of("dead")] == ["2 30"]
    assert story.of("left")[0]["count"] == 0


def test_the_highest_priority_comes_first(outcomes: Outcomes) -> None:
    story = finished(outcomes, "priorities")
    order = [(2, 12), (6, 9), (1, 3), (4, 3), (3, 1), (0, 0), (5, 0)]
    for group in ("interop-priority", "interop-priority-fifo"):
        got = [event for event in story.of("received") if event.get("group") == group]
        assert [(int(event["body"].split()[1]), event["priority"]) for event in got] == order, story.explain()
    assert story.of("pushed")[0]["all"], story.explain()


def test_a_simple_consumer_gets_again_what_it_did_not_ack_before_its_successors(outcomes: Outcomes) -> None:
    story = finished(outcomes, "fifo_simple")
    for line in range(5):
        received = [event for event in story.of("received") if event["body"].startswith(f"{line} ")]
        again = {1: [3], 2: [5, 6]}.get(line, [])
        expected = [(number, attempt) for number in range(10) for attempt in ((1, 2) if number in again else (1,))]
        assert [(event["body"], event["attempt"]) for event in received] == [
            (f"{line} {number}", attempt) for number, attempt in expected
        ], story.explain()
    assert story.of("left")[0]["count"] == 0


def test_push_consumers_get_the_lite_topics_that_they_read(outcomes: Outcomes) -> None:
    story = finished(outcomes, "lite")
    (waited,) = story.of("finished")
    assert (waited["anna"], waited["bert"], waited["carl"]) == (True, True, True), story.explain()
    read = {"anna": {"u0", "u1", "u2"}, "bert": {"u2", "u3"}, "carl": {"u1", "u3"}}
    pushed = [event for event in story.of("pushed") if "after" not in event["body"]]
    for event in pushed:
        assert event["lite_topic"] in read[event["consumer"]]
        assert (event["topic"], event["lite_topic"]) == ("InteropLite", event["body"].split()[0])
    for team, lite_topic in (
        *((("anna", "bert"), f"u{number}") for number in range(4)),
        *((("carl",), lite_topic) for lite_topic in ("u1", "u3")),
    ):
        bodies = [event["body"] for event in pushed if event["consumer"] in team and event["lite_topic"] == lite_topic]
        assert list(dict.fromkeys(bodies)) == [f"{lite_topic} {number}" for number in range(5)]
        # What fails is tried again before its successors, and no other lite topic waits for that.
        again = {"u1": "u1 2", "u3": "u3 3"}.get(lite_topic)
        assert bodies == sorted(bodies), story.explain()
        assert [body for body in bodies if bodies.count(body) > 1] == ([again, again] if again else [])
    assert story.of("unsubscribed")[0]["after"]
    assert [(event["group"], event["body"]) for event in story.of("dead")] == [
        ("interop-lite", "u3 3"),
        ("interop-lite-fifo", "u3 3"),
    ]
    refused = {event["what"]: (event["error"], event["code"]) for event in story.of("refused")}
    assert refused == {
        "lite topic a b": ("BadRequestException", 40020),
        "lite topic *": ("BadRequestException", 40020),
        "lite topic aaa": ("IllegalStateException", 0),
        "message without a lite topic": ("IllegalArgumentException", 0),
        "ordinary consumer": ("BadRequestException", 40000),
    }


def test_a_simple_consumer_gets_the_lite_topics_that_it_reads(outcomes: Outcomes) -> None:
    story = finished(outcomes, "lite")
    received = [event for event in story.of("received") if not event.get("topic")]  # those of dead letters say it
    for lite_topic in ("u4", "u5"):
        bodies = [event["body"] for event in received if event["lite_topic"] == lite_topic]
        assert bodies == sorted([f"{lite_topic} {number}" for number in range(5)] + ["u4 1"] * (lite_topic == "u4"))
    assert [event["attempt"] for event in received if event["body"] == "u4 1"] == [1, 2]
    assert story.of("left")[0]["count"] == 0


def test_a_topic_that_does_not_exist(outcomes: Outcomes) -> None:
    story = finished(outcomes, "missing_topic")
    assert not story.of("sent"), story.explain()
    assert [event["text"] for event in story.of("refused")] == ["failed to fetch topic:InteropNoSuchTopic route."]
    assert "40402, the topic InteropNoSuchTopic does not exist" in story.client_log
