"""Data source that Spark finds by the name `headrace`. `docs/guides/spark.md` has its options.

This module is imported in every Python process in which Spark looks for data sources, so it imports pyspark only, and
the rest when a reader or writer is created.
"""

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from headrace.spark.reader import HeadraceReader
    from headrace.spark.stream_reader import HeadraceStreamReader
    from headrace.spark.writer import HeadraceStreamWriter, HeadraceWriter

MINIMUM_VERSION = (4, 2)
"""Earlier versions do not apply a limit of a micro-batch after a restart, and lack APIs of the stream reader."""


def check_version(version: str) -> None:
    """Check the version of pyspark.

    Raises:
        ConfigError: If it is too old; install a later one.
    """
    from headrace.client.base.errors import ConfigError

    if tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_VERSION:
        raise ConfigError(f"the data source headrace needs Spark 4.2 or later, and this is pyspark {version}")


class HeadraceDataSource(DataSource):
    """Creates readers and writers from options. Spark creates one where needed, in separate processes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace"

    def schema(self) -> StructType:
        """Return the columns of a read without a user's schema."""
        from headrace.spark.options import describe_schema_options, is_typed
        from headrace.spark.schema import full_schema

        if is_typed(self.options):
            from headrace.spark.typed import typed_schema

            return typed_schema(self.options)
        return full_schema(describe_schema_options(self.options))

    def reader(self, schema: StructType) -> "HeadraceReader":
        """Return a reader of a bounded part of topics."""
        check_version(pyspark.__version__)
        from headrace.spark.reader import make_reader

        return make_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> "HeadraceStreamReader":
        """Return a reader of growing topics."""
        check_version(pyspark.__version__)
        from headrace.spark.stream_reader import HeadraceStreamReader

        return HeadraceStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "HeadraceWriter":
        """Return a writer of a query's rows."""
        check_version(pyspark.__version__)
        from headrace.spark.writer import HeadraceWriter

        return HeadraceWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "HeadraceStreamWriter":
        """Return a writer of a streaming query's rows."""
        check_version(pyspark.__version__)
        from headrace.spark.writer import HeadraceStreamWriter

        return HeadraceStreamWriter(self.options, schema, overwrite)
