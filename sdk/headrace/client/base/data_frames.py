"""Tables that an application has, as pyarrow has them."""

from typing import Any


def arrow_of(source: Any) -> Any:
    """Return a data frame of pandas or Polars, or another table of Arrow columns, as a pyarrow table.

    What pyarrow has itself, and what has no columns, is returned unchanged. The index of a pandas frame is left out.
    """
    library = type(source).__module__.partition(".")[0]
    if library == "pyarrow" or isinstance(source, type):
        return source
    if library == "pandas" and hasattr(source, "columns"):
        import pyarrow as pa

        return pa.Table.from_pandas(source, preserve_index=False)
    if hasattr(source, "to_arrow"):  # Polars.
        return source.to_arrow()
    if hasattr(source, "__arrow_c_stream__"):  # A relation of DuckDB, for example.
        import pyarrow as pa

        return pa.table(source)
    return source
