"""Kubernetes' rules for NetworkPolicies, so that those of the chart are tried where no network plug-in knows them.

What they say of TCP between pods is here, no more: peers by addresses and ranges of ports are refused. Probes come from
the node, which a policy never holds up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.harness.chart import NAMESPACE, Object


@dataclass(frozen=True, slots=True)
class Pod:
    """One end of a connection.

    Args:
        labels: of the pod.
        ports: numbers of the container's ports, by name.
        namespace: in which it is; its label is the one that Kubernetes gives to each.
    """

    labels: Mapping[str, str]
    ports: Mapping[str, int] = field(default_factory=dict)
    namespace: str = NAMESPACE


def may_connect(policies: Sequence[Object], source: Pod, target: Pod, port: int) -> bool:
    """Whether a pod may connect to a port of another one: both its own policies and the other one's let it."""
    return _lets(policies, "Ingress", target, source, target.ports, port) and _lets(
        policies, "Egress", source, target, target.ports, port
    )


def _lets(
    policies: Sequence[Object], direction: str, pod: Pod, other: Pod, named: Mapping[str, int], port: int
) -> bool:
    """Whether a pod's policies let it in or out: what none of them names is closed, once there is one."""
    applying = [
        policy["spec"]
        for policy in policies
        if policy["metadata"].get("namespace", NAMESPACE) == pod.namespace
        and _selects(policy["spec"]["podSelector"], pod.labels)
        and direction
        in policy["spec"].get("policyTypes", ["Ingress", *(["Egress"] if "egress" in policy["spec"] else [])])
    ]
    rules = [rule for spec in applying for rule in spec.get(direction.lower()) or ()]
    whom = "from" if direction == "Ingress" else "to"
    return not applying or any(
        _names_port(rule.get("ports") or (), named, port) and _names_peer(rule.get(whom) or (), other, pod.namespace)
        for rule in rules
    )


def _names_port(ports: Sequence[Object], named: Mapping[str, int], port: int) -> bool:
    if any(each.keys() - {"port", "protocol"} for each in ports):
        raise NotImplementedError(f"a range of ports: {ports}")
    numbers = [
        each["port"] if isinstance(each["port"], int) else named.get(each["port"])
        for each in ports
        if each.get("protocol", "TCP") == "TCP"
    ]
    return not ports or port in numbers


def _names_peer(peers: Sequence[Object], other: Pod, namespace: str) -> bool:
    return not peers or any(_is_peer(peer, other, namespace) for peer in peers)


def _is_peer(peer: Object, other: Pod, namespace: str) -> bool:
    if "ipBlock" in peer:
        raise NotImplementedError(f"a peer by its address: {peer}")
    if "namespaceSelector" in peer:
        there = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        there = other.namespace == namespace
    return there and _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector means what bears these labels; an empty one means all."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        _holds(each["operator"], labels.get(each["key"]), each.get("values", []))
        for each in selector.get("matchExpressions", [])
    )


def _holds(operator: str, value: str | None, values: Sequence[str]) -> bool:
    if operator in ("In", "NotIn"):
        return (value in values) == (operator == "In")
    return (value is not None) == (operator == "Exists")
