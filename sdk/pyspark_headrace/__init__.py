"""Where Spark looks for data sources: every top-level package named `pyspark_*` that has a `DefaultSource`.

One of them that fails to import hides all others, so nothing but the source's own module is imported here, and that
imports nothing beyond pyspark until it is used.
"""

from headrace.spark.source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
