"""Values that contradict each other are refused, all in one go, each by a sentence that says what to do."""

import pytest

from tests.harness.chart import RefusedError, RenderedChart, Values
from tests.unit.chart.test_schema import SET, nested


def _stream(**checkpoint: str) -> Values:
    return {"name": "a", "image": "i:1", "file": "f", "checkpoint": checkpoint}


REFUSED: list[tuple[Values, str]] = [
    ({"image": {"tag": "latest"}}, "image.tag is `latest`"),
    ({"proxy": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}}}, "(5) is above"),
    (
        {"proxy": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "say proxy.resources.requests.cpu",
    ),
    ({"proxy": {"service": {"nodePort": 30081}}}, "say proxy.service.type=NodePort"),
    (
        {"proxy": {"service": {"type": "NodePort", "loadBalancerIP": "10.0.0.1"}}},
        "need proxy.service.type=LoadBalancer",
    ),
    (
        {"proxy": {"tls": {"existingSecret": "a", "certManager": {"enabled": True, "issuerRef": {"name": "b"}}}}},
        "both name a certificate: choose one",
    ),
    ({"proxy": {"tls": {"certManager": {"enabled": True}}}}, "say proxy.tls.certManager.issuerRef.name"),
    (
        {
            "tls": {
                "internal": {
                    "enabled": True,
                    "existingSecret": "a",
                    "certManager": {"enabled": True, "issuerRef": {"name": "b"}},
                }
            }
        },
        "tls.internal.existingSecret and tls.internal.certManager.enabled both name a certificate: choose one",
    ),
    (
        {"tls": {"internal": {"enabled": True, "certManager": {"enabled": True}}}},
        "say tls.internal.certManager.issuerRef.name",
    ),
    ({"tls": {"internal": {"existingSecret": "a"}}}, "and tls.internal.enabled is false"),
    ({"tls": {"internal": {"mode": "accept"}}}, "and tls.internal.enabled is false"),
    ({"broker": {"groups": ["a", "b", "a"]}}, "broker.groups names a group twice: a, b, a"),
    ({"broker": {"groups": ["popwheel-controller"]}}, "is the name of the controllers' StatefulSet"),
    ({"broker": {"groups": ["popwheel-proxy"]}}, "popwheel-proxy is the name of the proxies' PodDisruptionBudget"),
    (
        {"broker": {"terminationGracePeriodSeconds": 24}},
        "up to 3000 ms (config.controller.replication.hand_over_ms) and then saves: it must be at least 25",
    ),
    (
        {
            "broker": {"terminationGracePeriodSeconds": 50},
            "config": {"controller": {"replication": {"hand_over_ms": 30_001}}},
        },
        "broker.terminationGracePeriodSeconds is 50; a master hands over for up to 30001 ms",
    ),
    ({"proxy": {"terminationGracePeriodSeconds": 9}}, "proxy.terminationGracePeriodSeconds is 9"),
    ({"proxy": {"service": {"loadBalancerClass": "x"}}}, "loadBalancerClass needs proxy.service.type=LoadBalancer"),
    ({"proxy": {"service": {"externalTrafficPolicy": "Local"}}}, "none come to a Service of type ClusterIP"),
    ({"broker": {"podDisruptionBudget": {"maxUnavailable": ""}}}, "broker.podDisruptionBudget is enabled and says"),
    ({"controller": {"overrides": {"Service": {"kind": "Pod"}}}}, "controller.overrides.Service.kind would make other"),
    (
        {"proxy": {"overrides": {"Deployment": {"metadata": {"name": "x"}}}}},
        "Deployment.metadata.name: the chart knows",
    ),
    (
        {
            "spark": {
                "applications": [{"name": "a", "image": "i:1", "file": "f"}, {"name": "a", "image": "i:1", "file": "f"}]
            }
        },
        "spark.applications names a twice",
    ),
    ({"spark": {"streams": [_stream(url="s3a://b/c"), _stream(url="s3a://b/d")]}}, "spark.streams names a twice"),
    ({"spark": {"streams": [_stream()]}}, "spark.streams a: say exactly one of checkpoint.url, size and existingClaim"),
    ({"spark": {"streams": [_stream(url="s3a://b/c", size="1Gi")]}}, "spark.streams a: say exactly one of"),
    (
        {"spark": {"streams": [{**_stream(size="1Gi"), "master": "k8s://https://kubernetes.default.svc"}]}},
        "executors do not see a volume of the driver's pod",
    ),
    (
        {"config": {"broker": {"replication": {"min_in_sync_replicas": 3}}}},
        "min_in_sync_replicas is 3, but a group has broker.replicas=2",
    ),
    (
        {"config": {"controller": {"replication": {"detection_ms": 1999}}}},
        "detection_ms is 1999; it must be at least 2000, which is four heartbeats of a replica",
    ),
    ({"config": {"controller": {"replication": {"lease_ms": 100}}}}, "lease_ms is 100"),
    ({"config": {"controller": {"cluster_name": "Orders_1"}}}, "cluster_name is Orders_1"),
    ({"config": {"controller": {"cluster_name": "o" * 64}}}, "63 at the most"),
    ({"redis": {"url": "redis://redis:6379/0", "existingSecret": "redis"}}, "each name a Redis: choose one"),
    ({"redis": {"own": {"enabled": True}}}, "redis.own.image must name an image"),
    ({"redis": {"own": {"enabled": True, "image": "valkey/valkey:latest"}}}, "redis.own.image must name an image"),
    ({"serviceAccount": {"create": False}}, "say in serviceAccount.name which one"),
    ({"access": {"checkSecret": "check"}}, "give access.usersSecret or access.tokensSecret, too"),
    ({"topics": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, "topics names a twice"),
    ({"consumerGroups": [{"name": "a"}, {"name": "a"}]}, "consumerGroups names a twice"),
    ({"topics": [{"name": "%DLQ%readers"}]}, "topics: %DLQ%readers is a name of the system's own"),
    ({"topics": [{"name": "rmq_sys_x"}]}, "topics: rmq_sys_x is a name of the system's own"),
    (
        {
            "topics": [{"name": "a"}, {"name": "b"}],
            "config": {"controller": {"resources": {"declared_max": 1}}},
        },
        "more than config.controller.resources.declared_max allows (1)",
    ),
]


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_a_contradiction_is_refused_with_a_sentence(values: Values, words: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart(values)
    (sentence,) = (line for line in str(refused.value).splitlines() if line.startswith("- "))
    assert words in sentence


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart({"image": {"tag": "latest"}, "access": {"checkSecret": "x"}, "broker": {"groups": ["a", "a"]}})
    assert len([line for line in str(refused.value).splitlines() if line.startswith("- ")]) == 3


@pytest.mark.parametrize("key", SET)
def test_what_the_chart_sets_is_refused_with_a_sentence(key: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart({"config": nested(key, "x")})
    assert f"- config.{key} is the chart's to set: {SET[key]}\n" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"config": {"broker": {"flsuh": "async"}}}, "'flsuh' not allowed"),
        ({"config": {"broker": {"flush": "never"}}}, "value must be one of 'sync', 'async'"),
        ({"config": {"broker": {"replication": {"min_in_sync_replicas": 0}}}}, "minimum: got 0, want 1"),
        ({"replicas": 3}, "'replicas' not allowed"),
        ({"broker": {"replicas": "3"}}, "got string, want integer"),
        ({"broker": {"persistence": None}}, "missing property 'persistence'"),
        ({"broker": {"persistence": {"size": "20 GB"}}}, "does not match pattern"),
        ({"broker": {"groups": ["Broker_A"]}}, "does not match pattern"),
        ({"topics": [{"name": "no name"}]}, "does not match pattern"),
        ({"topics": [{"type": "FIFO"}]}, "missing property 'name'"),
        ({"topics": [{"name": f"t{number}"} for number in range(1001)]}, "maxItems: got 1,001, want 1,000"),
        ({"topics": [{"name": "a", "queues": 2000}]}, "maximum: got 2,000, want 1,024"),
        ({"topics": [{"name": "a", "deletionPolicy": "Delete"}]}, "'deletionPolicy' not allowed"),
        ({"consumerGroups": [{"name": "a", "backoffMs": []}]}, "minItems: got 0, want 1"),
    ],
)
def test_values_that_nobody_knows_are_refused(values: Values, words: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart(values)
    assert words in str(refused.value)


MISSPELT: list[tuple[Values, str]] = [
    ({"resources": {"limit": {"memory": "1Gi"}}}, "limit"),
    ({"resources": {"requests": {"cpu": [1]}}}, "cpu"),
    ({"affinity": {"nodeAfinity": {}}}, "nodeAfinity"),
    ({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecutions": []}}}, "Executions"),
    (
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpression": []}]}
                }
            }
        },
        "matchExpression",
    ),
    ({"tolerations": [{"keys": "a", "operator": "Exists"}]}, "keys"),
    ({"tolerations": [{"key": "a", "tolerationSecond": 3}]}, "tolerationSecond"),
    ({"topologySpreadConstraints": [{"maxSkews": 1}]}, "maxSkews"),
    ({"podSecurityContext": {"runAsNonRot": True}}, "runAsNonRot"),
    ({"securityContext": {"capabilities": {"drops": ["ALL"]}}}, "drops"),
    ({"dnsConfig": {"nameserver": ["10.0.0.1"]}}, "nameserver"),
    ({"hostAliases": [{"ip": "10.0.0.1", "hostname": "a"}]}, "hostname"),
    ({"extraEnv": [{"name": "A", "vlaue": "b"}]}, "vlaue"),
    ({"envFrom": [{"secret": {"name": "a"}}]}, "secret"),
    ({"extraVolumes": [{"name": "a", "emptydir": {}}]}, "emptydir"),
    ({"extraVolumeMounts": [{"name": "a", "path": "/a"}]}, "path"),
    ({"initContainers": [{"name": "a", "imagee": "b:1"}]}, "imagee"),
    ({"sidecars": [{"name": "a", "ports": [{"port": 1}]}]}, "port"),
    ({"podDisruptionBudget": {"maxUnavailble": 1}}, "maxUnavailble"),
    ({"podDisruptionBudget": {"maxUnavailable": "1/4"}}, "pattern"),
    ({"overrides": {"Deploymnet": {}}}, "Deploymnet"),
]
"""A key that nobody knows, or another kind of value, within what Kubernetes defines."""


@pytest.mark.parametrize("service", ["proxy", "broker", "controller"])
@pytest.mark.parametrize(("values", "word"), MISSPELT, ids=[word for _, word in MISSPELT])
def test_a_misspelt_key_of_kubernetes_own_is_refused_by_its_name(service: str, values: Values, word: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart({service: values})
    assert word in str(refused.value)
    assert service in str(refused.value)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"networkPolicy": {"clientsFrom": [{"podselector": {}}]}}, "podselector"),
        ({"redis": {"own": {"resources": {"limt": {}}}}}, "limt"),
        ({"redis": {"own": {"tolerations": [{"kee": "a"}]}}}, "kee"),
        ({"image": {"pullSecrets": [{"secretName": "a"}]}}, "secretName"),
        ({"proxy": {"service": {"externalTrafficPolicy": "local"}}}, "externalTrafficPolicy"),
        ({"proxy": {"service": {"trafficDistribution": "Near"}}}, "trafficDistribution"),
        ({"broker": {"persistence": {"annotation": {}}}}, "annotation"),
    ],
)
def test_so_it_is_elsewhere(values: Values, word: str) -> None:
    with pytest.raises(RefusedError) as refused:
        RenderedChart(values)
    assert word in str(refused.value)
