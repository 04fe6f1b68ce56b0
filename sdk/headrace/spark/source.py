"""The data source that Spark finds by the name `headrace`. See `docs/guides/spark.md` for its options.

This module is imported in every Python process in which Spark looks for data sources, whatever it looks for: it imports
pyspark only, and the rest when a reader or writer is made.
"""

from pyspark.sql.datasource import DataSource

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""All columns; a schema of the user's own names some of them, in any order."""


class HeadraceDataSource(DataSource):
    """Makes readers and writers from options. Spark makes one where it is needed, in processes of its own."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "headrace"

    def schema(self) -> str:
        """Give all columns."""
        return SCHEMA
