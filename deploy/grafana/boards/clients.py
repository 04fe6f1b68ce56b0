"""Dashboard of errors and latencies of clients, measured by brokers, and of decisions about users."""

from __future__ import annotations

from deploy.grafana.panels import NOT_SCRAPED, NOTHING, Dashboard, Query, Row, graph
from deploy.grafana.queries import OURS, RECORDS, events, per_second, rises, slowest, top

SERVICES = ("headrace_broker", "headrace_coordinator")
USER_METHOD, USER_RIGHT, USER_QUOTA = "{{user}} {{method}}", "{{user}} {{right}}", "{{user}} {{quota}}"

BOARD = Dashboard(
    "clients",
    "Clients",
    "Latency, errors and request sizes as clients see them, and what users are refused.",
    (
        Row(
            "Producers",
            (
                graph(
                    "Produce, by quantile",
                    "The whole call at the broker, including acknowledgements.",
                    "s",
                    Query(slowest("headrace_broker_produce_seconds", OURS, quantile=0.5), "p50"),
                    Query(slowest("headrace_broker_produce_seconds", OURS, quantile=0.99), "p99"),
                    Query(slowest("headrace_broker_produce_seconds", OURS, quantile=0.999), "p99.9"),
                ),
                graph(
                    "Records per batch",
                    "If low, producers send too early (linger_ms) or to too many partitions.",
                    "short",
                    Query(
                        f"sum(rate(headrace_broker_produced_records_total{{{OURS}}}[$__rate_interval])) / "
                        f"sum(rate(headrace_broker_produced_batches_total{{{OURS}}}[$__rate_interval]))",
                        "records",
                    ),
                ),
                graph(
                    "Calls and duplicates",
                    "Produce calls, and batches of retries that were already stored.",
                    "reqps",
                    Query(per_second("headrace_broker_produce_seconds_count", OURS), "calls"),
                    Query(per_second("headrace_broker_duplicate_batches_total", OURS), "duplicates"),
                ),
            ),
        ),
        Row(
            "Consumers",
            (
                graph(
                    "Fetch, p99",
                    "Processing time and, as a separate series, the wait for data, which is expected.",
                    "s",
                    Query(slowest("headrace_broker_fetch_seconds", OURS), "work"),
                    Query(slowest("headrace_broker_fetch_wait_seconds", OURS), "wait"),
                ),
                graph(
                    "Bytes per fetch",
                    "If small, and fetches are many, raise fetch_min_bytes.",
                    "bytes",
                    Query(
                        f"sum(rate(headrace_broker_fetched_bytes_total{{{OURS}}}[$__rate_interval])) / "
                        f"sum(rate(headrace_broker_fetch_seconds_count{{{OURS}}}[$__rate_interval]))",
                        "bytes",
                    ),
                ),
                graph(
                    "Fetches",
                    "Fetches per second, and waiting fetches.",
                    "short",
                    Query(per_second("headrace_broker_fetch_seconds_count", OURS), "a second"),
                    Query(f"sum(headrace_broker_waiting_fetches{{{OURS}}})", "waiting"),
                ),
            ),
        ),
        Row(
            "Rejected",
            (
                graph(
                    "Produce",
                    "By code.",
                    "short",
                    Query(events("headrace_broker_produce_errors_total", OURS, "code"), "{{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Fetch",
                    "By code.",
                    "short",
                    Query(events("headrace_broker_fetch_errors_total", OURS, "code"), "{{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Throttled",
                    "Calls rejected because the broker's max_inflight_bytes is reached.",
                    "reqps",
                    Query(per_second("headrace_broker_throttled_total", OURS), "throttled"),
                ),
            ),
        ),
        Row(
            "Users",
            (
                graph(
                    "Refused",
                    "Calls, topics and groups that users have no identity or no right for; the ten largest.",
                    "short",
                    *(
                        Query(top(10, events(f"{service}_refused_calls_total", OURS, "user", "method")), USER_METHOD)
                        for service in SERVICES
                    ),
                    without_data=NOTHING,
                ),
                graph(
                    "Would be refused",
                    "With posture=required, while it is observe: the rights that users lack; the ten largest.",
                    "short",
                    *(
                        Query(top(10, events(f"{service}_observed_refusals_total", OURS, "user", "right")), USER_RIGHT)
                        for service in SERVICES
                    ),
                    without_data=NOTHING,
                ),
                graph(
                    "Held by quotas",
                    "Time for which answers were held because a quota of the user was used; the ten largest.",
                    "s",
                    *(
                        Query(top(10, events(f"{service}_quota_held_seconds_total", OURS, "user", "quota")), USER_QUOTA)
                        for service in SERVICES
                    ),
                    without_data=NOTHING,
                ),
                graph(
                    "Lost audit events",
                    "Dropped because the topic __audit could not be written. Must be zero.",
                    "short",
                    *(
                        Query(rises(f"{service}_audit_events_lost_total", OURS, "instance"), "{{instance}}")
                        for service in SERVICES
                    ),
                ),
            ),
        ),
        Row(
            "Tables",
            (
                graph(
                    "Rows by operation",
                    "Rows read by get and scan, and written by put, delete and compare_and_put.",
                    "short",
                    Query(per_second("headrace_broker_table_rows_total", OURS, "operation"), "{{operation}}"),
                ),
                graph(
                    "Calls on rows, p99",
                    "At the broker, without the wait for an offset (min_offset, watch) or for a quota.",
                    "s",
                    Query(slowest("headrace_broker_table_seconds", OURS, "operation"), "{{operation}}"),
                ),
                graph(
                    "Misses and conflicts",
                    "Rows that a get has not found, and writes refused because of the row's version.",
                    "short",
                    Query(per_second("headrace_broker_table_misses_total", OURS), "misses"),
                    Query(per_second("headrace_broker_table_conflicts_total", OURS), "conflicts"),
                ),
                graph(
                    "Values whose batch was in memory",
                    "Share of the values read. If it is low, reads read and decode batches: raise table_cache_bytes.",
                    "percentunit",
                    Query(
                        f"sum(rate(headrace_broker_table_batch_hits_total{{{OURS}}}[$__rate_interval])) / "
                        f"(sum(rate(headrace_broker_table_batch_hits_total{{{OURS}}}[$__rate_interval])) + "
                        f"sum(rate(headrace_broker_table_batch_misses_total{{{OURS}}}[$__rate_interval])))",
                        "hits",
                    ),
                ),
                graph(
                    "Memory of keys",
                    "Keys of all tables, by broker. A table needs more partitions on more brokers if they do not fit.",
                    "bytes",
                    Query(f"sum by (instance) (headrace_broker_table_key_bytes{{{OURS}}})", "{{instance}}"),
                ),
                graph(
                    "State behind the log",
                    "Time since the state of a table had all that is committed, of the worst table of each broker.",
                    "s",
                    Query(f"max by (instance) (headrace_broker_table_lag_seconds{{{OURS}}})", "{{instance}}"),
                ),
            ),
        ),
        Row(
            "Applications that export their metrics (headrace.metrics)",
            (
                graph(
                    "Records sent and failed",
                    "By client. These series have no label cluster: all clients that this Prometheus scrapes.",
                    RECORDS,
                    Query(per_second("headrace_client_sent_records_total", "", "client"), "{{client}} sent"),
                    Query(per_second("headrace_client_failed_records_total", "", "client"), "{{client}} failed"),
                    without_data=NOT_SCRAPED,
                ),
                graph(
                    "Buffered",
                    "Bytes of unsent records, compared with buffer_memory. If it is full, `send` waits.",
                    "bytes",
                    Query("sum by (client) (headrace_client_buffered_bytes)", "{{client}}"),
                    without_data=NOT_SCRAPED,
                ),
                graph(
                    "Calls measured by clients, p99",
                    "From the start of a call to its response, including the network and the client's own work.",
                    "s",
                    Query(slowest("headrace_client_produce_seconds", "", "client"), "{{client}} produce"),
                    Query(slowest("headrace_client_fetch_seconds", "", "client"), "{{client}} fetch and wait"),
                    without_data=NOT_SCRAPED,
                ),
                graph(
                    "Errors measured by clients",
                    "By code, of partitions of their calls. NOT_LEADER is expected while leadership moves.",
                    "short",
                    Query(events("headrace_client_produce_errors_total", "", "client", "code"), "{{client}} {{code}}"),
                    Query(events("headrace_client_fetch_errors_total", "", "client", "code"), "{{client}} {{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Retries",
                    "Batches and fetched partitions that were retried without an error in the application.",
                    "ops",
                    Query(per_second("headrace_client_produce_retries_total", "", "client"), "{{client}} batches"),
                    Query(per_second("headrace_client_fetch_retries_total", "", "client"), "{{client}} partitions"),
                    without_data=NOT_SCRAPED,
                ),
                graph(
                    "Lag measured by consumers",
                    "Of the partitions that each consumer reads.",
                    "short",
                    Query("sum by (client) (headrace_client_lag_records)", "{{client}}"),
                    without_data=NOT_SCRAPED,
                ),
            ),
        ),
    ),
)
