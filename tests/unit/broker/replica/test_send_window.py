"""What may be under way to a slave."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.log_sender import SendWindow

CONSTANTS = ReplicationConstants(chunk_bytes=4096, coalesce_bytes=1000, window_bytes=8192, joining_bytes=4096)


def test_a_piece_goes_at_once_while_nothing_is_under_way() -> None:
    window = SendWindow(100, CONSTANTS)
    assert window.room(100) == 0
    assert window.room(101) == 1
    assert window.room(100_000) == 4096


def test_little_waits_for_what_is_under_way() -> None:
    window = SendWindow(0, CONSTANTS)
    window.sent(10)
    assert window.room(1009) == 0
    assert window.room(1010) == 1000
    window.received(10)
    assert window.room(11) == 1


def test_no_more_than_the_window_is_under_way() -> None:
    window = SendWindow(0, CONSTANTS)
    window.sent(4096)
    assert window.room(100_000) == 4096
    window.sent(8191)
    assert window.room(100_000) == 1
    window.sent(9000)  # a record that was longer
    assert window.is_full
    assert window.room(100_000) == 0
    window.received(10_000)  # more than was sent is not believed
    assert window.under_way == 0


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60))
def test_everything_goes_in_the_end(steps: list[tuple[int, bool]]) -> None:
    window = SendWindow(0, CONSTANTS)
    end = 0
    for appended, learned in steps:
        end += appended
        if learned:
            window.received(window.sent_position)
        room = window.room(end)
        assert 0 <= room <= min(4096, end - window.sent_position)
        window.sent(window.sent_position + room)
        assert window.under_way <= 8192
    while window.sent_position < end:
        window.received(window.sent_position)
        assert window.room(end) > 0
        window.sent(window.sent_position + window.room(end))
