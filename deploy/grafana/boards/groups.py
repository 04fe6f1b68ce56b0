"""Dashboard of lag, progress and members of consumer groups."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Query, Row, Variable, graph
from deploy.grafana.queries import GROUPS, OURS, RECORDS, per_second, rises, slowest

BOARD = Dashboard(
    "groups",
    "Consumer groups",
    "The lag of each group in records and seconds, and its members.",
    (
        Row(
            "Lag",
            (
                graph(
                    "Lag, seconds",
                    "Age of the oldest uncommitted record.",
                    "s",
                    Query(
                        f"max by (group, topic) (headrace_coordinator_group_lag_seconds{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Lag, records",
                    "Between the committed offsets and the ends of the logs.",
                    "short",
                    Query(
                        f"max by (group, topic) (headrace_coordinator_group_lag_records{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                ),
                graph(
                    "Progress",
                    "Committed records per second: the rate at which committed offsets rise.",
                    RECORDS,
                    Query(
                        "max by (group, topic) "
                        f"(deriv(headrace_coordinator_group_offset{{{GROUPS}}}[$__rate_interval]))",
                        "{{group}} {{topic}}",
                    ),
                ),
            ),
        ),
        Row(
            "Members",
            (
                graph(
                    "Members",
                    "Members of each group.",
                    "short",
                    Query(f"max by (group) (headrace_coordinator_group_size{{{GROUPS}}})", "{{group}}"),
                ),
                graph(
                    "Rebalancing",
                    "1 while a member does not own its target assignment.",
                    "short",
                    Query(f"max by (group) (headrace_coordinator_group_rebalancing{{{GROUPS}}})", "{{group}}"),
                    highest=1.0,
                ),
                graph(
                    "Rebalances and evictions",
                    "New assignments, and members removed because their session expired.",
                    "short",
                    Query(
                        rises("headrace_coordinator_group_rebalances_total", OURS),
                        "rebalances",
                    ),
                    Query(
                        rises("headrace_coordinator_group_evictions_total", OURS),
                        "evictions",
                    ),
                ),
            ),
        ),
        Row(
            "Coordinators",
            (
                graph(
                    "Heartbeats, p99",
                    "Processing time, without the long poll's wait.",
                    "s",
                    Query(slowest("headrace_coordinator_heartbeat_seconds", OURS, "instance"), "{{instance}}"),
                ),
                graph(
                    "Commits",
                    "Transactions that stored offsets.",
                    "ops",
                    Query(per_second("headrace_coordinator_group_commits_total", OURS, "instance"), "{{instance}}"),
                ),
                graph(
                    "Transactions on groups",
                    "Including failed compares. Many failed compares mean that clients use several coordinators.",
                    "ops",
                    Query(per_second("headrace_coordinator_group_transactions_total", OURS), "all"),
                    Query(per_second("headrace_coordinator_group_conflicts_total", OURS), "failed compares"),
                ),
                graph(
                    "Age of the measurement",
                    "Age of the lags above, and the duration of the measurement.",
                    "s",
                    Query(f"max(headrace_coordinator_lag_age_seconds{{{OURS}}})", "age"),
                    Query(f"max(headrace_coordinator_lag_round_seconds{{{OURS}}})", "duration"),
                ),
                graph(
                    "Lag unknown",
                    "Partitions whose leader did not respond; pairs of group and topic, and groups, above the limit.",
                    "short",
                    Query(
                        f"sum(max by (group) (headrace_coordinator_group_unknown_partitions{{{OURS}}}))", "no response"
                    ),
                    Query(f"max(headrace_coordinator_lag_series_omitted{{{OURS}}})", "omitted"),
                    Query(f"max(headrace_coordinator_group_series_omitted{{{OURS}}})", "omitted groups"),
                ),
            ),
        ),
    ),
    (Variable("group", "headrace_coordinator_group_size"),),
)
