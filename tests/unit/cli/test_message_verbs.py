"""What became of a message, of the fates that several pages tell."""

from typing import Any

from popwheel_cli.admin.message import _of_last_places


def fate(group: str, topic: str, position: int, state: str, broker: str = "b") -> dict[str, Any]:
    return {"broker": broker, "group": group, "topic": topic, "position": position, "state": state}


def test_what_has_gone_on_is_reported_by_its_later_place() -> None:
    done, retry, dead = (
        fate("g", "t", 1, "done"),
        fate("g", "%RETRY%g+t", 2, "done"),
        fate("g", "%DLQ%g", 3, "dead letter"),
    )
    other = fate("h", "t", 1, "done")
    assert _of_last_places([done, other, retry, dead], "t") == [other, dead]
    assert _of_last_places([done, other], "t") == [done, other]


def test_what_came_into_its_topic_waits_before_it_no_more() -> None:
    due = fate("", "rmq_sys_wheel_timer", 1, "due")
    assert _of_last_places([due, fate("g", "t", 2, "unread")], "t") == [fate("g", "t", 2, "unread")]
    assert _of_last_places([due, fate("g", "t", 2, "unread", broker="c")], "t")[0] == due


def test_a_second_copy_of_a_send_is_reported_beside_the_first() -> None:
    copies = [fate("g", "t", 1, "acknowledged"), fate("g", "t", 2, "unread")]
    assert _of_last_places(copies, "t") == copies
