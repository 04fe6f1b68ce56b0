"""Parts of expressions that many panels share: which cluster, and rates and quantiles by labels."""

from __future__ import annotations

from deploy.grafana.panels import Variable

OURS = 'cluster="$cluster"'
HERE = f'{OURS}, instance=~"$instance"'
GROUPS = f'{OURS}, group=~"$group"'
TOPICS = f'{OURS}, topic=~"$topic"'
RECORDS = "si:records/s"
"""Grafana has no unit of records; this one is written with k and M before it."""
GOOD_IS_ZERO = ((None, "green"), (1.0, "red"))
GOOD_IS_SMALL = ((None, "green"), (1.0, "orange"))
INSTANCE = (Variable("instance", "headrace_broker_info"),)


def per_second(counter: str, selector: str, *by: str) -> str:
    """How fast a counter rises, by these labels."""
    return f"sum by ({', '.join(by)}) (rate({counter}{{{selector}}}[$__rate_interval]))"


def slowest(histogram: str, selector: str, *by: str, quantile: float = 0.99) -> str:
    """A quantile of a histogram, by these labels."""
    return f"histogram_quantile({quantile}, {per_second(f'{histogram}_bucket', selector, *by, 'le')})"


def rises(counter: str, selector: str, *by: str) -> str:
    """By how much a counter rose between two points of the graph."""
    labels = f" by ({', '.join(by)})" if by else ""
    return f"sum{labels} (increase({counter}{{{selector}}}[$__rate_interval]))"


def events(counter: str, selector: str, *by: str) -> str:
    """How many events there were between two points of the graph.

    A counter with labels exists from its first event on; its first value is a rise, too, which increase() leaves out.
    """
    series = f"{counter}{{{selector}}}"
    begun = f"({series} unless {series} offset $__rate_interval)"
    return f"sum by ({', '.join(by)}) ({begun} or increase({series}[$__rate_interval]))"


def top(count: int, expression: str) -> str:
    """The greatest of an expression's values."""
    return f"topk({count}, {expression})"
