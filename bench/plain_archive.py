"""Archive without Spark: pulls each queue of a topic by gRPC and writes its messages as Parquet.

`python -m bench.plain_archive ADDRESS TOPIC FILE` prints its figures as JSON. It leaves out all that makes such a
script safe: other proxies, second tries, what retention takes.
"""

import json
import sys
import time
from collections.abc import Iterator

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
from grpc.experimental import ChannelOptions

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service

_SERVICE = "/apache.rocketmq.v2.MessagingService/"
_METADATA = (
    ("x-mq-client-id", "bench-plain"),
    ("x-mq-client-version", "5.1.2"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-protocol", "v2"),
)
_ROWS = 10_000
_PULL = 32
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("bornTimestamp", pa.timestamp("us", "UTC")),
        ("storeTimestamp", pa.timestamp("us", "UTC")),
        ("messageId", pa.string()),
    ]
)


def messages_of(channel: grpc.Channel, queue: definition.MessageQueue) -> Iterator[definition.Message]:
    """Return all messages of a queue."""
    pull = channel.unary_stream(
        f"{_SERVICE}PullMessage",
        request_serializer=service.PullMessageRequest.SerializeToString,
        response_deserializer=service.PullMessageResponse.FromString,
    )
    offset = 0
    group = definition.Resource(name="bench-plain")
    while True:
        request = service.PullMessageRequest(group=group, message_queue=queue, offset=offset, batch_size=_PULL)
        found = False
        for part in pull(request, metadata=_METADATA, timeout=30):
            content = part.WhichOneof("content")
            if content == "message":
                found = True
                yield part.message
            elif content == "next_offset":
                offset = part.next_offset
        if not found:
            return


def row(queue: definition.MessageQueue, message: definition.Message) -> tuple[object, ...]:
    """A message in the order of the columns."""
    properties = message.system_properties
    return (
        message.topic.name,
        properties.tag or None,
        list(properties.keys),
        message.body,
        list(message.user_properties.items()),
        queue.broker.name,
        queue.id,
        properties.queue_offset,
        properties.born_timestamp.ToMicroseconds(),
        properties.store_timestamp.ToMicroseconds(),
        properties.message_id,
    )


def main(address: str, topic: str, file: str) -> None:
    """Archive a topic."""
    # The quicker of the two ways in which grpcio reads streams.
    options = [(ChannelOptions.SingleThreadedUnaryStream, 1), ("grpc.max_receive_message_length", 64 * 2**20)]
    with grpc.insecure_channel(address, options) as channel:
        route = channel.unary_unary(
            f"{_SERVICE}QueryRoute",
            request_serializer=service.QueryRouteRequest.SerializeToString,
            response_deserializer=service.QueryRouteResponse.FromString,
        )
        queues = route(service.QueryRouteRequest(topic=definition.Resource(name=topic)), metadata=_METADATA)
        began = time.perf_counter()
        count = 0
        with pq.ParquetWriter(file, _SCHEMA) as writer:
            for queue in queues.message_queues:
                rows: list[tuple[object, ...]] = []
                for message in messages_of(channel, queue):
                    rows.append(row(queue, message))
                    if len(rows) == _ROWS:
                        count += _write(writer, rows)
                count += _write(writer, rows)
        took_s = time.perf_counter() - began
    print(json.dumps({"rows": float(count), "archived_per_s": count / took_s}))


def _write(writer: pq.ParquetWriter, rows: list[tuple[object, ...]]) -> int:
    """Write rows, and empty their list; how many they were."""
    count = len(rows)
    if rows:
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        rows.clear()
    return count


if __name__ == "__main__":
    main(*sys.argv[1:])
