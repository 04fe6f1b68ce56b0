"""Entry point of Spark's search for data sources: every top-level package named `pyspark_*` with a `DefaultSource`.

A failed import of one of them hides all others, so only the source's own module is imported here, which imports only
pyspark until it is used.
"""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
