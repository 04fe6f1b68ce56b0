"""Dashboard of disk space, disk latency, recovery and corruption."""

from __future__ import annotations

from deploy.grafana.panels import NOTHING, Dashboard, Query, Row, graph
from deploy.grafana.queries import HERE, INSTANCE, per_second, rises, slowest

BOARD = Dashboard(
    "storage",
    "Storage",
    "Free space and its trend, fsync latency, and the progress of recovery.",
    (
        Row(
            "Room",
            (
                graph(
                    "Free",
                    "Share of each broker's volume.",
                    "percentunit",
                    Query(
                        f"headrace_broker_disk_free_bytes{{{HERE}}} / headrace_broker_disk_total_bytes{{{HERE}}}",
                        "{{instance}}",
                    ),
                    highest=1.0,
                ),
                graph(
                    "Free in a day",
                    "At the rate of the last six hours. Below zero, the volume will be full.",
                    "bytes",
                    Query(f"predict_linear(headrace_broker_disk_free_bytes{{{HERE}}}[6h], 86400)", "{{instance}}"),
                    signed=True,
                ),
                graph(
                    "Logs",
                    "Bytes of all replicas of each broker.",
                    "bytes",
                    Query(f"headrace_broker_log_bytes{{{HERE}}}", "{{instance}}"),
                    stack=True,
                ),
                graph(
                    "Segments",
                    "Segment files of all logs.",
                    "short",
                    Query(f"headrace_broker_log_segments{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Not compacted",
                    "Share of all logs that no compaction has reached. If it rises, writes are faster than compaction.",
                    "percentunit",
                    Query(
                        f"headrace_broker_uncompacted_bytes{{{HERE}}} / headrace_broker_log_bytes{{{HERE}}}",
                        "{{instance}}",
                    ),
                    highest=1.0,
                ),
                graph(
                    "Segments removed",
                    "Removed by retention and DeleteRecords.",
                    "short",
                    Query(rises("headrace_broker_deleted_segments_total", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Appends rejected",
                    "1 while less than disk_refuse_below_bytes is free.",
                    "short",
                    Query(f"headrace_broker_appends_rejected_disk_full{{{HERE}}}", "{{instance}}"),
                    highest=1.0,
                ),
            ),
        ),
        Row(
            "Speed",
            (
                graph(
                    "fsync, p99",
                    "One flush of one log. Above 100 ms, durability=fsync slows all producers down.",
                    "s",
                    Query(slowest("headrace_broker_flush_seconds", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "fsyncs",
                    "Rounds per second.",
                    "iops",
                    Query(per_second("headrace_broker_flush_seconds_count", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Appends and reads in threads",
                    "Appends moved to a thread because the disk was slow; reads that were not in the page cache.",
                    "iops",
                    Query(per_second("headrace_broker_slow_appends_total", HERE, "instance"), "{{instance}} appends"),
                    Query(per_second("headrace_broker_blocking_reads_total", HERE, "instance"), "{{instance}} reads"),
                ),
            ),
        ),
        Row(
            "Recovery and corruption",
            (
                graph(
                    "Recovery",
                    "Logs opened at the last start, of all logs found.",
                    "percentunit",
                    Query(
                        f"headrace_broker_recovered_logs{{{HERE}}} / (headrace_broker_recovery_logs{{{HERE}}} > 0)",
                        "{{instance}}",
                    ),
                    highest=1.0,
                    without_data=NOTHING,
                ),
                graph(
                    "Duration of recovery",
                    "Of the current recovery, or of the last one.",
                    "s",
                    Query(f"headrace_broker_recovery_seconds{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Offline logs and corruption",
                    "Replicas whose log failed, corruption found, and logs that were copied again because of it.",
                    "short",
                    Query(f"headrace_broker_offline_logs{{{HERE}}}", "{{instance}} offline"),
                    Query(f"headrace_broker_corruptions_detected_total{{{HERE}}}", "{{instance}} corruption"),
                    Query(f"headrace_broker_replaced_logs_total{{{HERE}}}", "{{instance}} copied anew"),
                ),
                graph(
                    "Scrubbing",
                    "Bytes of logs read and checked in the background.",
                    "Bps",
                    Query(per_second("headrace_broker_scrubbed_bytes_total", HERE, "instance"), "{{instance}}"),
                ),
            ),
        ),
    ),
    INSTANCE,
)
