"""QueryRoute and QueryAssignment: the queues of a topic, in the form that the official clients expect."""

from collections.abc import Callable, Sequence
from ipaddress import ip_address

from popwheel_common.contract.names import Kind, Use, kind_of
from popwheel_common.contract.priority import levels_of
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    Permission,
    Resource,
)
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType
from popwheel_proxy.brokers.brokers import Brokers
from popwheel_proxy.options import ProxyOptions
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.statuses import OK
from popwheel_proxy.protocol.turns import PIECE, Turns, pieces
from popwheel_proxy.protocol.validation import ACCEPTED_TYPES
from popwheel_proxy.session.catalog import Catalog
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_rpc.service import Call

_ANY_QUEUE = -1
_ADDRESSES_MAX = 64
_HOST_LENGTH_MAX = 255


class Routes:
    """Routes and assignments of topics.

    Args:
        catalog: topics and groups.
        brokers: the brokers there are.
        options: the advertised address.
        turns: for long answers.
    """

    def __init__(self, catalog: Catalog, brokers: Brokers, options: ProxyOptions, turns: Turns) -> None:
        self._turns = turns
        self._catalog = catalog
        self._brokers = brokers
        self._options = options

    async def query_route(self, call: Call, request: QueryRouteRequest) -> QueryRouteResponse:
        """Return all queues of a topic; create it on first use, as clients query the route before they send."""
        _check_endpoints(request.endpoints)
        topic = await self._catalog.ensure_topic(topic_name(request.topic, Use.QUERY))
        endpoints = advertised_endpoints(self._options, request.endpoints)
        response = QueryRouteResponse(status=OK)

        def add(broker: str, queue: int) -> None:
            response.message_queues.append(_queue(request.topic, topic, broker, queue, endpoints))

        await self._add_queues(range(topic.queues), add)
        return response

    async def query_assignment(self, call: Call, request: QueryAssignmentRequest) -> QueryAssignmentResponse:
        """Return the queues that a push consumer polls.

        That is each broker as a whole, or for an ordered group each queue that is no priority level.
        """
        _check_endpoints(request.endpoints)
        asker = group_name(request.group)
        self._catalog.check_group(asker)  # first, as no topic may be created for a refused request (E1)
        topic = await self._catalog.ensure_topic(topic_name(request.topic, Use.RECEIVE))
        group = await self._catalog.ensure_group(asker)
        endpoints = advertised_endpoints(self._options, request.endpoints)
        # Of levels each poll takes what is highest of all.
        is_by_queue = group.fifo and topic.type != TopicType.LITE and not levels_of(topic)
        response = QueryAssignmentResponse(status=OK)

        def add(broker: str, queue: int) -> None:
            assigned = _queue(request.topic, topic, broker, queue, endpoints)
            response.assignments.append(Assignment(message_queue=assigned))

        await self._add_queues(range(topic.queues) if is_by_queue else (_ANY_QUEUE,), add)
        return response

    async def _add_queues(self, queues: Sequence[int], add: Callable[[str, int], None]) -> None:
        """Call `add` with each broker and each of its queues; many queues take several turns of the loop."""
        names = self._names()
        if len(names) * len(queues) <= PIECE:
            for name in names:
                for queue in queues:
                    add(name, queue)
            return
        for name in names:
            for some in pieces(queues):
                async with self._turns.one():
                    for queue in some:
                        add(name, queue)

    def _names(self) -> tuple[str, ...]:
        names = self._brokers.names
        if not names:
            raise StatusError(Code.HA_NOT_AVAILABLE, "no broker is there now; try again in a moment")
        return names


def _check_endpoints(asked: Endpoints) -> None:
    """Refuse impossibly many or long addresses, as they are repeated for every queue of the answer (M1).

    Raises:
        StatusError: BAD_REQUEST.
    """
    if len(asked.addresses) > _ADDRESSES_MAX or any(len(one.host) > _HOST_LENGTH_MAX for one in asked.addresses):
        raise LimitError(
            Code.BAD_REQUEST,
            f"the endpoints hold more than {_ADDRESSES_MAX} addresses, or a host of more than {_HOST_LENGTH_MAX} "
            "characters",
            "endpoints_max",
        )


def advertised_endpoints(options: ProxyOptions, asked: Endpoints) -> Endpoints:
    """Return the endpoints for clients: the advertised address, or the one they asked with.

    Args:
        options: `advertised_address`.
        asked: the endpoints that the client used; may be empty.
    """
    advertised = options.advertised
    if advertised.host:
        addresses = [Address(host=advertised.host, port=advertised.port or options.grpc_port)]
    elif asked.addresses and asked.addresses[0].host:
        addresses = [Address(host=address.host, port=advertised.port or address.port) for address in asked.addresses]
    else:
        addresses = [Address(host=options.grpc_host, port=advertised.port or options.grpc_port)]
    scheme = address_scheme(addresses[0].host)
    if scheme == AddressScheme.DOMAIN_NAME:
        del addresses[1:]  # clients refuse several names
    return Endpoints(scheme=scheme, addresses=addresses)


def address_scheme(host: str) -> AddressScheme.ValueType:
    """Return whether a host is an IPv4 or IPv6 address, or a name; clients rely on it."""
    try:
        version = ip_address(host.strip("[]")).version
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv4 if version == 4 else AddressScheme.IPv6


def _queue(asked: Resource, topic: Topic, broker: str, queue: int, endpoints: Endpoints) -> MessageQueue:
    return MessageQueue(
        topic=asked,
        id=queue,
        permission=Permission.READ_WRITE if kind_of(topic.name) is Kind.USER else Permission.READ,
        broker=Broker(name=broker, id=0, endpoints=endpoints),
        accept_message_types=ACCEPTED_TYPES.get(topic.type, ()),
    )
