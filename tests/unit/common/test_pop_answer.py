"""What a pop brings comes through a socket as it is."""

from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.pop_answer import PopAnswer, decode_pop_answer, encode_pop_answer


@given(
    columns=st.lists(st.tuples(st.binary(max_size=20), st.text(alphabet="0123456789 abc", max_size=20)), max_size=4),
    waiting=st.integers(0, 2**40),
)
def test_an_answer_comes_through_as_it_is(columns: list[tuple[bytes, str]], waiting: int) -> None:
    answer = PopAnswer([message for message, _ in columns], [handle for _, handle in columns], waiting)
    assert decode_pop_answer(encode_pop_answer(answer)) == answer
