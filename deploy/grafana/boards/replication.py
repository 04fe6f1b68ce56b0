"""Dashboard of in-sync sets, followers and leaders."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Query, Row, graph
from deploy.grafana.queries import HERE, INSTANCE, OURS, per_second, rises

BOARD = Dashboard(
    "replication",
    "Replication",
    "In-sync sets, lag of followers, and leader changes.",
    (
        Row(
            "In sync",
            (
                graph(
                    "Under-replicated partitions",
                    "By the broker that leads them.",
                    "short",
                    Query(f"headrace_broker_under_replicated{{{HERE}}}", "{{instance}}"),
                    stack=True,
                ),
                graph(
                    "Under minimum in-sync",
                    "These refuse acks=all.",
                    "short",
                    Query(f"headrace_broker_under_min_insync{{{HERE}}}", "{{instance}}"),
                    stack=True,
                ),
                graph(
                    "In-sync sets shrink and grow",
                    "A follower that keeps falling out has a slow disk, a slow network, or too little CPU. The "
                    "controller removes brokers that are dead or stopping.",
                    "short",
                    Query(rises("headrace_broker_in_sync_shrinks_total", HERE, "instance"), "{{instance}} shrinks"),
                    Query(rises("headrace_broker_in_sync_expands_total", HERE, "instance"), "{{instance}} grows"),
                    Query(rises("headrace_coordinator_in_sync_shrinks_total", OURS), "controller shrinks"),
                ),
            ),
        ),
        Row(
            "Followers",
            (
                graph(
                    "Lag of followers, records",
                    "What the worst partition of each follower lacks, as its leaders see it.",
                    "short",
                    Query(f"max by (peer) (headrace_broker_follower_lag_records{{{HERE}}})", "broker-{{peer}}"),
                ),
                graph(
                    "Lag of followers, seconds",
                    "Since the follower had everything; past replica_lag_max_ms it leaves the in-sync set.",
                    "s",
                    Query(f"max by (peer) (headrace_broker_follower_lag_seconds{{{HERE}}})", "broker-{{peer}}"),
                ),
                graph(
                    "Bytes copied",
                    "In by each follower.",
                    "Bps",
                    Query(per_second("headrace_broker_replicated_in_bytes_total", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Phi of peers",
                    "Phi of peers that should be heard: at 1 one doubt in ten is wrong, at 8 they lose leadership. "
                    "Drawn up to 20.",
                    "short",
                    Query(f"clamp_max(max by (peer) (headrace_broker_peer_phi{{{HERE}}}), 20)", "broker-{{peer}}"),
                ),
                graph(
                    "Truncations and corrupt answers",
                    "Logs truncated because they diverged from their leader's, and answers that failed their checks.",
                    "short",
                    Query(rises("headrace_broker_truncations_total", HERE, "instance"), "{{instance}} truncations"),
                    Query(rises("headrace_broker_corrupt_fetches_total", HERE, "instance"), "{{instance}} corrupt"),
                ),
                graph(
                    "Unanswered proposals",
                    "Changes of in-sync sets that etcd did not answer.",
                    "short",
                    Query(rises("headrace_broker_isr_update_timeouts_total", HERE, "instance"), "{{instance}}"),
                ),
            ),
        ),
        Row(
            "Leaders",
            (
                graph(
                    "Elections",
                    "Leaders elected in place of dead ones, moved from living ones, and those that may lack records.",
                    "short",
                    Query(rises("headrace_coordinator_elections_total", OURS), "elected"),
                    Query(
                        rises("headrace_coordinator_leadership_moves_total", OURS),
                        "moved",
                    ),
                    Query(
                        rises("headrace_coordinator_unclean_elections_total", OURS),
                        "unclean",
                    ),
                ),
                graph(
                    "Leaderships begun",
                    "By the broker that took them.",
                    "short",
                    Query(
                        rises("headrace_broker_leaderships_started_total", HERE, "instance"),
                        "{{instance}}",
                    ),
                ),
                graph(
                    "Moving partitions",
                    "Whose replicas are on their way to other brokers.",
                    "short",
                    Query(f"max(headrace_coordinator_moving_partitions{{{OURS}}})", "moving"),
                ),
            ),
        ),
    ),
    INSTANCE,
)
