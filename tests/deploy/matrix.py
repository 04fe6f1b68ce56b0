"""The values that the chart is checked with: defaults, everything on, and what lies between."""

from __future__ import annotations

from typing import Any

import yaml

from tests.deploy.conftest import CHART

EVERYTHING: dict[str, Any] = {
    "fullnameOverride": "a-name-of-thirty-one-characters",
    "cluster": "orders",
    "insecure": True,
    "tracing": {
        "endpoint": "https://collector.observability:4318",
        "egress": {"enabled": True, "to": [{"namespaceSelector": {}}]},
    },
    "commonLabels": {"team": "data"},
    "commonAnnotations": {"example.org/owner": "data"},
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
    "broker": {
        "replicas": 5,
        "settings": {"stop_timeout_ms": 30_000, "max_fetch_bytes": 8 << 20, "phi_threshold": 6.5},
        "persistence": {"size": "1Ti", "storageClassName": "fast", "annotations": {"backup": "no"}},
        "dataCenter": {"fromNodeLabel": "topology.kubernetes.io/region"},
        "rack": {"fromNodeLabel": "topology.kubernetes.io/zone"},
        "external": {
            "enabled": True,
            "addressTemplate": "broker-{id}.example.org:7181",
            "annotations": {"external-dns.alpha.kubernetes.io/hostname": "broker-{id}.example.org"},
            "annotationsByBroker": [{"example.org/address": f"192.0.2.{number}"} for number in range(5)],
            "labels": {"example.org/broker": "b{id}"},
            "loadBalancerClass": "example.org/lb",
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
        },
        "podAntiAffinity": "hard",
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"key": "log", "operator": "Exists"}],
        "priorityClassName": "high",
        "podLabels": {"tier": "log"},
        "podAnnotations": {"example.org/seen": "yes"},
        "extraEnv": [{"name": "GRPC_VERBOSITY", "value": "ERROR"}],
        "extraVolumes": [{"name": "more", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        "podTemplate": {"spec": {"dnsPolicy": "ClusterFirst"}},
    },
    "coordinator": {
        "settings": {"default_partitions": 6, "default_replication_factor": 3},
        "advertisedAddress": "headrace.example.org:7170",
        "service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/24"]},
        "autoscaling": {"enabled": True},
    },
    "networkPolicy": {
        "enabled": True,
        "clientsFrom": [{"namespaceSelector": {"matchLabels": {"uses": "headrace"}}}],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "topics": [
        {"name": "orders", "partitions": 12, "replicationFactor": 3, "config": {"min_insync_replicas": 2}},
        {"name": "plain"},
    ],
    "mirror": {
        "enabled": True,
        "replicas": 3,
        "names": ["west"],
        "apiKeySecretName": "mirror-key",
        "sources": [{"name": "west", "secretName": "west-credentials"}],
        "sourceEgress": [{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"port": 7181}]}],
        "extraArgs": ["--timeout=30"],
        "podAntiAffinity": "hard",
        "priorityClassName": "high",
        "podAnnotations": {"example.org/seen": "yes"},
        "extraEnv": [{"name": "GRPC_VERBOSITY", "value": "ERROR"}],
    },
    "monitoring": {
        "serviceMonitor": {"enabled": True, "detail": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}, "alertLabels": {"team": "data"}},
        "dashboards": {"enabled": True, "namespace": "monitoring", "annotations": {"folder": "headrace"}},
    },
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "more-{{ .Release.Name | trunc 20 }}"},
            "data": {"a": "b"},
        }
    ],
}

NODE_PORTS = {
    "enabled": True,
    "type": "NodePort",
    "addressTemplate": "{nodeIP}:{nodePort}",
    "nodePorts": [30181, 30182, 30183],
}

CERT_MANAGER: dict[str, Any] = {
    "enabled": True,
    "clientAuth": "required",
    "certManager": {"enabled": True, "issuerRef": {"name": "ca", "kind": "Issuer"}},
}

# What a release needs to go out where a namespace lets no pod go out by itself: docs/guides/installing.md.
RELEASE = {"app.kubernetes.io/instance": "{{ .Release.Name }}"}
EGRESS: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "{{ .Release.Name | trunc 40 }}-egress"},
    "spec": {
        "podSelector": {"matchLabels": RELEASE},
        "policyTypes": ["Egress"],
        "egress": [
            {"to": [{"podSelector": {"matchLabels": RELEASE}}]},
            {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
        ],
    },
}

OPEN: dict[str, Any] = {
    "identity": {"posture": "open"},
    "tls": {"enabled": False},
    "etcd": {"auth": {"enabled": False}},
}
"""What a release before the closed defaults had, and what an upgrade of it keeps."""

OPEN_BROKERS: dict[str, Any] = {"external": {"enabled": True, "addressTemplate": "broker-{id}.example.org:7181"}}

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "open": OPEN,
    "users of etcd alone": {"identity": {"posture": "open"}, "tls": {"enabled": False}},
    "TLS of the chart, outside": {
        "broker": OPEN_BROKERS,
        "coordinator": {"service": {"type": "LoadBalancer"}, "advertisedAddress": "192.0.2.10:7170"},
        "monitoring": {"serviceMonitor": {"enabled": True, "detail": True}},
        "backup": {"enabled": True, "claimName": "snapshots"},
    },
    "TLS by cert-manager alone": {"tls": {"certManager": {"enabled": True}}},
    "etcd elsewhere, with a user": {
        "cluster": "orders",
        "etcd": {
            "endpoints": ["etcd.db:2379"],
            "bundled": {"enabled": False},
            "auth": {"user": "log", "secretName": "log-etcd-user"},
        },
    },
    "everything": EVERYTHING,
    "small": yaml.safe_load((CHART.parent / "small.yaml").read_text("utf-8")),
    "one of each": {"broker": {"replicas": 1}, "coordinator": {"replicas": 1}},
    "etcd elsewhere": {
        "cluster": "orders",
        "etcd": {"endpoints": ["etcd-0.db:2379", "[2001:db8::1]:2379"], "bundled": {"enabled": False}},
    },
    "TLS by a secret": {
        "cluster": "orders",
        "tls": {
            "enabled": True,
            "secretName": "log-tls",
            "clientAuth": "required",
            "internalSecretName": "log-internal-tls",
            "internalAllowedNames": ["log-headrace"],
        },
        "etcd": {
            "endpoints": ["etcd.db:2379"],
            "bundled": {"enabled": False},
            "tls": {"secretName": "etcd-tls", "clientCertificate": True},
        },
        "topics": [{"name": "plain"}],
    },
    "identities required": {
        "identity": {"posture": "required"},
        "tls": {"enabled": False},
        "topics": [{"name": "plain"}],
    },
    "identities required, TLS": {
        "identity": {"posture": "required", "adminSecretName": "log-admin", "monitorSecretName": "log-monitor"},
        "tls": {"enabled": True, "secretName": "log-tls"},
        "etcd": {"auth": {"secretName": "log-etcd"}, "bundled": {"tls": True}},
        "broker": OPEN_BROKERS,
        "coordinator": {"service": {"type": "LoadBalancer"}, "advertisedAddress": "log.example.org:7170"},
        "topics": [{"name": "plain"}],
    },
    "quotas and tokens of service accounts": {
        "identity": {
            "kubernetesIssuer": "https://kubernetes.default.svc.cluster.local",
            "quotas": [{"user": "*", "produceBytes": "10MB", "changes": 60}],
        },
    },
    "identities observed": {**OPEN, "identity": {"posture": "observe"}, "topics": [{"name": "plain"}]},
    "identities optional": {
        **OPEN,
        "identity": {"posture": "open", "adminSecretName": "log-admin"},
        "topics": [{"name": "plain"}],
    },
    "identities in plain text": {
        "identity": {"posture": "required", "adminSecretName": "log-admin"},
        "tls": {"enabled": False},
        "insecure": True,
        "broker": OPEN_BROKERS,
    },
    "TLS by a secret alone": {"tls": {"enabled": True, "secretName": "log-tls", "clientAuth": "required"}},
    "TLS by cert-manager": {
        "tls": {
            "enabled": True,
            "certManager": {
                "enabled": True,
                "issuerRef": {"name": "ca", "kind": "Issuer"},
                "dnsNames": ["x.example.org"],
            },
        },
        "coordinator": {"advertisedAddress": "log.example.org:7170"},
    },
    "TLS by cert-manager, outside": {
        "tls": CERT_MANAGER,
        "broker": {"external": {"enabled": True, "addressTemplate": "broker-{id}.example.org:7181"}},
        "coordinator": {"advertisedAddress": "192.0.2.10:7170"},
    },
    "TLS by cert-manager, listed": {
        "tls": CERT_MANAGER,
        "broker": {"external": {"enabled": True, "addresses": ["a.example.org:1", "192.0.2.1:2", "[2001:db8::1]:3"]}},
    },
    "TLS by cert-manager, node ports": {
        "tls": {**CERT_MANAGER, "certManager": {**CERT_MANAGER["certManager"], "ipAddresses": ["192.0.2.5"]}},
        "broker": {"external": NODE_PORTS},
    },
    "node ports": {
        **OPEN,
        "insecure": True,
        "broker": {"external": NODE_PORTS, "native": {"nodePorts": [30281, 30282, 30283]}},
    },
    "node ports, gRPC alone": {**OPEN, "insecure": True, "broker": {"external": NODE_PORTS}},
    "one host for all": {
        "insecure": True,
        "broker": {"external": {"enabled": True, "addressTemplate": "log.example.org:900{id}"}},
    },
    "gRPC alone": {"broker": {"native": {"enabled": False}}, "networkPolicy": {"enabled": True}},
    "backups": {"backup": {"enabled": True, "claimName": "snapshots", "keep": 3}},
    "recovery": {
        "recovery": {"name": "nov22"},
        "backup": {"enabled": True, "claimName": "snapshots"},
        "topics": [{"name": "plain"}],
        "broker": {"rack": {"fromNodeLabel": "topology.kubernetes.io/zone"}},
        "tls": {"enabled": True, "secretName": "log-tls"},
    },
    "no policies": {"networkPolicy": {"internal": False}},
    "policies for clients alone": {"networkPolicy": {"internal": False, "enabled": True}},
    "restricted egress": {"extraObjects": [EGRESS]},
    "tracing, restricted egress": {
        "extraObjects": [EGRESS],
        "tracing": {"endpoint": "http://collector", "egress": {"enabled": True}},
    },
    "listed addresses": {
        "insecure": True,
        "broker": {"external": {"enabled": True, "addresses": ["a.example.org:1", "b.example.org:2", "192.0.2.1:3"]}},
    },
    "switched off": {
        "insecure": True,
        "broker": {"drain": {"enabled": False}, "podAntiAffinity": "none"},
        "serviceAccount": {"create": False},
        "scaleDownGuard": {"enabled": False},
        "coordinator": {"podAntiAffinity": "none", "service": {"type": "NodePort", "nodePort": 30170}},
    },
    "mirrors": {"mirror": {"enabled": True, "apiKeySecretName": "mirror-key"}},
    "mirrors, open": {
        **OPEN,
        "mirror": {"enabled": True, "replicas": 1},
        "logs": {"format": "console", "level": "debug"},
    },
    "mirrors, keys in plain text": {
        "tls": {"enabled": False},
        "mirror": {"enabled": True, "apiKeySecretName": "mirror-key"},
    },
    "mirrors, certificates of clients": {
        "tls": {"enabled": True, "secretName": "log-tls", "clientAuth": "required"},
        "mirror": {"enabled": True, "apiKeySecretName": "mirror-key", "clientTlsSecretName": "mirror-tls"},
        "networkPolicy": {"enabled": True},
    },
    "mirrors in a recovery": {"recovery": {"name": "nov22"}, "mirror": {"enabled": True, "apiKeySecretName": "k"}},
    "affinity of one's own": {
        "broker": {
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [
                {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
            ],
        }
    },
}

REFUSED: list[tuple[dict[str, Any], str]] = [
    # A cluster that everybody may administer, published without a word that this is intended.
    (
        {**OPEN, "broker": OPEN_BROKERS},
        "broker.external.enabled is true, and the cluster requires no client certificate",
    ),
    (
        {**OPEN, "broker": OPEN_BROKERS, "tls": {"enabled": True, "secretName": "log-tls"}},
        "(tls.enabled is true, tls.clientAuth is none): every client that reaches those addresses can read, write",
    ),
    (
        {**OPEN, "coordinator": {"service": {"type": "LoadBalancer"}}},
        "coordinator.service.type is LoadBalancer, and the cluster requires no client certificate",
    ),
    # One whose keys everybody on the way may read.
    *(
        (
            {**OPEN, "broker": OPEN_BROKERS, "identity": identity},
            f"identity.posture is {posture} and tls.enabled is false: API keys",
        )
        for posture, identity in (
            ("required", {"posture": "required"}),
            ("observe", {"posture": "observe"}),
            ("open", {"posture": "open", "adminSecretName": "log-admin"}),
        )
    ),
    (
        {
            "broker": OPEN_BROKERS,
            "identity": {"posture": "observe"},
            "tls": {"enabled": True, "secretName": "log-tls"},
        },
        "Set tls.enabled=true and identity.posture=required or tls.clientAuth=required, or insecure=true",
    ),
    (
        {**OPEN, "identity": {"posture": "open", "quotas": [{"user": "*", "changes": 60}]}},
        "identity.quotas or identity.kubernetesIssuer is given, identity.posture is open",
    ),
    ({"identity": {"quotas": [{"user": "*"}]}}, "minProperties"),
    ({"identity": {"kubernetesIssuer": "http://id"}}, "does not match pattern"),
    ({"identity": {"posture": "closed"}}, "value must be one of '', 'open', 'observe', 'required'"),
    ({"identity": {"adminKey": "hrk_"}}, "additional properties 'adminKey' not allowed"),
    ({"broker": {"settings": {"posture": "required"}}}, "additional properties 'posture' not allowed"),
    ({"broker": {"replcas": 3}}, "additional properties 'replcas' not allowed"),
    ({"broker": {"settings": {"lease_ttl": 1}}}, "additional properties 'lease_ttl' not allowed"),
    ({"broker": {"settings": {"broker_id": 1}}}, "additional properties 'broker_id' not allowed"),
    ({"broker": {"settings": {"lease_ttl_ms": 10}}}, "minimum: got 10, want 1,000"),
    ({"broker": {"replicas": "3"}}, "got string, want integer"),
    ({"image": {"digest": "sha256:12"}}, "does not match pattern"),
    ({"backup": {"enabled": True}}, "backup.enabled needs backup.claimName"),
    (
        {"backup": {"enabled": True}, "etcd": {"endpoints": ["etcd:2379"], "bundled": {"enabled": False}}},
        "backup.enabled is for the bundled etcd, and etcd.bundled.enabled is false",
    ),
    ({"recovery": {"name": "../etcd"}}, "/recovery/name"),
    ({"logs": {"level": "verbose"}}, "value must be one of"),
    ({"topics": [{"partitions": 3}]}, "missing property 'name'"),
    ({"broker": {"persistence": {"size": "10 GB"}}}, "/broker/persistence/size"),
    (
        {"etcd": {"endpoints": ["etcd:2379"]}},
        "etcd.endpoints are given and etcd.bundled.enabled is true: set etcd.bundled.enabled=false",
    ),
    ({"tls": {"enabled": False, "secretName": "s"}}, "certificates are given under tls and tls.enabled is false"),
    ({"tls": {"enabled": "yes"}}, "value must be one of true, false, 'auto'"),
    ({"etcd": {"bundled": {"tls": True}}, "tls": {"enabled": False}}, "etcd.bundled.tls is true and tls.enabled is"),
    (
        {"etcd": {"endpoints": ["etcd:2379"], "bundled": {"enabled": False}, "auth": {"enabled": True}}},
        "etcd.auth.enabled is true for an etcd of yours: name the secret",
    ),
    (
        {"etcd": {"endpoints": ["etcd:2379"], "bundled": {"enabled": False}}},
        "etcd.endpoints are given and cluster is empty: clusters of one name in one etcd would be the same cluster",
    ),
    (
        {"tls": {"enabled": True, "secretName": "s", "certManager": {"enabled": True}}},
        "tls.secretName and tls.certManager.enabled exclude each other",
    ),
    (
        {"tls": CERT_MANAGER, "broker": {"external": NODE_PORTS}},
        "broker.external.addressTemplate has {nodeIP}, and no certificate can name nodes that are not known yet",
    ),
    (
        {"tls": CERT_MANAGER, "broker": {"external": {"enabled": True, "addresses": ["a:1"]}}},
        "broker.external.addresses has 1 entries for 3 brokers",
    ),
    ({"etcd": {"tls": {"secretName": "s"}}}, "etcd.tls is for an etcd of yours"),
    ({"etcd": {"bundled": {"enabled": False}}}, "no etcd: give etcd.endpoints, or set etcd.bundled.enabled=true"),
    (
        {"broker": {"replicas": 2}, "coordinator": {"settings": {"default_replication_factor": 3}}},
        "coordinator.settings.default_replication_factor is 3 and broker.replicas is 2",
    ),
    ({"topics": [{"name": "t", "replicationFactor": 5}]}, "topic t: replicationFactor is 5 and broker.replicas is 3"),
    (
        {"topics": [{"name": "t", "replicationFactor": 2, "config": {"min_insync_replicas": 3}}]},
        "topic t: min_insync_replicas is 3 and each partition has 2 replicas: acks=all could never succeed",
    ),
    (
        {"broker": {"replicas": 1}, "topics": [{"name": "t", "config": {"min_insync_replicas": 2}}]},
        "topic t: min_insync_replicas is 2 and each partition has 1 replicas",
    ),
    (
        {"broker": {"terminationGracePeriodSeconds": 105}},
        "broker.terminationGracePeriodSeconds is 105: it must be more than the drain (60 s) and the orderly stop",
    ),
    ({"coordinator": {"terminationGracePeriodSeconds": 15}}, "coordinator.terminationGracePeriodSeconds is 15"),
    ({"coordinator": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "minReplicas is more than"),
    (
        {"broker": {"external": {"enabled": True, "addressTemplate": "{id}:1", "annotationsByBroker": [{}]}}},
        "broker.external.annotationsByBroker has 1 entries for 3 brokers",
    ),
    (
        {"broker": {"podTemplate": {"spec": {"containers": [{"name": "sidecar"}]}}}},
        "broker.podTemplate.spec.containers would replace the chart's own: use broker.extraContainers",
    ),
    (
        {"coordinator": {"podTemplate": {"spec": {"initContainers": []}}}},
        "coordinator.podTemplate.spec.initContainers would replace the chart's own: use coordinator.extraInit",
    ),
    (
        {"etcd": {"bundled": {"podTemplate": {"spec": {"containers": []}}}}},
        "etcd.bundled.podTemplate.spec.containers would replace the chart's own: leave it out",
    ),
    ({"broker": {"external": {"enabled": True}}}, "give addressTemplate (with {id}) or addresses, one a broker"),
    (
        {"broker": {"external": {"enabled": True, "addressTemplate": "broker.example.org:1"}}},
        'broker.external.addressTemplate "broker.example.org:1" gives all brokers the same address',
    ),
    (
        {"broker": {"external": {"enabled": True, "addresses": ["a:1", "b:1"]}}},
        "broker.external.addresses has 2 entries for 3 brokers",
    ),
    (
        {"broker": {"external": {"enabled": True, "type": "NodePort", "addressTemplate": "{id}:1", "nodePorts": [1]}}},
        "broker.external.nodePorts has 1 entries for 3 brokers",
    ),
    (
        {"broker": {"external": {"enabled": True, "addressTemplate": "{id}:1", "nodePorts": [1]}}},
        "broker.external.nodePorts needs broker.external.type=NodePort",
    ),
    (
        {"broker": {"external": {"enabled": True, "addressTemplate": "{id}:1", "addresses": ["a:1", "b:1", "c:1"]}}},
        "broker.external has addresses and an addressTemplate: give one of them",
    ),
    (
        {"broker": {"external": NODE_PORTS, "native": {"nodePorts": [30281]}}},
        "broker.native.nodePorts has 1 entries for 3 brokers",
    ),
    (
        {"broker": {"external": NODE_PORTS, "native": {"nodePorts": [30281, 30182, 30283]}}},
        "port 30182 is in broker.external.nodePorts and in broker.native.nodePorts",
    ),
    (
        {"broker": {"external": NODE_PORTS, "native": {"enabled": False, "nodePorts": [30281, 30282, 30283]}}},
        "broker.native.nodePorts needs broker.native.enabled=true, broker.external.enabled=true",
    ),
    (
        {"broker": {"native": {"nodePorts": [30281, 30282, 30283]}}},
        "broker.native.nodePorts needs broker.native.enabled=true, broker.external.enabled=true",
    ),
    (
        {"mirror": {"enabled": True}},
        "mirror.enabled is true and identity.posture is required: name the secret with the API key of the workers",
    ),
    (
        {
            "tls": {"enabled": True, "secretName": "s", "clientAuth": "required"},
            "mirror": {"enabled": True, "apiKeySecretName": "k"},
        },
        "mirror.enabled is true and tls.clientAuth is required: name the secret with the certificate",
    ),
    (
        {**OPEN, "mirror": {"enabled": True, "clientTlsSecretName": "s"}},
        "mirror.clientTlsSecretName is given and tls.enabled is false",
    ),
    ({"mirror": {"sources": [{"name": "West", "secretName": "s"}]}}, "/mirror/sources/0/name"),
    ({"mirror": {"names": ["--yes"]}}, "/mirror/names/0"),
    (
        {"monitoring": {"prometheusRule": {"enabled": True, "alerts": {"HeadraceNoSuch": {"threshold": 1}}}}},
        "monitoring.prometheusRule.alerts.HeadraceNoSuch: there is no such alert",
    ),
]
