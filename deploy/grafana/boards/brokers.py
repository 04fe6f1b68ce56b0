"""Dashboard of utilization, saturation and errors by broker."""

from __future__ import annotations

from deploy.grafana.panels import NOTHING, Dashboard, Query, Row, graph
from deploy.grafana.queries import HERE, INSTANCE, RECORDS, events, per_second, rises, slowest

BOARD = Dashboard(
    "brokers",
    "Brokers",
    "Utilization, saturation and errors of each broker.",
    (
        Row(
            "Utilization",
            (
                graph(
                    "Records in",
                    "Appended by this broker as leader.",
                    RECORDS,
                    Query(per_second("headrace_broker_produced_records_total", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Bytes in",
                    "From producers and from leaders.",
                    "Bps",
                    Query(
                        per_second("headrace_broker_produced_bytes_total", HERE, "instance"), "{{instance}} produced"
                    ),
                    Query(
                        per_second("headrace_broker_replicated_in_bytes_total", HERE, "instance"), "{{instance}} copied"
                    ),
                ),
                graph(
                    "Bytes out",
                    "To consumers and to followers.",
                    "Bps",
                    Query(per_second("headrace_broker_fetched_bytes_total", HERE, "instance"), "{{instance}} fetched"),
                    Query(
                        per_second("headrace_broker_replicated_out_bytes_total", HERE, "instance"),
                        "{{instance}} copied",
                    ),
                ),
                graph(
                    "Event loop CPU",
                    "Share of the one core that a broker's event loop can use; near 1 the broker is saturated.",
                    "percentunit",
                    Query(per_second("headrace_broker_loop_cpu_seconds_total", HERE, "instance"), "{{instance}}"),
                    highest=1.0,
                ),
                graph(
                    "Process CPU",
                    "CPU of the process, in cores: the event loop, disk threads, gRPC's threads.",
                    "short",
                    Query(
                        per_second("process_cpu_seconds_total", f'job="headrace-broker", {HERE}', "instance"),
                        "{{instance}}",
                    ),
                ),
                graph(
                    "Memory",
                    "Resident memory, without the kernel's page cache, which holds the log.",
                    "bytes",
                    Query(f'process_resident_memory_bytes{{job="headrace-broker", {HERE}}}', "{{instance}}"),
                ),
                graph(
                    "Partitions led",
                    "If uneven, `headrace partition elect` elects the preferred leaders.",
                    "short",
                    Query(f"headrace_broker_leader_partitions{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Replicas held",
                    "If uneven, `headrace partition reassign` spreads them.",
                    "short",
                    Query(f"headrace_broker_partitions{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Open files",
                    "Compared with the limit of the process.",
                    "percentunit",
                    Query(
                        f'process_open_fds{{job="headrace-broker", {HERE}}} / '
                        f'process_max_fds{{job="headrace-broker", {HERE}}}',
                        "{{instance}}",
                    ),
                ),
            ),
        ),
        Row(
            "Saturation",
            (
                graph(
                    "Event loop lag, p99",
                    "Above 100 ms it affects clients.",
                    "s",
                    Query(slowest("headrace_broker_loop_lag_seconds", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Produce by stage, p99",
                    "Time of produce calls by stage: queue, append, fsync, replication.",
                    "s",
                    Query(slowest("headrace_broker_produce_stage_seconds", HERE, "stage"), "{{stage}}"),
                ),
                graph(
                    "Produce, p99",
                    "The whole call.",
                    "s",
                    Query(slowest("headrace_broker_produce_seconds", HERE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Requests and responses in memory",
                    "Bytes, compared with max_inflight_bytes, above which calls are throttled.",
                    "bytes",
                    Query(f"headrace_broker_inflight_bytes{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Waiting fetches",
                    "Long polls that wait for data, compared with max_waiting_fetches.",
                    "short",
                    Query(f"headrace_broker_waiting_fetches{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Throttled",
                    "Calls rejected because max_inflight_bytes is reached.",
                    "reqps",
                    Query(per_second("headrace_broker_throttled_total", HERE, "instance"), "{{instance}}"),
                ),
            ),
        ),
        Row(
            "Native protocol",
            (
                graph(
                    "Bytes from the page cache",
                    "Sent by the kernel, and all bytes fetched. The rest is small, or sent over TLS or gRPC.",
                    "Bps",
                    Query(per_second("headrace_broker_native_sent_bytes_total", HERE, "instance"), "{{instance}} sent"),
                    Query(per_second("headrace_broker_fetched_bytes_total", HERE, "instance"), "{{instance}} fetched"),
                ),
                graph(
                    "Native connections",
                    "At max_native_connections, or at an address's share of it, further connections are refused.",
                    "short",
                    Query(f"headrace_broker_native_connections{{{HERE}}}", "{{instance}}"),
                ),
                graph(
                    "Native connections refused and broken",
                    "Refused: the limit is reached, and the clients use gRPC. Broken: a protocol error or a timeout.",
                    "short",
                    Query(rises("headrace_broker_native_refused_total", HERE, "instance"), "{{instance}} refused"),
                    Query(rises("headrace_broker_native_broken_total", HERE, "instance"), "{{instance}} broken"),
                ),
            ),
        ),
        Row(
            "Errors",
            (
                graph(
                    "Produce errors",
                    "By code. NOT_LEADER is expected while leadership moves; STORAGE_FULL is not.",
                    "short",
                    Query(events("headrace_broker_produce_errors_total", HERE, "code"), "{{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Calls rejected or failed",
                    "Whole calls, by method and code.",
                    "short",
                    Query(events("headrace_broker_call_errors_total", HERE, "method", "code"), "{{method}} {{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Warnings and errors logged",
                    "Lines in the broker's log.",
                    "short",
                    Query(
                        events("headrace_broker_log_lines_total", HERE, "instance", "level"),
                        "{{instance}} {{level}}",
                    ),
                    without_data=NOTHING,
                ),
            ),
        ),
    ),
    INSTANCE,
)
