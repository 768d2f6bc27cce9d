"""A broker with lite topics, for tests: messages are named by the letter of their lite topic and a number."""

from popwheel_broker.core.notification import Interest, Subscriber
from popwheel_broker.lite.readers import ClientKey
from popwheel_broker.options import BrokerOptions
from popwheel_common.contract.put import MessageRun
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from tests.unit.broker.world import INVISIBLE_MS, OPTIONS, World, handles, wire_message

PARENT = "Sessions"
DAY_MS = 24 * 3_600_000


def lite_world(options: BrokerOptions = OPTIONS, expiration_ms: int = 0, max_attempts: int = 3) -> World:
    world = World(0, options)
    world.add_group("g", max_attempts)
    make_parent(world, expiration_ms)
    return world


def make_parent(world: World, expiration_ms: int = 0) -> None:
    topic = Topic(name=PARENT, queues=1, id=world.view.version + 1, type=TopicType.LITE)
    topic.lite_expiration_ms = expiration_ms
    world._apply(topics=[topic])


def send(world: World, *messages: str) -> None:
    """Store messages such as `a1`, the first of lite topic `a`, and make them readable."""
    put(world, *messages)
    world.flush()


def put(world: World, *messages: str) -> None:
    """Append messages, which nobody can read yet."""
    for each in messages:
        payload, properties = wire_message(PARENT, each.encode())
        world.core.store.put_runs([MessageRun(PARENT, 0, [payload], [properties], [""], lite_topic=each[0])])


def read(world: World, lite_topics: str, client: str = "c", group: str = "g") -> None:
    """A client reads lite topics of one letter each, and no others."""
    lite = world.core.lite
    found, new = lite.subscriptions.begin(ClientKey(group, PARENT, client), lite_topics, world.clock.steady_ms())
    lite.record_waiting(found, new)


def pop(world: World, client: str = "c", count: int = 32, group: str = "g") -> list[Message]:
    request = pb.PopRequest(
        group=group,
        topic=PARENT,
        queue_id=-1,
        max_messages=count,
        invisible_ms=INVISIBLE_MS,
        client_id=client,
        lite=True,
    )
    answer = world.core.lite.pops.pop(request, world.clock.steady_ms())
    assert not answer.is_unknown_client
    return [Message.FromString(each) for each in answer.messages]


def names_of(messages: list[Message]) -> list[str]:
    return [each.body.decode() for each in messages]


def ack(world: World, *messages: Message) -> None:
    for each in messages:
        assert set(world.ack("g", PARENT, *handles([each]))) == {Code.OK}
    world.flush()


def lapse(world: World) -> None:
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()


def take_all(world: World) -> list[str]:
    found: list[str] = []
    while messages := pop(world):
        found += names_of(messages)
        ack(world, *messages)
    return found


def step(world: World) -> None:
    """Look at all lite topics, as a broker does now and then."""
    while not world.core.lite.step(world.clock.wall_ms()):
        pass
    while not world.core.lite.step(world.clock.wall_ms()):
        pass
    world.flush()


def state_of(world: World) -> object:
    """All that the log says of lite topics and of what is delivered."""
    core = world.core
    return (
        sorted((queue.topic, queue.queue_id, queue.begin_offset, queue.max_offset) for queue in core.store.queues),
        sorted(core.state.table.message_group_queues.members()),
        sorted(
            (each.id, each.attempts, each.is_suspended) for group in "gh" for each in core.state.table.of_group(group)
        ),
        sorted(
            (group, q.topic, core.state.merge_buffer.of(group, q).popped)
            for group in ("g", "h")
            for q in core.store.queues
        ),
    )


class Reported:
    """A proxy that waits for clients, and what it is notified of."""

    def __init__(self, world: World, *clients: str) -> None:
        self.subscriber = Subscriber(lambda: None)
        world.core.interests.subscribers[self.subscriber] = None
        for number, client in enumerate(clients):
            world.core.interests.add(Interest(number, self.subscriber, PARENT, "g", None, client))

    def take(self) -> dict[int, int]:
        return dict(self.subscriber.take()[0])
