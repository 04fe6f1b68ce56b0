"""Ctrl-C during a query of `headrace.sql`."""

from __future__ import annotations

import pytest

pytest.importorskip("duckdb")


class InterruptedRelation:
    """What DuckDB does when the main thread gets SIGINT while it computes."""

    def to_arrow_reader(self) -> None:
        raise RuntimeError("Query interrupted")


def test_an_interrupted_query(headrace_directory):
    """It ends with the KeyboardInterrupt that a program expects, and not with an error of DuckDB."""
    with headrace_directory.sql("select 1 as n") as result:
        result._relation = InterruptedRelation()
        with pytest.raises(KeyboardInterrupt):
            result.to_arrow()
