"""Expressions shared by many panels: selector of the cluster, rates and quantiles by labels."""

from __future__ import annotations

from deploy.grafana.panels import Variable

OURS = 'cluster="$cluster"'
HERE = f'{OURS}, instance=~"$instance"'
GROUPS = f'{OURS}, group=~"$group"'
TOPICS = f'{OURS}, topic=~"$topic"'
RECORDS = "si:records/s"
"""Grafana has no unit for records; this one gets SI prefixes such as k and M."""
GOOD_IS_ZERO = ((None, "green"), (1.0, "red"))
GOOD_IS_SMALL = ((None, "green"), (1.0, "orange"))
INSTANCE = (Variable("instance", "headrace_broker_info"),)


def per_second(counter: str, selector: str, *by: str) -> str:
    """Return the rate of a counter by these labels."""
    return f"sum by ({', '.join(by)}) (rate({counter}{{{selector}}}[$__rate_interval]))"


def slowest(histogram: str, selector: str, *by: str, quantile: float = 0.99) -> str:
    """Return a quantile of a histogram by these labels."""
    return f"histogram_quantile({quantile}, {per_second(f'{histogram}_bucket', selector, *by, 'le')})"


def rises(counter: str, selector: str, *by: str) -> str:
    """Return the increase of a counter between two points of the graph."""
    labels = f" by ({', '.join(by)})" if by else ""
    return f"sum{labels} (increase({counter}{{{selector}}}[$__rate_interval]))"


def events(counter: str, selector: str, *by: str) -> str:
    """Return the number of events between two points of the graph.

    A labelled counter exists from its first event; increase() ignores that first value, which is an increase too.
    """
    series = f"{counter}{{{selector}}}"
    begun = f"({series} unless {series} offset $__rate_interval)"
    return f"sum by ({', '.join(by)}) ({begun} or increase({series}[$__rate_interval]))"


def top(count: int, expression: str) -> str:
    """Return the `count` greatest values of an expression."""
    return f"topk({count}, {expression})"
