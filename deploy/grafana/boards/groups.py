"""Lag, progress and members of consumer groups."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Query, Row, Variable, graph
from deploy.grafana.queries import GROUPS, OURS, RECORDS, per_second, rises, slowest

BOARD = Dashboard(
    "groups",
    "Consumer groups",
    "How far each group is behind, in records and in seconds, and how its members are.",
    (
        Row(
            "Lag",
            (
                graph(
                    "Lag, seconds",
                    "How long the oldest record that is not finished with has been in the log.",
                    "s",
                    Query(
                        f"max by (group, topic) (headrace_coordinator_group_lag_seconds{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                    width=12,
                ),
                graph(
                    "Lag, records",
                    "Between the committed offsets and the ends of the logs.",
                    "short",
                    Query(
                        f"max by (group, topic) (headrace_coordinator_group_lag_records{{{GROUPS}}})",
                        "{{group}} {{topic}}",
                    ),
                    width=12,
                ),
                graph(
                    "Progress",
                    "Records finished with a second: how fast committed offsets rise.",
                    RECORDS,
                    Query(
                        "max by (group, topic) "
                        f"(deriv(headrace_coordinator_group_offset{{{GROUPS}}}[$__rate_interval]))",
                        "{{group}} {{topic}}",
                    ),
                    width=12,
                ),
                graph(
                    "Readers without a group",
                    "Those that report their positions: how old their oldest unread record is.",
                    "s",
                    Query(
                        f"max by (reader, topic) (headrace_coordinator_reader_lag_seconds{{{OURS}}})",
                        "{{reader}} {{topic}}",
                    ),
                    width=12,
                    rare=True,
                ),
            ),
        ),
        Row(
            "Members",
            (
                graph(
                    "Members",
                    "Of each group.",
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
                    "New assignments, and members put out because nothing was heard of them.",
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
            "Coordinators' work",
            (
                graph(
                    "Heartbeats, p99",
                    "The work of one, without its wait for news.",
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
                    "And those that another coordinator was quicker in: many, and clients ask several coordinators.",
                    "ops",
                    Query(per_second("headrace_coordinator_group_transactions_total", OURS), "all"),
                    Query(per_second("headrace_coordinator_group_conflicts_total", OURS), "lost"),
                ),
                graph(
                    "Age of the lags",
                    "How old these numbers are, and how long measuring takes.",
                    "s",
                    Query(f"max(headrace_coordinator_lag_age_seconds{{{OURS}}})", "age"),
                    Query(f"max(headrace_coordinator_lag_round_seconds{{{OURS}}})", "measuring"),
                ),
                graph(
                    "Lag not known",
                    "Partitions whose leader gave no answer; and pairs of group and topic left out, as too many.",
                    "short",
                    Query(
                        f"sum(max by (group) (headrace_coordinator_group_unknown_partitions{{{OURS}}}))", "not answered"
                    ),
                    Query(f"max(headrace_coordinator_lag_series_omitted{{{OURS}}})", "left out"),
                ),
            ),
        ),
    ),
    (Variable("group", "headrace_coordinator_group_size"),),
)
