"""Dashboard of coordinators, and of etcd as seen by them."""

from __future__ import annotations

from deploy.grafana.panels import NOTHING, Dashboard, Query, Row, graph
from deploy.grafana.queries import OURS, events, per_second, slowest

BOARD = Dashboard(
    "control",
    "Coordinators and etcd",
    "The active controller, calls to coordinators, and the state of etcd.",
    (
        Row(
            "Coordinators",
            (
                graph(
                    "Controller",
                    "1 at exactly one.",
                    "short",
                    Query(f"headrace_coordinator_is_controller{{{OURS}}}", "{{instance}}"),
                    highest=1.0,
                ),
                graph(
                    "Calls",
                    "By method; only methods that are called.",
                    "reqps",
                    Query(f"{per_second('headrace_coordinator_call_seconds_count', OURS, 'method')} > 0", "{{method}}"),
                ),
                graph(
                    "Duration of calls, p99",
                    "By method; only methods that are called.",
                    "s",
                    Query(f"{slowest('headrace_coordinator_call_seconds', OURS, 'method')} >= 0", "{{method}}"),
                ),
                graph(
                    "Errors",
                    "Whole calls by method and code, and single topics or partitions in responses by code.",
                    "short",
                    Query(
                        events("headrace_coordinator_call_errors_total", OURS, "method", "code"),
                        "{{method}} {{code}}",
                    ),
                    Query(events("headrace_coordinator_answer_errors_total", OURS, "code"), "in answers {{code}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Event loop CPU",
                    "Share of the one core that a coordinator's event loop can use.",
                    "percentunit",
                    Query(per_second("headrace_coordinator_loop_cpu_seconds_total", OURS, "instance"), "{{instance}}"),
                    highest=1.0,
                ),
                graph(
                    "Topics and partitions",
                    "Visible topics and their partitions.",
                    "short",
                    Query(f"max(headrace_coordinator_topics{{{OURS}}})", "topics"),
                    Query(f"max(headrace_coordinator_partitions{{{OURS}}})", "partitions"),
                ),
            ),
        ),
        Row(
            "etcd, as the services see it",
            (
                graph(
                    "Has a leader",
                    "0: nothing can change.",
                    "short",
                    Query(f"max(headrace_coordinator_etcd_has_leader{{{OURS}}})", "leader"),
                    Query(f"max(headrace_coordinator_etcd_members_reached{{{OURS}}})", "members reached"),
                ),
                graph(
                    "Requests, p99",
                    "By operation. Above 100 ms, check etcd's disk.",
                    "s",
                    Query(slowest("headrace_coordinator_etcd_request_seconds", OURS, "operation"), "{{operation}}"),
                ),
                graph(
                    "Requests",
                    "By operation.",
                    "reqps",
                    Query(
                        per_second("headrace_coordinator_etcd_request_seconds_count", OURS, "operation"),
                        "{{operation}}",
                    ),
                ),
                graph(
                    "Failed requests",
                    "By operation.",
                    "short",
                    Query(events("headrace_coordinator_etcd_errors_total", OURS, "operation"), "{{operation}}"),
                    without_data=NOTHING,
                ),
                graph(
                    "Database",
                    "Size and quota; at the quota etcd rejects writes. 2 GiB if etcd does not report it (3.5).",
                    "bytes",
                    Query(f"max(headrace_coordinator_etcd_db_bytes{{{OURS}}})", "size"),
                    Query(f"max(headrace_coordinator_etcd_db_quota_bytes{{{OURS}}})", "quota"),
                ),
                graph(
                    "Age of metadata",
                    "Time since etcd last confirmed each service's metadata.",
                    "s",
                    Query(f"headrace_broker_metadata_age_seconds{{{OURS}}}", "{{instance}}"),
                    Query(f"headrace_coordinator_metadata_age_seconds{{{OURS}}}", "{{instance}}"),
                ),
            ),
        ),
    ),
)
