"""The bytes of a block of records, and the heads in it."""

import numpy as np
import pytest

from popwheel_broker.log.record import HEADER, HEADER_BYTES
from popwheel_common.contract.record_block import HEAD, NOTHING, decode_block, encode_block, joined
from popwheel_common.pb.popwheel.v1.proxy_pb2 import PullRecordsResponse

HEADS = [HEADER.pack(*(number + field for field in range(17))) for number in (1, 100)]


def test_heads_are_what_the_log_writes() -> None:
    assert HEAD.itemsize == HEADER_BYTES
    block = decode_block(encode_block(7, np.array([60, 64]), [HEADS[0] + HEADS[1], b"tail"]))
    assert [tuple(head) for head in block.heads().tolist()] == [HEADER.unpack(each) for each in HEADS]
    assert block.part(1, 2).heads()["length"].tolist() == [100]
    assert block.next_offset == 7


def test_blocks_as_one() -> None:
    blocks = [decode_block(encode_block(7 + place, np.array([60]), [head])) for place, head in enumerate(HEADS)]
    both = joined([blocks[0], blocks[1].part(0, 0), blocks[1]])
    assert [tuple(head) for head in both.heads().tolist()] == [HEADER.unpack(each) for each in HEADS]
    assert (both.next_offset, both.lengths.tolist()) == (8, [60, 60])


@pytest.mark.parametrize("next_offset", [0, 2**40])
@pytest.mark.parametrize("count", [0, 2])
def test_the_bytes_are_those_of_protobuf(next_offset: int, count: int) -> None:
    lengths = np.full(count, 60) if count else NOTHING
    data = encode_block(next_offset, lengths, HEADS[:count])
    answer = PullRecordsResponse(next_offset=next_offset, lengths=[60] * count, records=b"".join(HEADS[:count]))
    assert PullRecordsResponse.FromString(data) == answer
    block = decode_block(answer.SerializeToString())
    assert (block.next_offset, block.lengths.tolist()) == (next_offset, [60] * count)


@pytest.mark.parametrize(
    "answer",
    [
        PullRecordsResponse(lengths=[60], records=bytes(61)),
        PullRecordsResponse(lengths=[60, 61], records=bytes(60)),
        PullRecordsResponse(lengths=[59], records=bytes(59)),
        PullRecordsResponse(records=bytes(60)),
    ],
)
def test_lengths_that_do_not_fit_are_an_error(answer: PullRecordsResponse) -> None:
    with pytest.raises(ValueError, match="not as long as it says"):
        decode_block(answer.SerializeToString())
