"""Who of several controllers may believe that it leads, whatever happens to its writes."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_controller.store.lease import Lease, LeaseHolder

LEASE_S = 2.0


def holder(name: str) -> LeaseHolder:
    return LeaseHolder(name, f"{name}:1", f"{name}:2", LEASE_S)


def test_a_free_lease_is_taken_and_renewed() -> None:
    one = holder("one")
    assert not one.leads(0.0)
    first = one.found(None, None, 0.0)
    assert first == Lease("one", "one:1", "one:2", 1)
    one.written(first, 0.0)
    assert (one.leads(1.79), one.leads(1.8)) == (True, False)
    again = one.found(first, "v1", 1.0)
    assert again is not None and again.turn == 2
    one.written(again, 1.0)
    assert one.leads(2.7)
    assert one.released() == Lease("", "", "", 3)
    assert (one.leads(1.0), one.released()) == (False, None)
    assert holder("two").found(Lease("", "", "", 3), "v3", 5.0) is not None


def test_who_waits_counts_from_when_it_saw_the_last_renewal() -> None:
    two, held = holder("two"), Lease("one", "one:1", "", 5)
    assert two.found(held, "v5", 10.0) is None
    assert two.found(held, "v5", 11.9) is None
    assert two.found(held, "v6", 11.95) is None
    assert two.found(held, "v6", 13.9) is None
    taken = two.found(held, "v6", 13.95)
    assert taken is not None and (taken.holder, taken.turn) == ("two", 6)
    two.beaten()
    assert not two.leads(13.95)
    assert two.leader == held


def test_who_finds_anothers_lease_leads_no_more() -> None:
    one = holder("one")
    mine = one.found(None, None, 0.0)
    assert mine is not None
    one.written(mine, 0.0)
    assert one.found(Lease("two", "two:1", "", 9), "v9", 0.1) is None
    assert not one.leads(0.1)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0.0, 1.5), st.floats(0.0, 1.0), st.booleans()), max_size=60
    )
)
def test_never_do_two_lead_at_once(steps: list[tuple[str, float, float, bool]]) -> None:
    """Both look whenever it may be, their writes take as long as they like, and answers to them are lost."""
    holders = {"a": holder("a"), "b": holder("b")}
    stored: tuple[Lease, str] | None = None
    now = 0.0
    for who, pause_s, write_s, answered in steps:
        now += pause_s
        one = holders[who]
        began = now
        lease, version = stored or (None, None)
        mine = one.found(lease, version, began)
        if mine is not None:
            now += write_s
            stored = (mine, str(mine.turn))
            if answered:
                one.written(mine, began)
        assert sum(each.leads(now) for each in holders.values()) <= 1
