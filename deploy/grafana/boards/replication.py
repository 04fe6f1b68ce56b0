"""Dashboard of in-sync sets, followers, leaders and mirrors."""

from __future__ import annotations

from deploy.grafana.panels import NOTHING, Dashboard, Query, Row, graph
from deploy.grafana.queries import HERE, INSTANCE, OURS, per_second, rises, top

BOARD = Dashboard(
    "replication",
    "Replication",
    "In-sync sets, lag of followers, leader changes, and mirrors of other clusters.",
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
                    "These partitions reject acks=all.",
                    "short",
                    Query(f"headrace_broker_under_min_insync{{{HERE}}}", "{{instance}}"),
                    stack=True,
                ),
                graph(
                    "In-sync set changes",
                    "A follower that leaves repeatedly has a slow disk, a slow network, or too little CPU. The "
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
                    "Records that each follower lacks in its worst partition, measured by its leaders.",
                    "short",
                    Query(f"max by (peer) (headrace_broker_follower_lag_records{{{HERE}}})", "broker-{{peer}}"),
                ),
                graph(
                    "Lag of followers, seconds",
                    "Time since the follower was caught up; above replica_lag_max_ms it leaves the in-sync set.",
                    "s",
                    Query(f"max by (peer) (headrace_broker_follower_lag_seconds{{{HERE}}})", "broker-{{peer}}"),
                ),
                graph(
                    "Bytes copied",
                    "Received by each follower.",
                    "Bps",
                    Query(per_second("headrace_broker_replicated_in_bytes_total", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Phi of peers",
                    "Phi of peers on replication streams. At 1 one in ten suspicions is wrong. At phi_threshold (8) a "
                    "peer is suspected, and elections prefer others. Values above 20 are shown as 20.",
                    "short",
                    Query(f"clamp_max(max by (peer) (headrace_broker_peer_phi{{{HERE}}}), 20)", "broker-{{peer}}"),
                ),
                graph(
                    "Truncations and corrupt responses",
                    "Logs truncated because they diverged from their leader's, and responses that failed their checks.",
                    "short",
                    Query(rises("headrace_broker_truncations_total", HERE, "instance"), "{{instance}} truncations"),
                    Query(rises("headrace_broker_corrupt_fetches_total", HERE, "instance"), "{{instance}} corrupt"),
                ),
                graph(
                    "Timed-out in-sync set updates",
                    "Changes of in-sync sets to which etcd did not respond in time.",
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
                    "Leaders elected to replace dead ones, handed over by live ones, and elected uncleanly.",
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
                    "Leaderships started",
                    "By the new leader.",
                    "short",
                    Query(
                        rises("headrace_broker_leaderships_started_total", HERE, "instance"),
                        "{{instance}}",
                    ),
                ),
                graph(
                    "Partitions under reassignment",
                    "Partitions whose replicas are being copied to other brokers.",
                    "short",
                    Query(f"max(headrace_coordinator_moving_partitions{{{OURS}}})", "moving"),
                ),
            ),
        ),
        Row(
            "Mirrors",
            (
                graph(
                    "Lag of mirrors, seconds",
                    "Age of the last copied batch while records are missing; 0 if none is.",
                    "s",
                    Query(
                        top(20, f"max by (mirror, topic) (headrace_mirror_lag_seconds{{{OURS}}})"),
                        "{{mirror}} {{topic}}",
                    ),
                    without_data=NOTHING,
                ),
                graph(
                    "Lag of mirrors, records",
                    "Records of the source that are not copied: lost to this cluster if the source is.",
                    "short",
                    Query(
                        top(20, f"sum by (mirror, topic) (headrace_mirror_lag_records{{{OURS}}})"),
                        "{{mirror}} {{topic}}",
                    ),
                    without_data=NOTHING,
                ),
                graph(
                    "Not copied",
                    "Partitions, topics and subjects that are not copied, and mirrors that are not copied at all.",
                    "short",
                    Query(f"sum by (mirror) (headrace_mirror_partition_failed{{{OURS}}})", "{{mirror}} partitions"),
                    Query(
                        f"sum by (mirror) (max by (mirror, topic) (headrace_mirror_topic_refused{{{OURS}}}))",
                        "{{mirror}} topics",
                    ),
                    Query(
                        f"sum by (mirror) (max by (mirror, subject) (headrace_mirror_subject_refused{{{OURS}}}))",
                        "{{mirror}} subjects",
                    ),
                    Query(f"max by (mirror) (headrace_mirror_failed{{{OURS}}})", "{{mirror}} as a whole"),
                    without_data=NOTHING,
                ),
            ),
        ),
    ),
    INSTANCE,
)
