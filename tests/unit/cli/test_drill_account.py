"""The account of a drill finds each kind of fault, and no others."""

from popwheel_cli.drills.account import Account, Delivery, Place, Verdict, longest_gap, place_of
from popwheel_common.contract.receipt import FROM_RETRY_TOPIC, FROM_TOPIC, HandleMaker, ReceiptHandle

DUE_MS = 1_800_000_000_000


def came(at: float, attempt: int = 1, *, offset: int | None = None, at_ms: float = DUE_MS) -> Delivery:
    return Delivery(at, at_ms, attempt, None if offset is None else Place("topic", "broker-0:0", offset))


def sent(account: Account, *bodies: str, due_ms: int | None = None) -> None:
    """Bodies such as a-1: sender and number."""
    for at, body in enumerate(bodies):
        sender, _, number = body.partition("-")
        account.trying(body, sender, int(number), due_ms)
        account.sent(body, float(at), int(number))


def faults(account: Account) -> dict[str, list[str]]:
    return account.verdict().faults


def test_all_is_well() -> None:
    account = Account()
    sent(account, "a-1", "a-2", "b-3")
    for number, body in enumerate(("a-1", "a-2", "b-3"), 1):
        account.delivered(body, came(10.0 + number, offset=number))
        account.ack_asked(body)
        account.acked(body)
    assert faults(account) == {}
    assert account.verdict().explain() == "all is well"
    assert account.owed == set()
    assert account.sent_count == account.acked_count == 3


def test_lost_and_not_lost() -> None:
    account = Account()
    sent(account, "a-1", "a-2", "a-3", "a-4")
    account.trying("a-5", "a", 5)  # never answered: owed to nobody
    account.delivered("a-2", came(1.0))
    account.delivered("a-3", came(1.0))
    account.ack_asked("a-3")  # in doubt: it may have counted
    account.delivered("a-4", came(1.0))
    assert account.owed == {"a-1", "a-2", "a-4"}
    assert faults(account) == {"lost": ["a-1", "a-2", "a-4"]}


def test_repeated_without_and_with_an_excuse() -> None:
    account = Account()
    sent(account, "a-1", "a-2", "a-3")
    account.delivered("a-1", came(1.0))
    account.delivered("a-1", came(2.0, 2))
    account.acked("a-1")
    account.delivered("a-2", came(1.0))
    account.ack_asked("a-2")
    account.delivered("a-2", came(2.0, 2))
    account.acked("a-2")
    account.delivered("a-3", came(1.0))
    account.ack_asked("a-3")
    account.delivered("a-3", came(2.0, 1))  # in doubt, but this one was stored twice
    account.acked("a-3")
    assert faults(account) == {"repeated": ["a-1", "a-3"]}


def test_acked_and_again() -> None:
    account = Account()
    sent(account, "a-1")
    account.delivered("a-1", came(1.0))
    account.ack_asked("a-1")
    account.acked("a-1")
    account.delivered("a-1", came(2.0, 2))
    assert faults(account) == {"repeated": ["a-1"], "acked_again": ["a-1"]}


def test_nobody_sent_it() -> None:
    account = Account()
    account.delivered("x", came(1.0))
    account.ack_asked("x")
    account.acked("x")
    assert faults(account) == {"unexpected": ["x"]}


def test_out_of_order() -> None:
    account = Account()
    sent(account, "a-1", "a-2", "a-3", "b-4")
    for at, number, body in ((1.0, 1, "a-1"), (3.0, 2, "a-2"), (2.0, 3, "a-3"), (1.0, 4, "b-4")):
        account.delivered(body, came(at, offset=number))
        account.acked(body)
    assert faults(account) == {"out_of_order": ["a-3"]}


def test_one_that_came_by_a_retry_has_no_order() -> None:
    account = Account()
    sent(account, "a-1", "a-2")
    account.delivered("a-2", came(1.0, offset=2))
    account.delivered("a-1", came(2.0, 2))
    account.acked("a-1")
    account.acked("a-2")
    assert faults(account) == {}


def test_a_place_has_one_message_and_is_where_it_was_said() -> None:
    account = Account()
    sent(account, "a-1", "b-2", "c-3")
    account.delivered("a-1", came(1.0, offset=1))
    account.delivered("b-2", came(1.0, offset=1))
    account.delivered("c-3", came(1.0, offset=4))
    for body in ("a-1", "b-2", "c-3"):
        account.acked(body)
    assert sorted(set(faults(account)["elsewhere"])) == ["b-2", "c-3"]


def test_timers() -> None:
    account = Account()
    sent(account, "a-1", "a-2", "a-3", "a-4", due_ms=DUE_MS)
    account.delivered("a-1", came(1.0, at_ms=DUE_MS + 7))
    account.delivered("a-2", came(1.0, at_ms=DUE_MS - 1))
    account.delivered("a-3", came(1.0))
    account.ack_asked("a-3")
    account.delivered("a-3", came(2.0))
    for number in (1, 2, 3):
        account.acked(f"a-{number}")
    assert faults(account) == {"timers_early": ["a-2"], "timers_lost": ["a-4"], "timers_twice": ["a-3"]}
    assert account.late_ms() == [-1, 0, 7]


def test_words_name_what_was_found() -> None:
    verdict = Verdict(["a"], [], [], [], [], [], [], [], ["t"])
    assert verdict.explain() == "1 lost: ['a']; 1 timers_twice: ['t']"


def test_gaps() -> None:
    assert longest_gap([], 1.0, 4.0) == 3.0
    assert longest_gap([0.5, 1.5, 2.0, 5.0], 1.0, 4.0) == 2.0
    assert longest_gap([0.5, 3.5], 1.0, 4.0) == 3.0, "it began before the interval"
    assert longest_gap([0.0, 1.0, 2.0], 1.0, 2.0) == 1.0


def test_a_receipt_handle_reports_the_place() -> None:
    for origin, place in ((FROM_TOPIC, Place("t", "broker-0:3", 7)), (FROM_RETRY_TOPIC, None)):
        handle = HandleMaker(b"key", "g", "t", ReceiptHandle(1, 2, 3, 4, origin, "broker-0", 3, 7)).handle(7)
        assert place_of("t", handle) == place
    assert place_of("t", "another server's") is None
