"""Where two logs part, reported by their epochs alone, must be where their bytes part."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_broker.replication import epochs
from popwheel_broker.replication.epochs import EpochHistory, EpochStart, JoinPlan, LogOutline, join_plan
from popwheel_common.errors import CorruptDataError


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochStart(*start) for start in starts)


def test_epochs_and_starts_grow() -> None:
    known = history((1, 0), (3, 100))
    for epoch, position in ((3, 200), (2, 200), (4, 99)):
        with pytest.raises(ValueError, match="can't begin"):
            known.begin(epoch, position)
    known.begin(4, 100)
    assert list(known) == [(1, 0), (3, 100), (4, 100)]
    assert known.latest == 4
    assert EpochHistory().latest == 0


def test_reports_who_wrote_what() -> None:
    known = history((1, 0), (3, 100), (4, 100), (7, 250))
    assert [known.epoch_at(position) for position in (-1, 0, 99, 100, 249, 250, 10_000)] == [0, 1, 1, 4, 4, 7, 7]
    assert [known.last_epoch(end) for end in (0, 1, 100, 101, 250, 251)] == [0, 1, 1, 4, 4, 7]
    assert [known.end_of(epoch, 300) for epoch in (1, 2, 3, 4, 7, 8)] == [100, None, 100, 250, 300, None]


def test_is_made_again_from_records() -> None:
    known = EpochHistory()
    assert known.record(2, 64)
    assert not known.record(2, 128)
    assert known.record(5, 300)
    assert list(known) == [(2, 64), (5, 300)]
    with pytest.raises(CorruptDataError, match="the record at 400 is of epoch 4, though epoch 5"):
        known.record(4, 400)


def test_a_cut_forgets_what_began_there_or_later() -> None:
    known = history((1, 0), (3, 100), (4, 200))
    assert not known.cut(201)
    assert known.cut(200)
    assert known.up_to(100) == history((1, 0))
    assert known == history((1, 0), (3, 100))
    assert known.up_to(0) == EpochHistory()
    assert repr(known) == "EpochHistory(1 from 0, 3 from 100)"


def test_where_logs_part() -> None:
    master = LogOutline(0, 500, history((1, 0), (2, 100), (4, 300)))
    for follower, expected in (
        (LogOutline(0, 0, history()), JoinPlan(0, anew=False)),
        (LogOutline(0, 500, history((1, 0), (2, 100), (4, 300))), JoinPlan(500, anew=False)),
        (LogOutline(0, 700, history((1, 0), (2, 100), (4, 300))), JoinPlan(500, anew=False)),
        (LogOutline(0, 250, history((1, 0), (2, 100))), JoinPlan(250, anew=False)),
        (LogOutline(0, 350, history((1, 0), (2, 100))), JoinPlan(300, anew=False)),
        # 3 led for a while, and nobody but the follower has learned of it
        (LogOutline(0, 400, history((1, 0), (2, 100), (3, 200))), JoinPlan(200, anew=False)),
        (LogOutline(0, 90, history((1, 0), (3, 80))), JoinPlan(80, anew=False)),
        (LogOutline(0, 120, history((1, 0), (3, 80))), JoinPlan(80, anew=False)),
        # made anew once, at 120
        (LogOutline(120, 150, history((2, 120))), JoinPlan(150, anew=False)),
        (LogOutline(350, 400, history((3, 350))), JoinPlan(0, anew=True)),
        (LogOutline(120, 150, history((2, 100), (3, 110))), JoinPlan(0, anew=True)),
    ):
        assert join_plan(master, follower) == expected, follower


def test_a_log_that_is_too_old_begins_anew() -> None:
    master = LogOutline(200, 500, history((1, 0), (2, 100), (4, 300)))
    assert join_plan(master, LogOutline(0, 0, history())) == JoinPlan(200, anew=True)
    assert join_plan(master, LogOutline(0, 150, history((1, 0), (2, 100)))) == JoinPlan(200, anew=True)
    assert join_plan(master, LogOutline(0, 200, history((1, 0), (2, 100)))) == JoinPlan(200, anew=False)
    assert join_plan(master, LogOutline(200, 200, history((1, 0), (2, 100)))) == JoinPlan(200, anew=False)


@dataclass(slots=True)
class Written:
    """A log whose bytes name their writer and are distinguished also within an epoch: each is (epoch, place)."""

    bytes_of: list[tuple[int, int]]
    epochs: EpochHistory

    def outline(self) -> LogOutline:
        return LogOutline(0, len(self.bytes_of), self.epochs)


@given(st.data())
def test_logs_part_where_their_bytes_do(data: st.DataObject) -> None:
    lead_in_turns(data, forgets=False)


@given(st.data())
def test_logs_whose_oldest_epochs_are_forgotten_part_there_or_before(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epochs, "EPOCHS_MAX", 2)
        lead_in_turns(data, forgets=True)


def lead_in_turns(data: st.DataObject, *, forgets: bool) -> None:
    """Three replicas; again and again one of them leads an epoch of its own, and the others follow it for a while."""
    logs = [Written([], EpochHistory()) for _ in range(3)]
    for epoch in range(1, data.draw(st.integers(1, 8)) + 1):
        leader = logs[data.draw(st.integers(0, 2))]
        leader.epochs.begin(epoch, len(leader.bytes_of))
        for _ in range(data.draw(st.integers(0, 4))):
            leader.bytes_of += [(epoch, len(leader.bytes_of) + each) for each in range(data.draw(st.integers(0, 3)))]
            follower = logs[data.draw(st.integers(0, 2))]
            if follower is not leader:
                follow(follower, leader, data.draw(st.integers(0, 4)), forgets=forgets)
            assert all(len(each.epochs) <= epochs.EPOCHS_MAX for each in logs)


def follow(follower: Written, leader: Written, count: int, *, forgets: bool) -> None:
    plan = join_plan(leader.outline(), follower.outline())
    assert not plan.anew
    same = next(
        (at for at, pair in enumerate(zip(leader.bytes_of, follower.bytes_of, strict=False)) if pair[0] != pair[1]),
        min(len(leader.bytes_of), len(follower.bytes_of)),
    )
    assert plan.position == same or (forgets and plan.position < same)
    del follower.bytes_of[plan.position :]
    follower.epochs.cut(plan.position)
    for epoch, place in leader.bytes_of[plan.position : plan.position + count]:
        follower.epochs.record(epoch, place)
        follower.bytes_of.append((epoch, place))
    end = len(follower.bytes_of)
    for position in range(end):
        theirs, ours = leader.epochs.epoch_at(position), follower.epochs.epoch_at(position)
        assert theirs == ours or (forgets and 0 in (theirs, ours))
