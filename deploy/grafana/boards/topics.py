"""Dashboard of traffic and size by topic, from /metrics/detail."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Query, Row, Variable, graph
from deploy.grafana.queries import RECORDS, TOPICS, per_second, top

PRODUCED = "headrace_broker_partition_produced_records_total"

BOARD = Dashboard(
    "topics",
    "Topics",
    "Traffic and size of each topic. Requires scraping of /metrics/detail.",
    (
        Row(
            "Traffic",
            (
                graph(
                    "Records in",
                    "By topic, the twenty busiest.",
                    RECORDS,
                    Query(
                        top(20, per_second(PRODUCED, TOPICS, "topic")),
                        "{{topic}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Bytes in",
                    "By topic.",
                    "Bps",
                    Query(
                        top(20, per_second("headrace_broker_partition_produced_bytes_total", TOPICS, "topic")),
                        "{{topic}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Bytes out",
                    "To consumers, by topic.",
                    "Bps",
                    Query(
                        top(20, per_second("headrace_broker_partition_fetched_bytes_total", TOPICS, "topic")),
                        "{{topic}}",
                    ),
                    detail=True,
                ),
            ),
        ),
        Row(
            "Kept",
            (
                graph(
                    "Size",
                    "Of the leaders' logs. Multiply by the number of replicas for the size on all disks.",
                    "bytes",
                    Query(
                        f"topk(20, sum by (topic) (headrace_broker_partition_log_bytes{{{TOPICS}}} "
                        f"* headrace_broker_partition_leader{{{TOPICS}}}))",
                        "{{topic}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Records stored",
                    "From the log start to the log end.",
                    "short",
                    Query(
                        f"topk(20, sum by (topic) ((headrace_broker_partition_log_end_offset{{{TOPICS}}} "
                        f"- headrace_broker_partition_log_start_offset{{{TOPICS}}}) "
                        f"* headrace_broker_partition_leader{{{TOPICS}}}))",
                        "{{topic}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Segments",
                    "Segment files on all brokers.",
                    "short",
                    Query(
                        f"topk(20, sum by (topic) (headrace_broker_partition_log_segments{{{TOPICS}}}))", "{{topic}}"
                    ),
                    detail=True,
                ),
            ),
        ),
        Row(
            "Partitions",
            (
                graph(
                    "Busiest partitions",
                    "If rates differ widely, the keys are unevenly distributed.",
                    RECORDS,
                    Query(
                        top(
                            10,
                            per_second(
                                "headrace_broker_partition_produced_records_total", TOPICS, "topic", "partition"
                            ),
                        ),
                        "{{topic}}-{{partition}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Out-of-sync replicas",
                    "By topic.",
                    "short",
                    Query(
                        f"sum by (topic) (headrace_broker_partition_replicas{{{TOPICS}}} "
                        f"- headrace_broker_partition_in_sync_replicas{{{TOPICS}}})",
                        "{{topic}}",
                    ),
                    detail=True,
                ),
                graph(
                    "Uncommitted records",
                    "Records that some in-sync replica does not have yet, for the twenty topics with the most.",
                    "short",
                    Query(
                        f"topk(20, sum by (topic) ((headrace_broker_partition_log_end_offset{{{TOPICS}}} "
                        f"- headrace_broker_partition_high_watermark{{{TOPICS}}}) "
                        f"* headrace_broker_partition_leader{{{TOPICS}}}))",
                        "{{topic}}",
                    ),
                    detail=True,
                ),
            ),
        ),
    ),
    (Variable("topic", "headrace_broker_partition_leader"),),
)
