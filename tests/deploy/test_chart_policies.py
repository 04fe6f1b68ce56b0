"""Who reaches which port of a release, by its network policies."""

from __future__ import annotations

from typing import Any

from tests.deploy.conftest import Render, one, select
from tests.deploy.matrix import EVERYTHING, MATRIX


def _open_to(policy: dict[str, Any]) -> dict[int, set[str]]:
    """Who reaches each port: components of the release, or `all`, or `others` that the values name."""
    found: dict[int, set[str]] = {}
    for rule in policy["spec"]["ingress"]:
        peers = {
            peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component", "others")
            for peer in rule.get("from", [])
        }
        for port in rule["ports"]:
            found[port["port"]] = peers or {"all"}
    return found


def test_what_is_between_the_releases_pods_is_closed_by_default(render: Render) -> None:
    """etcd and the brokers' internal port to its services alone; all else stays open until clients are named."""
    objects = render()
    policies = {each["metadata"]["name"]: _open_to(each) for each in select(objects, "NetworkPolicy")}
    services, all_ = {"broker", "coordinator"}, {"all"}
    assert policies == {
        "demo-headrace-broker": {7181: all_, 7183: all_, 7381: services, 7383: services, 9464: all_},
        "demo-headrace-etcd": {2379: services | {"etcd", "etcd-auth"}, 2380: {"etcd"}, 2381: all_},
    }
    for component in ("broker", "etcd"):
        (container,) = one(objects, "StatefulSet", f"-{component}")["spec"]["template"]["spec"]["containers"]
        declared = {port["containerPort"] for port in container["ports"]}
        assert set(policies[f"demo-headrace-{component}"]) == declared
    closed = render(MATRIX["everything"])
    closing = [each for each in select(closed, "NetworkPolicy") if "Ingress" in each["spec"]["policyTypes"]]
    named = {each["metadata"]["name"].rpartition("-")[2]: _open_to(each) for each in closing}
    assert named == {
        "broker": {7181: {"others"}, 7183: {"others"}, 7381: services, 7383: services, 9464: {"others"}},
        "coordinator": {7170: {"others"}, 8081: {"others"}, 9464: {"others"}},
        "etcd": {2379: services | {"etcd", "etcd-auth"}, 2380: {"etcd"}, 2381: {"others"}},
        "mirror": {9464: {"others"}},
    }
    assert not select(render(MATRIX["no policies"]), "NetworkPolicy")
    alone = {
        each["metadata"]["name"]: _open_to(each)
        for each in select(render(MATRIX["policies for clients alone"]), "NetworkPolicy")
    }
    assert set(alone) == {"demo-headrace-broker", "demo-headrace-coordinator"}
    assert alone["demo-headrace-broker"][7381] == all_
    assert not select(render(MATRIX["etcd elsewhere"]), "NetworkPolicy", "-etcd")
    (own, metrics) = (alone["demo-headrace-broker"][port] for port in (7181, 9464))
    assert own == metrics == {"others"}, "enabled without peers must close the ports to all but the release"
    backups = one(render(MATRIX["backups"]), "NetworkPolicy", "-etcd")
    assert _open_to(backups)[2379] == services | {"etcd", "etcd-auth", "backup"}
    assert _open_to(one(render(MATRIX["open"]), "NetworkPolicy", "-etcd"))[2379] == services | {"etcd"}


def test_mirror_workers_reach_their_sources_and_the_release_alone(render: Render) -> None:
    """Where the sources' addresses are given; without them, what leaves a worker is not restricted."""
    policy = one(render(MATRIX["everything"]), "NetworkPolicy", "-mirror")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    dns, own, source = policy["egress"]
    assert ({port["port"] for port in dns["ports"]}, "to" in dns) == ({53}, False)
    assert [port["port"] for port in own["ports"]] == [7170, 7181, 7183]
    assert {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in own["to"]} == {
        "broker",
        "coordinator",
    }
    assert source == EVERYTHING["mirror"]["sourceEgress"][0]
    closed = one(render(MATRIX["mirrors, certificates of clients"]), "NetworkPolicy", "-mirror")["spec"]
    assert (closed["policyTypes"], "egress" in closed) == (["Ingress"], False)
    assert not select(render(MATRIX["mirrors"]), "NetworkPolicy", "-mirror")


def test_pods_of_hooks_are_among_those_who_may_come(render: Render) -> None:
    """Where clients are named, the release's own jobs and tests are clients, too."""
    objects = render(MATRIX["everything"])
    for name in ("-broker", "-coordinator"):
        (rule, *_) = one(objects, "NetworkPolicy", name)["spec"]["ingress"]
        labels = rule["from"][-1]["podSelector"]["matchLabels"]
        for pod in (one(objects, "Job", "-topics")["spec"]["template"], one(objects, "Pod", "-test")):
            assert labels.items() <= pod["metadata"]["labels"].items()
