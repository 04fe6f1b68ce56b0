"""Dashboard of the cluster's health and throughput."""

from __future__ import annotations

from deploy.grafana.panels import NOTHING, Dashboard, Query, Row, graph, number
from deploy.grafana.queries import GOOD_IS_SMALL, GOOD_IS_ZERO, OURS, RECORDS, events, per_second, slowest

UP = f'up{{job="headrace-broker", {OURS}}}'
DOWN = f"(count({UP}) - sum({UP}))"
MISSING = f"max(headrace_coordinator_missing_brokers{{{OURS}}})"
OFFLINE = f"max(headrace_coordinator_offline_partitions{{{OURS}}})"
CONTROLLERS = f"sum(headrace_coordinator_is_controller{{{OURS}}})"
UNDER_MINIMUM = f"sum(headrace_broker_under_min_insync{{{OURS}}})"
UNDER_REPLICATED = f"max(headrace_coordinator_under_replicated_partitions{{{OURS}}})"
BROKERS_UP = f"(sum({UP}) / (sum({UP}) + ({DOWN} > {MISSING} or {MISSING} or {DOWN}))) or vector(0)"
"""A broker that is down may have lost its target (Kubernetes), its registration, or both: the larger count applies."""
VERDICT = (
    f"clamp_max(2 * (({OFFLINE} > bool 0) + ({UNDER_MINIMUM} > bool 0) + ({CONTROLLERS} != bool 1)) + "
    f"clamp_max(({MISSING} > bool 0) + ({DOWN} > bool 0) + ({UNDER_REPLICATED} > bool 0), 1), 2) or vector(2)"
)
"""Without data of brokers or coordinators the sum is absent, which is critical."""

BOARD = Dashboard(
    "overview",
    "Overview",
    "Health and traffic of the cluster, with links to the other dashboards.",
    (
        Row(
            "Health",
            (
                number(
                    "Cluster",
                    "Critical: partitions offline or under minimum in-sync, not one controller, or no metrics. "
                    "Degraded: a broker or a replica is missing.",
                    "short",
                    VERDICT,
                    words=(("0", "Healthy", "green"), ("1", "Degraded", "orange"), ("2", "Critical", "red")),
                ),
                number(
                    "Brokers up",
                    "Share of all brokers that are registered, hold replicas, or are scraped. Below 100 % see Brokers.",
                    "percentunit",
                    BROKERS_UP,
                    decimals=0,
                    steps=((None, "red"), (0.001, "orange"), (1.0, "green")),
                ),
                number(
                    "Controllers",
                    "Exactly one coordinator must be the controller.",
                    "short",
                    CONTROLLERS,
                    steps=((None, "red"), (1.0, "green"), (2.0, "red")),
                ),
                number(
                    "Offline partitions",
                    "Partitions without a leader accept no writes and no reads.",
                    "short",
                    OFFLINE,
                    steps=GOOD_IS_ZERO,
                ),
                number(
                    "Under minimum in-sync",
                    "Partitions that reject acks=all.",
                    "short",
                    UNDER_MINIMUM,
                    steps=GOOD_IS_ZERO,
                ),
                number(
                    "Under-replicated",
                    "Partitions with a replica that is not in sync; expected while a broker restarts.",
                    "short",
                    UNDER_REPLICATED,
                    steps=GOOD_IS_SMALL,
                ),
                number(
                    "Least free disk",
                    "The fullest of the brokers' volumes.",
                    "percentunit",
                    f"min(headrace_broker_disk_free_bytes{{{OURS}}} / headrace_broker_disk_total_bytes{{{OURS}}})",
                    decimals=0,
                    steps=((None, "red"), (0.15, "orange"), (0.25, "green")),
                ),
                number(
                    "etcd's space used",
                    "Share of the quota that etcd's database uses; at 100 % etcd rejects writes.",
                    "percentunit",
                    f"max(headrace_coordinator_etcd_db_bytes{{{OURS}}} / "
                    f"headrace_coordinator_etcd_db_quota_bytes{{{OURS}}})",
                    decimals=0,
                    steps=((None, "green"), (0.5, "orange"), (0.7, "red")),
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                graph(
                    "Records in",
                    "Records appended by leaders.",
                    RECORDS,
                    Query(per_second("headrace_broker_produced_records_total", OURS, "instance"), "{{instance}}"),
                    stack=True,
                ),
                graph(
                    "Bytes in and out",
                    "From producers, to consumers, and between brokers.",
                    "Bps",
                    Query(per_second("headrace_broker_produced_bytes_total", OURS), "produced"),
                    Query(per_second("headrace_broker_fetched_bytes_total", OURS), "fetched"),
                    Query(per_second("headrace_broker_replicated_out_bytes_total", OURS), "replicated"),
                ),
                graph(
                    "Duration of calls, p99",
                    "Produce including the wait for acknowledgements; fetch without the wait for data.",
                    "s",
                    Query(slowest("headrace_broker_produce_seconds", OURS), "produce"),
                    Query(slowest("headrace_broker_fetch_seconds", OURS), "fetch"),
                ),
            ),
        ),
        Row(
            "Latency and errors",
            (
                graph(
                    "Lag of groups, seconds",
                    "Age of the oldest uncommitted record, for the ten worst groups.",
                    "s",
                    Query(
                        f"topk(10, max by (group, topic) (headrace_coordinator_group_lag_seconds{{{OURS}}}))",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Event loop lag, p99",
                    "Every call to this service is delayed by this time.",
                    "s",
                    Query(slowest("headrace_broker_loop_lag_seconds", OURS, "instance"), "{{instance}}"),
                    Query(slowest("headrace_coordinator_loop_lag_seconds", OURS, "instance"), "{{instance}}"),
                ),
                graph(
                    "Errors",
                    "Partitions of produce and fetch calls that failed, by code.",
                    "short",
                    Query(events("headrace_broker_produce_errors_total", OURS, "code"), "produce {{code}}"),
                    Query(events("headrace_broker_fetch_errors_total", OURS, "code"), "fetch {{code}}"),
                    without_data=NOTHING,
                ),
            ),
        ),
    ),
)
