"""What a query needs of each topic: columns, and ranges of their values. From DuckDB's syntax tree of the query.

All of it only narrows what is read; DuckDB evaluates the whole query over that. A part of the tree that is not
understood narrows nothing.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.wire.errors import InvalidRequestError

_COMPARISONS = {
    "COMPARE_EQUAL": ("low", "high"),
    "COMPARE_GREATERTHAN": ("low",),
    "COMPARE_GREATERTHANOREQUALTO": ("low",),
    "COMPARE_LESSTHAN": ("high",),
    "COMPARE_LESSTHANOREQUALTO": ("high",),
}
_FLIPPED = {"low": "high", "high": "low"}
_ALL_COLUMNS = {"STAR", "POSITIONAL_REFERENCE"}
"""Classes of nodes that may be any column of a table."""
_NO_CONSTANT = {"COLUMN_REF", "SUBQUERY", "PARAMETER", "COLLATE"}
"""Classes of nodes in expressions that are no bound; a collation compares in an order of its own."""
_VOLATILE = {"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval"}
"""Functions that have another value for each row."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a column: the value of an expression without columns, included."""

    column: str
    end: str
    """`low` or `high`."""
    expression: Any
    """Node of the syntax tree."""


@dataclass(frozen=True, slots=True)
class QueryParts:
    """Query as far as it narrows what is read."""

    tables: Counter[str]
    """How often each table is read."""
    columns: frozenset[str] | None
    """Names of all columns that the query mentions; `None` if it has `*`."""
    bounds: tuple[Bound, ...] = field(default=())
    """Bounds of the one table that the query reads; none of other queries."""


def query_parts(connection: Any, query: str) -> QueryParts:
    """Parse a query.

    Args:
        connection: DuckDB connection; nothing is executed over data.
        query: one SELECT statement.

    Raises:
        InvalidRequestError: If it is not one SELECT statement, with DuckDB's reason.
    """
    tree = json.loads(connection.execute("select json_serialize_sql(?)", [query]).fetchall()[0][0])
    if tree.get("error"):
        raise InvalidRequestError(f"the query: {tree['error_message']}", action="Pass one SELECT statement.")
    if len(tree["statements"]) != 1:
        raise InvalidRequestError("the query has several statements", action="Pass one SELECT statement.")
    node = tree["statements"][0]["node"]
    named = {entry["key"] for each in _nodes(node) for entry in _entries(each.get("cte_map"))}
    tables = Counter(
        each["table_name"]
        for each in _nodes(node)
        if each.get("type") == "BASE_TABLE" and each["table_name"] not in named
    )
    bounds = tuple(_bounds(node, next(iter(tables)))) if sum(tables.values()) == 1 else ()
    return QueryParts(tables, _columns(node), bounds)


def value_of(connection: Any, expression: Any, type_name: str) -> Any:
    """Return the value of an expression without columns, cast to a type of DuckDB; `None` if it is null.

    Raises:
        TypeError: If it is not a text, and the type is: DuckDB compares the two as numbers, times and so on.
        duckdb.Error: If it cannot be computed or cast.
    """
    tree = json.loads(connection.execute("select json_serialize_sql('select 1')").fetchall()[0][0])
    tree["statements"][0]["node"]["select_list"] = [expression]
    found = connection.execute("from json_execute_serialized_sql(?)", [json.dumps(tree)]).fetchall()[0][0]
    if type_name == "VARCHAR" and not isinstance(found, str | None):
        raise TypeError(f"{found!r} is not compared as a text")
    return connection.execute(f"select cast(? as {type_name})", [found]).fetchall()[0][0]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a tree."""
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from _nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


def _entries(cte_map: Any) -> list[dict[str, Any]]:
    return cte_map.get("map", []) if isinstance(cte_map, dict) else []


def _columns(node: Any) -> frozenset[str] | None:
    """Return every name that may be a column: also those of tables and aliases, which narrow less."""
    names: set[str] = set()
    tables = (each for each in _nodes(node) if "class" not in each)
    rows = {str(each.get("alias") or each.get("table_name") or "").lower() for each in tables}
    for each in _nodes(node):
        if each.get("class") in _ALL_COLUMNS or each.get("type") == "PIVOT" or each.get("column_name_alias"):
            return None
        if each.get("type") in {"JOIN"} and (each.get("using_columns") or each.get("ref_type") == "NATURAL"):
            if each.get("ref_type") == "NATURAL":
                return None
            names.update(each["using_columns"])
        if each.get("class") == "COLUMN_REF":
            found = each.get("column_names", ())
            if len(found) == 1 and found[0].lower() in rows:
                return None  # A whole row as a struct.
            names.update(found)
    return frozenset(names)


def _bounds(node: dict[str, Any], table: str) -> Iterator[Bound]:
    """Yield the bounds in the conjunction of the WHERE clause of a plain SELECT from a table, under its own columns."""
    source = node.get("from_table", {})
    if node.get("type") != "SELECT_NODE" or source.get("type") != "BASE_TABLE" or source.get("column_name_alias"):
        return
    if source.get("table_name") != table:
        return  # A common table expression, whose columns have these names.
    row = str(source.get("alias") or table).lower()
    waiting = [node.get("where_clause")]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        if each.get("type") == "CONJUNCTION_AND":
            waiting += each.get("children", [])
        elif each.get("class") == "COMPARISON":
            yield from _comparison(each, row)
        elif each.get("class") == "BETWEEN":
            for end, key in (("low", "lower"), ("high", "upper")):
                yield from _bound(each.get("input"), row, (end,), each.get(key))


def _comparison(node: dict[str, Any], row: str) -> Iterator[Bound]:
    ends = _COMPARISONS.get(node.get("type", ""), ())
    yield from _bound(node.get("left"), row, ends, node.get("right"))
    yield from _bound(node.get("right"), row, tuple(_FLIPPED[end] for end in ends), node.get("left"))


def _bound(column: Any, row: str, ends: tuple[str, ...], expression: Any) -> Iterator[Bound]:
    if not isinstance(column, dict) or column.get("class") != "COLUMN_REF":
        return
    if any(each.get("class") in _NO_CONSTANT or each.get("function_name") in _VOLATILE for each in _nodes(expression)):
        return
    *qualifiers, name = column["column_names"]
    if qualifiers and [each.lower() for each in qualifiers] != [row]:
        return  # A field of a struct.
    for end in ends:
        yield Bound(name, end, expression)
