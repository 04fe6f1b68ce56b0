"""Values of Arrow arrays as Python objects, also those that Python has no type for. Imports pyarrow.

Dates and times outside the years 1 to 9999 are legal in Arrow, and one of them must not make a whole table unreadable.
They are the stored whole numbers, as in rows of a typed topic: in the unit of their type, dates in days since 1970.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def objects_of(array: Any) -> list[Any]:
    """Return the values of an array or a chunked one as Python objects, `None` for null."""
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [_object_of(scalar) for scalar in array]


def rows_of(batch: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a record batch as tuples of `objects_of`."""
    return zip(*map(objects_of, batch.columns), strict=True)


def frame_of(table: Any) -> Any:
    """Return a `pandas.DataFrame`; a column of which pandas has not all values has Python objects.

    Times of day in nanoseconds are whole numbers if they are finer than microseconds.
    """
    try:
        return table.to_pandas()
    except (OverflowError, ValueError):
        import pandas as pd

        columns = zip(table.column_names, table.columns, strict=True)
        return pd.DataFrame({name: _series_of(column) for name, column in columns})


def _series_of(column: Any) -> Any:
    import pandas as pd

    try:
        return pa.table({"": column}).to_pandas()[""]
    except (OverflowError, ValueError):
        if column.type == pa.time64("ns"):
            column = column.cast(pa.int64())
        return pd.Series(objects_of(column), dtype=object)


def _object_of(scalar: Any) -> Any:
    kind = scalar.type
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_struct(kind):
            return {kind.field(place).name: _object_of(scalar[place]) for place in range(kind.num_fields)}
        if pa.types.is_map(kind):
            return list(zip(*(map(_object_of, scalar.values.field(place)) for place in range(2)), strict=True))
        return list(map(_object_of, scalar.values)) if pa.types.is_nested(kind) else scalar.value
